//! `recall-by-step`: how the attention mass kept changes as a sequence grows.

use super::behind::Behind;
use super::length_curve::{LengthCurve, length_curves};
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{caption, runs};
use crate::theme::{Dash, Palette, Stroke};
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

const METRIC: &str = "step_mass_recall";
const MOST_LOOKS: usize = 10;

/// The figure.
#[derive(Debug)]
pub(crate) struct RecallByStep;

impl Figure for RecallByStep {
    fn id(&self) -> &'static str {
        "recall-by-step"
    }

    fn title(&self) -> &'static str {
        "Attention mass kept, by sequence length"
    }

    fn question(&self) -> &'static str {
        "When does a policy lose attention mass, and does it come back?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Eviction, rank: 3 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Series(METRIC)]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let all = runs::eviction_runs_with(results, "attn_mass_recall");
        let palette = runs::palette(&all);
        let budget = runs::middle_budget(&all);
        let chosen = runs::at_budget(&all, budget);
        let curves = length_curves(results, &chosen, METRIC, &palette);
        if curves.is_empty() {
            return Ok(Outcome::nothing(
                "no finished eviction cell at the middle budget has a curve over sequence length",
            ));
        }
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let along = Extent::of(points().map(|point| point.0)).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
        let heights = Extent::of(points().map(|point| point.1)).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
        let mut panel = Panel {
            title: String::new(),
            x: Axis::linear("Sequence length seen (tokens)", along.at_least(1.0), TickRule::Round),
            y: Axis::linear(
                caption::label(METRIC),
                heights.at_least(0.02).padded(0.05, 0.05),
                TickRule::Round,
            )
            .naturally(0.0, 1.0),
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
            caption: vec![
                caption::opening(results, &[METRIC], sequences),
                "Mean over layers, query heads and the sequences still running at that length, so the right end rests on few sequences.".to_owned(),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let alt = format!("{}{at}. {}", self.title(), clipped(&described(&curves), 900));
        behind(&curves).finish(self, scene, alt)
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

fn behind(curves: &[LengthCurve]) -> Behind {
    let mut table = Behind::new(&["policy", "cell", "length_tokens", METRIC]);
    for curve in curves {
        for (label, cell) in curve.labels.iter().zip(&curve.cells) {
            for (x, value) in &curve.points {
                table.row([label.as_str().into(), cell.as_str().into(), (*x).into(), (*value).into()]);
            }
        }
    }
    table
}
