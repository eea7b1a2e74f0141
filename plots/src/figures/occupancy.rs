//! `occupancy`: how many entries the cache holds as a sequence grows, live and allocated.

use super::behind::Behind;
use super::length_curve::{LengthCurve, length_curves};
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::plain;
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{caption, runs};
use crate::theme::{CONTEXT, Dash, Palette, Stroke, TEXT};
use kvlab_sim::results::Results;

const LIVE: &str = "live_kv_tokens";
const ALLOCATED: &str = "allocated_kv_tokens";
const DIAGONAL: Stroke = Stroke { ink: TEXT, width: 1.4, dash: Dash::Dashed };
const BUDGET_LINE: Stroke = Stroke { ink: CONTEXT, width: 1.0, dash: Dash::Dotted };
const MOST_CURVES: usize = 8;

/// The figure.
#[derive(Debug)]
pub(crate) struct Occupancy;

impl Figure for Occupancy {
    fn id(&self) -> &'static str {
        "occupancy"
    }

    fn title(&self) -> &'static str {
        "Cache entries held, by sequence length"
    }

    fn question(&self) -> &'static str {
        "How much of the cache is in use while a sequence grows?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Eviction, rank: 4 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Series(LIVE)]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let all = runs::eviction_runs_with(results, "kv_byte_steps");
        let palette = runs::palette(&all);
        let budget = runs::middle_budget(&all);
        let chosen = runs::at_budget(&all, budget);
        let live = length_curves(results, &chosen, LIVE, &palette);
        let allocated = length_curves(results, &chosen, ALLOCATED, &palette);
        if live.is_empty() {
            return Ok(Outcome::nothing(
                "no finished eviction cell at the middle budget has a curve over sequence length",
            ));
        }
        let mut panel = axes(&live, &allocated, budget);
        let legend = lines(&mut panel, &live, &allocated, budget, &palette);
        let at =
            budget.map_or(String::new(), |budget| format!(" at a budget of {} tokens", plain(budget, 4)));
        let scene = Scene {
            title: format!("{}{at}", self.title()),
            panels: vec![panel],
            columns: 1,
            share_x: false,
            legend,
            caption: captions(results, &live, chosen.iter().map(|run| run.row)),
            synthetic: caption::is_synthetic(results),
        };
        let alt = format!("{}{at}. {}", self.title(), clipped(&described(&live), 900));
        behind(&live, &allocated).finish(self, scene, alt)
    }
}

/// The full cache may leave the frame at the top, so that the saw-tooth of the others can be seen.
fn axes(live: &[LengthCurve], allocated: &[LengthCurve], budget: Option<f64>) -> Panel {
    let heights = |curves: &[LengthCurve], full: bool| {
        let of_kind = curves.iter().filter(|curve| curve.is_full() == full);
        Extent::of(of_kind.flat_map(|curve| curve.points.iter().map(|point| point.1)))
    };
    let along = Extent::of(live.iter().flat_map(|curve| curve.points.iter().map(|point| point.0)));
    let along = along.unwrap_or(Extent { lo: 0.0, hi: 1.0 }).include(0.0).at_least(1.0);
    let full = heights(live, true).map_or(along.hi, |extent| extent.hi.max(along.hi));
    let managed = [heights(live, false), heights(allocated, false)]
        .into_iter()
        .flatten()
        .map(|extent| extent.hi)
        .fold(budget.unwrap_or(0.0), f64::max);
    let top = if managed > 0.0 { full.min(managed * 2.2) } else { full };
    Panel {
        title: String::new(),
        x: Axis::linear("Sequence length seen (tokens)", along, TickRule::Round),
        y: Axis::linear(
            "Entries per layer and KV head (tokens)",
            Extent { lo: 0.0, hi: top }.at_least(1.0).padded(0.0, 0.05),
            TickRule::Round,
        )
        .naturally(0.0, f64::MAX),
        marks: Vec::new(),
    }
}

fn lines(
    panel: &mut Panel,
    live: &[LengthCurve],
    allocated: &[LengthCurve],
    budget: Option<f64>,
    palette: &Palette,
) -> Vec<Key> {
    let thin = |stroke: Stroke| Stroke { width: 0.8, dash: Dash::Solid, ..stroke };
    let mut legend =
        vec![Key { label: "full cache".to_owned(), sample: Sample::Line { stroke: DIAGONAL, marker: None } }];
    let full = live.iter().find(|curve| curve.is_full());
    let end = live.iter().flat_map(|curve| &curve.points).map(|point| point.0).fold(0.0, f64::max);
    let diagonal = full.map_or(vec![(0.0, 0.0), (end, end)], |curve| curve.points.clone());
    let managed: Vec<&LengthCurve> = live.iter().filter(|curve| !curve.is_full()).collect();
    let mut has_thin = false;
    for curve in allocated.iter().filter(|curve| !curve.is_full()).take(MOST_CURVES) {
        let stroke = thin(curve.look(palette).stroke);
        panel.marks.push(Mark::Line { points: curve.points.clone(), stroke });
        has_thin = true;
    }
    if let Some(budget) = budget {
        panel.marks.push(Mark::Across { y: budget, stroke: BUDGET_LINE });
    }
    panel.marks.push(Mark::Line { points: diagonal, stroke: DIAGONAL });
    for curve in managed.iter().take(MOST_CURVES) {
        let stroke = curve.look(palette).stroke;
        panel.marks.push(Mark::Line { points: curve.points.clone(), stroke });
        legend.push(Key { label: curve.name(), sample: Sample::Line { stroke, marker: None } });
    }
    if managed.len() > MOST_CURVES {
        legend.push(Key {
            label: format!("{} more in the table only", managed.len() - MOST_CURVES),
            sample: Sample::Blank,
        });
    }
    if let Some(budget) = budget {
        let label = format!("C = {} tokens", plain(budget, 4));
        legend.push(Key { label, sample: Sample::Line { stroke: BUDGET_LINE, marker: None } });
    }
    if has_thin {
        let stroke = thin(managed.first().map_or(DIAGONAL, |curve| curve.look(palette).stroke));
        legend.push(Key {
            label: "thin: allocated in whole blocks".to_owned(),
            sample: Sample::Line { stroke, marker: None },
        });
    }
    legend
}

fn captions(results: &Results, live: &[LengthCurve], rows: impl Iterator<Item = usize>) -> Vec<String> {
    let mut second = "Mean over layers, KV heads and the sequences still running at that length.".to_owned();
    if live.iter().any(|curve| curve.labels.len() > 1) {
        second.push_str(" Policies named on one line of the legend have equal curves.");
    }
    vec![caption::opening(results, &[LIVE], caption::sequences_of(results, rows)), second]
}

fn described(curves: &[LengthCurve]) -> String {
    let one = |curve: &LengthCurve| {
        let most = curve.points.iter().map(|point| point.1).fold(0.0, f64::max);
        format!("{}: at most {} entries.", curve.name(), plain(most, 4))
    };
    curves.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn behind(live: &[LengthCurve], allocated: &[LengthCurve]) -> Behind {
    let mut table = Behind::new(&["policy", "cell", "length_tokens", "metric", "value"]);
    for (metric, curves) in [(LIVE, live), (ALLOCATED, allocated)] {
        for curve in curves {
            for (label, cell) in curve.labels.iter().zip(&curve.cells) {
                for (x, value) in &curve.points {
                    table.row([
                        label.as_str().into(),
                        cell.as_str().into(),
                        (*x).into(),
                        metric.into(),
                        (*value).into(),
                    ]);
                }
            }
        }
    }
    table
}
