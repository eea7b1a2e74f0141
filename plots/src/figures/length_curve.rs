//! A series metric over sequence length at one budget, equal curves joined: what `occupancy` and `recall-by-step` share.

use crate::scene::clipped;
use crate::select::runs::Run;
use crate::select::{SampleKey, samples_of};
use crate::theme::{Dash, Look, MUTED, Marker, Palette, Stroke};
use kvlab_sim::results::Results;
use std::collections::BTreeSet;

/// One line over sequence length, and every series that it stands for.
#[derive(Clone, Debug)]
pub(super) struct LengthCurve {
    pub(super) labels: Vec<String>,
    pub(super) cells: Vec<String>,
    pub(super) points: Vec<(f64, f64)>,
}

impl LengthCurve {
    /// The legend text.
    pub(super) fn name(&self) -> String {
        clipped(&self.labels.join(", "), 160)
    }

    /// How it looks: the policy's look, or a neutral one when it stands for several.
    pub(super) fn look(&self, palette: &Palette) -> Look {
        match &self.labels[..] {
            [only] => palette.look(only),
            _ => {
                Look { stroke: Stroke { ink: MUTED, width: 1.8, dash: Dash::Solid }, marker: Marker::Circle }
            }
        }
    }

    /// Whether it shows the full cache.
    pub(super) fn is_full(&self) -> bool {
        self.labels.iter().any(|label| label == "full")
    }
}

/// The curves of `metric` for `runs`, in the order of the palette; curves with equal points are one.
pub(super) fn length_curves(
    results: &Results,
    runs: &[&Run],
    metric: &str,
    palette: &Palette,
) -> Vec<LengthCurve> {
    let cells: BTreeSet<&str> = runs.iter().map(|run| run.cell.as_str()).collect();
    let found = samples_of(&results.series, metric, |cell| cells.contains(cell));
    let mut order: Vec<&&Run> = runs.iter().collect();
    order.sort_by(|a, b| palette.rank(&a.label).cmp(&palette.rank(&b.label)).then(a.label.cmp(&b.label)));
    let mut curves: Vec<LengthCurve> = Vec::new();
    for run in order {
        // A metric whose x axis is the layer has a run of one sample a layer.
        let from = SampleKey { cell: run.cell.clone(), stat: "mean".to_owned(), layer: None };
        let points: Vec<(f64, f64)> = found
            .range(&from..)
            .take_while(|(key, _)| key.cell == from.cell && key.stat == from.stat)
            .flat_map(|(_, samples)| samples.iter().map(|sample| (sample.x, sample.value)))
            .collect();
        if points.is_empty() {
            continue;
        }
        match curves.iter_mut().find(|curve| curve.points == points) {
            Some(curve) => {
                curve.labels.push(run.label.clone());
                curve.cells.push(run.cell.clone());
            }
            None => curves.push(LengthCurve {
                labels: vec![run.label.clone()],
                cells: vec![run.cell.clone()],
                points,
            }),
        }
    }
    curves
}
