//! `saved-work`: how much of the work of all layers is saved by positions that leave at or before each layer.

use super::behind::Behind;
use super::exit_cells::{ExitCell, exit_cells};
use super::exit_layer_histogram::{bins_by_cell, representative};
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{percent, plain};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Sample as Bin, caption};
use crate::theme::ordinal;
use kvlab_sim::results::Results;

const METRIC: &str = "exit_layer_count";

/// The figure.
#[derive(Debug)]
pub(crate) struct SavedWork;

/// Shares of (position, layer) pairs that are not run, cumulated over the layers after which positions leave.
struct Curve {
    label: String,
    cell: String,
    /// (layers run, share saved by positions that run at most so many, positions that run just so many).
    points: Vec<(f64, f64, f64)>,
}

impl Figure for SavedWork {
    fn id(&self) -> &'static str {
        "saved-work"
    }

    fn title(&self) -> &'static str {
        "Work saved, by the layer after which positions leave"
    }

    fn question(&self) -> &'static str {
        "Do few positions that leave very early save the work, or many that leave late?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Exit, rank: 2 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::CellColumn("theta"), Need::Series(METRIC)]
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec![METRIC, "skip_rate"]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let bins = bins_by_cell(results);
        let cells: Vec<ExitCell> =
            exit_cells(results).into_iter().filter(|cell| bins.contains_key(&cell.cell)).collect();
        let chosen = representative(results, &cells);
        let depth =
            results.manifest.sources.iter().map(|source| f64::from(source.layers)).fold(0.0, f64::max);
        let layers = chosen.iter().flat_map(|cell| &bins[&cell.cell]).map(|bin| bin.x).fold(depth, f64::max);
        let curves: Vec<Curve> =
            chosen.iter().filter_map(|cell| Curve::of(cell, &bins[&cell.cell], layers)).collect();
        let (Some(first), Some(heights)) =
            (chosen.first(), Extent::of(curves.iter().flat_map(|c| c.points.iter().map(|p| p.1))))
        else {
            return Ok(Outcome::nothing("no finished exit cell has a histogram of exit layers"));
        };
        let (mut marks, mut legend) = (Vec::new(), Vec::new());
        for (at, curve) in curves.iter().enumerate() {
            let look = ordinal(at, curves.len());
            let line: Vec<(f64, f64)> = curve.points.iter().map(|point| (point.0, point.1)).collect();
            marks.push(Mark::Line { points: line.clone(), stroke: look.stroke });
            marks.push(Mark::Symbols { points: line, marker: look.marker, ink: look.stroke.ink });
            legend.push(Key {
                label: curve.label.clone(),
                sample: Sample::Line { stroke: look.stroke, marker: Some(look.marker) },
            });
        }
        let scene = Scene {
            title: self.title().to_owned(),
            panels: vec![Panel {
                title: String::new(),
                x: Axis::linear(
                    "Layers run before leaving",
                    Extent { lo: 1.0, hi: layers.max(2.0) }.padded(0.03, 0.03),
                    TickRule::Whole,
                )
                .naturally(1.0, layers),
                y: Axis::linear(
                    "Share of all layer work saved so far",
                    heights.include(0.0).at_least(0.02).padded(0.0, 0.06),
                    TickRule::Round,
                )
                .naturally(0.0, 1.0),
                marks,
            }],
            columns: 1,
            share_x: false,
            legend,
            caption: captions(results, first, &chosen, cells.len()),
            synthetic: caption::is_synthetic(results),
        };
        let said: Vec<String> = curves.iter().filter_map(Curve::said).collect();
        let alt = clipped(&format!("{}. {}", self.title(), said.join(" ")), 1200);
        behind(&curves).finish(self, scene, alt)
    }
}

impl Curve {
    /// Nothing without positions.
    fn of(cell: &ExitCell, bins: &[Bin], layers: f64) -> Option<Self> {
        let mut sorted: Vec<(f64, f64)> = bins.iter().map(|bin| (bin.x, bin.value)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = sorted.iter().map(|bin| bin.1).sum::<f64>() * layers;
        let mut saved = 0.0;
        let point = |(run, count): (f64, f64)| {
            saved += (layers - run).max(0.0) * count;
            (run, saved / all, count)
        };
        let points: Vec<(f64, f64, f64)> = sorted.into_iter().map(point).collect();
        (all > 0.0 && all.is_finite()).then(|| Self {
            label: cell.theta_text(),
            cell: cell.cell.clone(),
            points,
        })
    }

    fn said(&self) -> Option<String> {
        let total = self.points.last()?.1;
        let half = self.points.iter().find(|point| point.1 >= total / 2.0)?;
        Some(format!("{}: {} saved, half of it by layer {}.", self.label, percent(total), plain(half.0, 3)))
    }
}

fn captions(results: &Results, first: &ExitCell, chosen: &[&ExitCell], all: usize) -> Vec<String> {
    let sequences = caption::sequences_of(results, chosen.iter().map(|cell| cell.row));
    vec![
        caption::opening(results, &[METRIC], sequences),
        format!(
            "Work: (position, layer) pairs. A line ends at the share of layers skipped. {}, \u{3b8} and \u{3b5} in {}, {}: {} of {all} cells.",
            clipped(&first.facet, 60),
            if first.unit == "nats" { "nats" } else { "shares of ln V" },
            first.epsilon_text(),
            chosen.len(),
        ),
    ]
}

fn behind(curves: &[Curve]) -> Behind {
    let mut table = Behind::new(&["setting", "cell", "layers_run", "positions", "saved_share_upto"]);
    for curve in curves {
        for (run, saved, count) in &curve.points {
            table.row([
                curve.label.as_str().into(),
                curve.cell.as_str().into(),
                (*run).into(),
                (*count).into(),
                (*saved).into(),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    // Four layers, ten positions. Two leave after one layer and save 3 each, three after two and save 2 each: 12 of 40.
    #[test]
    fn saved_work_adds_up_to_the_share_skipped() {
        let bin = |x: f64, value: f64| Bin { x, x_hi: None, value, n: None };
        let cell = ExitCell {
            row: 0,
            cell: "c".to_owned(),
            facet: String::new(),
            theta: 1.0,
            epsilon: None,
            unit: "nats",
            lint: None,
        };
        let bins = [bin(4.0, 5.0), bin(1.0, 2.0), bin(2.0, 3.0), bin(3.0, 0.0)];
        let curve = Curve::of(&cell, &bins, 4.0).unwrap();
        let shares: Vec<f64> = curve.points.iter().map(|point| point.1).collect();
        for (found, expected) in shares.iter().zip([0.15, 0.3, 0.3, 0.3]) {
            assert!((found - expected).abs() < 1e-12, "{shares:?}");
        }
        assert!(Curve::of(&cell, &[], 4.0).is_none());
    }
}
