//! A cell metric against a budget or capacity, one line a policy: what `recall-vs-budget` and its kin share.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Curve, Point, Reader, caption, curves, distinct, runs};
use crate::theme::{CONTEXT, Dash, Palette, Stroke};
use kvlab_sim::metrics::{Better, metric};
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

/// Lines drawn in their own look; more are drawn in grey.
const MOST_LOOKS: usize = 12;
const KEEP: &str = "mean_keep_ratio";

/// The study whose cells are drawn, and what they are drawn against.
#[derive(Debug)]
pub(crate) struct Along {
    pub(super) study: &'static str,
    pub(super) column: &'static str,
    pub(super) label: &'static str,
}

/// Tokens that an eviction leaves.
pub(super) const BUDGET: Along = Along {
    study: "eviction",
    column: "budget_tokens",
    label: "Budget C: tokens resident per layer and KV head after an eviction",
};

/// A figure of one cell metric against the budget.
#[derive(Debug)]
pub(crate) struct BudgetCurve {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) place: Place,
    pub(super) metric: &'static str,
    pub(super) along: &'static Along,
    pub(super) needs: &'static [Need],
    /// The largest value the metric can have.
    pub(super) largest: f64,
}

impl Figure for BudgetCurve {
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
        let along = self.along;
        let all = match along.study {
            "eviction" => runs::eviction_runs_with(results, self.metric),
            study => runs::study_runs(results, study, self.metric),
        };
        let palette = runs::palette(&all);
        let budgets = Reader::new(&results.cells, along.column);
        let x = if all.iter().any(|run| budgets.number(run.row).is_some()) { along.column } else { KEEP };
        let mut found = curves(&results.cells, &all, self.metric, x);
        if found.is_empty() {
            return Ok(Outcome::nothing(format!(
                "no finished {} cell has a value of `{}`",
                along.study, self.metric
            )));
        }
        found.sort_by(|a, b| palette.rank(&a.label).cmp(&palette.rank(&b.label)).then(a.label.cmp(&b.label)));
        let panel = self.axes(&found, x);
        let shown = self.foremost(&found);
        let mut scene = Scene {
            title: self.title.to_owned(),
            panels: vec![panel],
            columns: 1,
            share_x: false,
            legend: Vec::new(),
            caption: self.caption(results, &found, all.iter().map(|run| run.row)),
            synthetic: caption::is_synthetic(results),
        };
        add_lines(&mut scene, &found, &shown, &palette);
        behind(self.metric, x, &found).finish(self, scene, self.alt(&found, &shown, x))
    }
}

impl BudgetCurve {
    fn axes(&self, curves: &[Curve], x: &'static str) -> Panel {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let heights = points().flat_map(|point| {
            let ends = [point.interval, point.spread].into_iter().flatten().flat_map(|(lo, hi)| [lo, hi]);
            ends.chain([point.value]).collect::<Vec<_>>()
        });
        let y = Extent::of(heights).unwrap_or(Extent { lo: 0.0, hi: 1.0 }).at_least(0.02).padded(0.06, 0.06);
        let budgets = distinct(points().filter_map(|point| point.x));
        let along = Extent::of(budgets.iter().copied()).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
        let is_budget = x == self.along.column;
        let label = if is_budget { self.along.label.to_owned() } else { caption::label(KEEP) };
        let wide = along.lo > 0.0 && along.hi / along.lo > 3.9;
        let x_axis = match (is_budget, wide) {
            (true, true) => {
                Axis::log(label, Extent { lo: along.lo / 1.15, hi: along.hi * 1.15 }, TickRule::At(budgets))
            }
            (true, false) => {
                Axis::linear(label, along.at_least(1.0).padded(0.06, 0.06), TickRule::At(budgets))
            }
            (false, _) => Axis::linear(label, along.at_least(0.02).padded(0.04, 0.04), TickRule::Round)
                .naturally(0.0, 1.0),
        };
        let y_axis =
            Axis::linear(caption::label(self.metric), y, TickRule::Round).naturally(0.0, self.largest);
        Panel { title: String::new(), x: x_axis, y: y_axis, marks: Vec::new() }
    }

    fn foremost<'a>(&self, curves: &'a [Curve]) -> BTreeSet<&'a str> {
        let means: BTreeMap<&str, f64> = curves
            .iter()
            .filter_map(|curve| {
                let values: Vec<f64> = curve.points.iter().map(|point| point.value).collect();
                Some((curve.label.as_str(), Extent::of(values.iter().copied())?.lo))
            })
            .collect();
        let better = metric(self.metric).map_or(Better::Neither, |metric| metric.better);
        runs::foremost(&means, MOST_LOOKS, better != Better::Lower)
    }

    fn caption(&self, results: &Results, curves: &[Curve], rows: impl Iterator<Item = usize>) -> Vec<String> {
        let sequences = caption::sequences_of(results, rows);
        let mut lines = vec![caption::opening(results, &[self.metric], sequences)];
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let mut bands = Vec::new();
        if points().any(|point| point.interval.is_some()) {
            bands.push(caption::BAND.to_owned());
        }
        if let Some(seeds) = points().filter(|point| point.seeds > 1).map(|point| point.seeds).max() {
            bands.push(format!(
                "Lines are means over up to {seeds} seeds; vertical bars reach from the lowest to the highest seed."
            ));
        }
        if points().any(|point| point.seeds < point.cells && point.cells > 1) {
            bands.push("Some points join cells that differ in other parameters.".to_owned());
        }
        let idle = distinct(points().filter(|point| point.untriggered > 0).filter_map(|point| point.x));
        if !idle.is_empty() {
            let at: Vec<String> = idle.iter().map(|x| plain(*x, 4)).collect();
            bands.push(format!(
                "At {} some policies evicted nothing: those points show the full cache.",
                clipped(&at.join(", "), 60)
            ));
        }
        lines.push(bands.join(" "));
        lines.retain(|line| !line.is_empty());
        lines
    }

    fn alt(&self, curves: &[Curve], shown: &BTreeSet<&str>, x: &str) -> String {
        let mut parts = vec![format!(
            "{}: {} against {}.",
            self.title,
            caption::label(self.metric),
            if x == self.along.column { self.along.label } else { "the share of tokens kept" }
        )];
        for curve in curves.iter().filter(|curve| shown.contains(curve.label.as_str())) {
            let at = |point: &Point| match point.x {
                Some(x) => format!("{} at {}", significant(point.value, 3), plain(x, 3)),
                None => significant(point.value, 3),
            };
            match &curve.points[..] {
                [only] => parts.push(format!("{}: {}.", curve.label, at(only))),
                [first, .., last] => parts.push(format!("{}: {} to {}.", curve.label, at(first), at(last))),
                [] => {}
            }
        }
        clipped(&parts.join(" "), 1200)
    }
}

/// Grey lines first, then bands, then lines and symbols, so that no band hides a line.
fn add_lines(scene: &mut Scene, curves: &[Curve], shown: &BTreeSet<&str>, palette: &Palette) {
    let grey = Stroke { ink: CONTEXT, width: 0.7, dash: Dash::Solid };
    let (mut under, mut bands, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let mut others = 0;
    for curve in curves {
        let with_x: Vec<(f64, &Point)> =
            curve.points.iter().filter_map(|point| Some((point.x?, point))).collect();
        let line: Vec<(f64, f64)> = with_x.iter().map(|(x, point)| (*x, point.value)).collect();
        if !shown.contains(curve.label.as_str()) {
            others += 1;
            under.push(Mark::Line { points: line, stroke: grey });
            continue;
        }
        let look = palette.look(&curve.label);
        let ink = look.stroke.ink;
        let pairs = |pick: fn(&Point) -> Option<(f64, f64)>| -> Vec<(f64, f64, f64)> {
            with_x.iter().filter_map(|(x, point)| pick(point).map(|(lo, hi)| (*x, lo, hi))).collect()
        };
        let intervals = pairs(|point| point.interval);
        match intervals.len() {
            0 => {}
            1 => bands.push(Mark::Whiskers { points: intervals, ink }),
            _ => bands.push(Mark::Band { points: intervals, ink }),
        }
        lines.extend(
            curve
                .points
                .iter()
                .filter(|point| point.x.is_none())
                .map(|point| Mark::Across { y: point.value, stroke: look.stroke }),
        );
        let marker = (!line.is_empty()).then_some(look.marker);
        if let Some(marker) = marker {
            lines.push(Mark::Whiskers { points: pairs(|point| point.spread), ink });
            lines.push(Mark::Line { points: line.clone(), stroke: look.stroke });
            lines.push(Mark::Symbols { points: line, marker, ink });
        }
        scene.legend.push(Key {
            label: clipped(&curve.label, 60),
            sample: Sample::Line { stroke: look.stroke, marker },
        });
    }
    if others > 0 {
        scene.legend.push(Key {
            label: format!("{others} more policies"),
            sample: Sample::Line { stroke: grey, marker: None },
        });
    }
    scene.panels[0].marks = [under, bands, lines].concat();
}

fn behind(metric: &'static str, x: &'static str, curves: &[Curve]) -> Behind {
    let mut table = Behind::new(&[
        "policy",
        x,
        metric,
        "interval_lo",
        "interval_hi",
        "seeds",
        "seed_min",
        "seed_max",
        "cells",
        "cells_without_eviction",
    ]);
    for curve in curves {
        for point in &curve.points {
            table.row([
                curve.label.as_str().into(),
                point.x.into(),
                point.value.into(),
                point.interval.map(|ends| ends.0).into(),
                point.interval.map(|ends| ends.1).into(),
                point.seeds.into(),
                point.spread.map(|ends| ends.0).into(),
                point.spread.map(|ends| ends.1).into(),
                point.cells.into(),
                point.untriggered.into(),
            ]);
        }
    }
    table
}
