//! A series metric at one budget, one line a policy: what `recall-by-step`, `survival` and `range-error` share.

use super::behind::Behind;
use super::length_curve::{LengthCurve, length_curves};
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{caption, runs};
use crate::theme::{Dash, Palette, Stroke};
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

const MOST_LOOKS: usize = 10;

/// A figure of one series metric, a line a policy.
#[derive(Debug)]
pub(crate) struct PolicyCurve {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) place: Place,
    pub(super) metric: &'static str,
    pub(super) needs: &'static [Need],
    /// Name of the x axis, and of its column in the table.
    pub(super) x: (&'static str, &'static str),
    /// Smallest and largest value the metric can have.
    pub(super) natural: (f64, f64),
    /// What one has to know to read it, as a sentence.
    pub(super) note: &'static str,
}

impl Figure for PolicyCurve {
    fn id(&self) -> &'static str {
        self.id
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn question(&self) -> &'static str {
        self.question
    }

    fn place(&self) -> Place {
        self.place
    }

    fn needs(&self) -> &'static [Need] {
        self.needs
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let all = runs::eviction_runs_with(results, "attn_mass_recall");
        let palette = runs::palette(&all);
        let budget = runs::middle_budget(&all);
        let chosen = runs::at_budget(&all, budget);
        let curves = length_curves(results, &chosen, self.metric, &palette);
        if curves.is_empty() {
            return Ok(Outcome::nothing(format!(
                "no finished eviction cell at the middle budget has a curve of `{}`",
                self.metric
            )));
        }
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let along = Extent::of(points().map(|point| point.0)).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
        let heights = Extent::of(points().map(|point| point.1)).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
        let mut panel = Panel {
            title: String::new(),
            x: Axis::linear(self.x.0, along.at_least(1e-3), TickRule::Round),
            y: Axis::linear(
                caption::label(self.metric),
                heights.at_least(0.02).padded(0.05, 0.05),
                TickRule::Round,
            )
            .naturally(self.natural.0, self.natural.1),
            marks: Vec::new(),
        };
        let legend = lines(&mut panel, &curves, &palette);
        let at =
            budget.map_or(String::new(), |budget| format!(" at a budget of {} tokens", plain(budget, 4)));
        let sequences = caption::sequences_of(results, chosen.iter().map(|run| run.row));
        let scene = Scene {
            title: format!("{}{at}", self.title()),
            panels: vec![panel],
            columns: 1,
            share_x: false,
            legend,
            caption: vec![caption::opening(results, &[self.metric], sequences), self.note.to_owned()],
            synthetic: caption::is_synthetic(results),
        };
        let alt = format!("{}{at}. {}", self.title(), clipped(&described(&curves), 900));
        self.behind(&curves).finish(self, scene, alt)
    }
}

impl PolicyCurve {
    fn behind(&self, curves: &[LengthCurve]) -> Behind {
        let mut table = Behind::new(&["policy", "cell", self.x.1, self.metric]);
        for curve in curves {
            for (label, cell) in curve.labels.iter().zip(&curve.cells) {
                for (x, value) in &curve.points {
                    table.row([label.as_str().into(), cell.as_str().into(), (*x).into(), (*value).into()]);
                }
            }
        }
        table
    }
}

fn lines(panel: &mut Panel, curves: &[LengthCurve], palette: &Palette) -> Vec<Key> {
    let means: BTreeMap<&str, f64> = curves
        .iter()
        .map(|curve| {
            (curve.labels[0].as_str(), curve.points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min))
        })
        .collect();
    let shown: BTreeSet<&str> = runs::foremost(&means, MOST_LOOKS, true);
    let mut legend = Vec::new();
    let mut others = 0;
    for curve in curves {
        if !shown.contains(curve.labels[0].as_str()) {
            others += 1;
            continue;
        }
        let look = curve.look(palette);
        // Dashes cannot be seen on a line with a point a token: sparse symbols tell such lines apart.
        let dash = if curve.is_full() { look.stroke.dash } else { Dash::Solid };
        let stroke = Stroke { width: 1.4, dash, ..look.stroke };
        panel.marks.push(Mark::Line { points: curve.points.clone(), stroke });
        let marker = (!curve.is_full()).then_some(look.marker);
        if let Some(marker) = marker {
            panel.marks.push(Mark::Symbols {
                points: sparse(&curve.points, legend.len()),
                marker,
                ink: stroke.ink,
            });
        }
        legend.push(Key { label: curve.name(), sample: Sample::Line { stroke, marker } });
    }
    if others > 0 {
        legend.push(Key { label: format!("{others} more in the table only"), sample: Sample::Blank });
    }
    legend
}

/// A few of the points, at other places for each `turn`.
fn sparse(points: &[(f64, f64)], turn: usize) -> Vec<(f64, f64)> {
    const SYMBOLS: usize = 8;
    let stride = (points.len() / SYMBOLS).max(1);
    points.iter().skip(stride * (turn % 5 + 1) / 6).step_by(stride).copied().collect()
}

fn described(curves: &[LengthCurve]) -> String {
    let one = |curve: &LengthCurve| {
        let lowest = curve.points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        format!("{}: lowest {}.", curve.name(), significant(lowest, 3))
    };
    curves.iter().map(one).collect::<Vec<_>>().join(" ")
}
