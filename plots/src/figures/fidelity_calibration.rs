//! `fidelity-calibration`: what an estimate of the replay promises against what running the policies gave.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{count, plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Reader, caption, mean};
use crate::theme::{BLUE, Dash, MUTED, Palette, Stroke};
use kvlab_sim::metrics::metric;
use kvlab_sim::results::Results;
use std::collections::BTreeSet;

const CURVE: Stroke = Stroke { ink: BLUE, width: 1.8, dash: Dash::Solid };
const DIAGONAL: Stroke = Stroke { ink: MUTED, width: 1.2, dash: Dash::Dashed };
/// Policies drawn in their own look.
const MOST_LOOKS: usize = 14;

/// The figure.
#[derive(Debug)]
pub(crate) struct FidelityCalibration;

/// Lower and upper end of an interval, where there is one.
type Ends = Option<(f64, f64)>;

/// A row of the table.
struct Row {
    policy: Option<String>,
    budget: Option<f64>,
    seed: Option<i64>,
    value: f64,
    curve: Option<f64>,
    interval: Ends,
    executed: Option<f64>,
    left_out: Option<f64>,
}

impl Figure for FidelityCalibration {
    fn id(&self) -> &'static str {
        "fidelity-calibration"
    }

    fn title(&self) -> &'static str {
        "Predicted against executed"
    }

    fn question(&self) -> &'static str {
        "How far can what a replay promises be believed, for a policy that was never run?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Eviction, rank: 11 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Rows("calibration")]
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["attn_mass_recall", "accuracy"]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let Some(table) = results.more("calibration") else {
            return Ok(Outcome::nothing("there is no fitted curve"));
        };
        let word = |name: &str| {
            let column = Reader::new(table, name);
            (0..table.rows()).find_map(|row| column.text(row)).unwrap_or_default().to_owned()
        };
        let (estimate, outcome) = (word("estimate"), word("outcome"));
        let rows = rows(results);
        let cells: Vec<&Row> = rows.iter().filter(|row| row.executed.is_some()).collect();
        let (Some(along), Some(heights)) = (
            Extent::of(rows.iter().map(|row| row.value)),
            Extent::of(cells.iter().filter_map(|row| row.executed)),
        ) else {
            return Ok(Outcome::nothing("no cell has both an estimate and an executed outcome"));
        };
        let palette =
            Palette::new(cells.iter().filter_map(|row| row.policy.as_deref()).map(|policy| (policy, policy)));
        let mut panels = vec![curve_panel(&rows, &cells, (along, heights), (&estimate, &outcome), &palette)];
        panels.extend(predicted_panel(&cells, &outcome, &palette));
        let problems = Reader::new(table, "problems");
        let problems = (0..table.rows()).find_map(|row| problems.int(row));
        let scene = Scene {
            title: format!("{}: {}", self.title(), name(&outcome)),
            panels,
            columns: 2,
            share_x: false,
            legend: legend(&cells, &palette),
            caption: vec![
                caption::opening(
                    results,
                    &[estimate.as_str(), outcome.as_str()],
                    problems.map(|problems| format!("{} problems a cell", count(problems))),
                ),
                format!(
                    "Left: the rising curve that is fitted to all cells, and the band that nine of ten cells of a policy left out of the fit lie in. Right: each \
                     cell predicted by a curve fitted without its policy.{}",
                    error(&cells).map_or(String::new(), |error| format!(
                        " Mean error there: {} over {} cells.",
                        significant(error, 3),
                        cells.len()
                    ))
                ),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let alt = clipped(
            &format!(
                "{}: {} of {} cells against {}, with a rising curve.{}",
                self.title(),
                name(&outcome),
                cells.len(),
                name(&estimate),
                error(&cells).map_or(String::new(), |error| format!(
                    " Mean error on a policy left out {}.",
                    significant(error, 3)
                ))
            ),
            1200,
        );
        behind(&rows, (&estimate, &outcome)).finish(self, scene, alt)
    }
}

fn name(id: &str) -> String {
    metric(id).map_or_else(|| id.to_owned(), |metric| metric.label.to_owned())
}

fn rows(results: &Results) -> Vec<Row> {
    let Some(table) = results.more("calibration") else { return Vec::new() };
    let column = |name: &str| Reader::new(table, name);
    (0..table.rows())
        .filter_map(|row| {
            let number = |name: &str| column(name).number(row).filter(|value| value.is_finite());
            Some(Row {
                policy: column("policy").text(row).map(str::to_owned),
                budget: number("budget_tokens"),
                seed: column("seed").int(row),
                value: number("value")?,
                curve: number("curve"),
                interval: number("curve_lo").zip(number("curve_hi")).filter(|(lo, hi)| lo <= hi),
                executed: number("executed").filter(|_| column("kind").text(row) == Some("cell")),
                left_out: number("left_out"),
            })
        })
        .collect()
}

fn symbols(cells: &[&Row], palette: &Palette, at: impl Fn(&Row) -> Option<(f64, f64)>) -> Vec<Mark> {
    cells
        .iter()
        .filter_map(|row| {
            let look = palette.look(row.policy.as_deref().unwrap_or_default());
            Some(Mark::Symbols { points: vec![at(row)?], marker: look.marker, ink: look.stroke.ink })
        })
        .collect()
}

fn curve_panel(
    rows: &[Row],
    cells: &[&Row],
    (along, heights): (Extent, Extent),
    (estimate, outcome): (&str, &str),
    palette: &Palette,
) -> Panel {
    let mut points: Vec<(f64, f64, Ends)> =
        rows.iter().filter_map(|row| Some((row.value, row.curve?, row.interval))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let band: Vec<(f64, f64, f64)> =
        points.iter().filter_map(|(x, _, interval)| interval.map(|(lo, hi)| (*x, lo, hi))).collect();
    let ends = band.iter().flat_map(|(_, lo, hi)| [*lo, *hi]).chain(points.iter().map(|point| point.1));
    let heights = Extent::of(ends.chain([heights.lo, heights.hi])).unwrap_or(heights);
    let mut marks = vec![
        Mark::Band { points: band, ink: BLUE },
        Mark::Line { points: points.iter().map(|point| (point.0, point.1)).collect(), stroke: CURVE },
    ];
    marks.extend(symbols(cells, palette, |row| Some((row.value, row.executed?))));
    Panel {
        title: "The curve and its interval".to_owned(),
        x: Axis::linear(caption::label(estimate), along.at_least(1e-3).padded(0.05, 0.05), TickRule::Round),
        y: Axis::linear(caption::label(outcome), heights.at_least(0.02).padded(0.05, 0.05), TickRule::Round)
            .naturally(0.0, 1.0),
        marks,
    }
}

fn predicted_panel(cells: &[&Row], outcome: &str, palette: &Palette) -> Option<Panel> {
    let both = cells.iter().flat_map(|row| row.left_out.into_iter().chain(row.executed));
    let ends = Extent::of(both)?.at_least(0.02).padded(0.05, 0.05);
    cells.iter().find(|row| row.left_out.is_some())?;
    let mut marks =
        vec![Mark::Line { points: vec![(ends.lo, ends.lo), (ends.hi, ends.hi)], stroke: DIAGONAL }];
    marks.extend(symbols(cells, palette, |row| Some((row.left_out?, row.executed?))));
    Some(Panel {
        title: "Policies that the curve has not seen".to_owned(),
        x: Axis::linear("Predicted without the policy", ends, TickRule::Round).naturally(0.0, 1.0),
        y: Axis::linear(caption::label(outcome), ends, TickRule::Round).naturally(0.0, 1.0),
        marks,
    })
}

fn legend(cells: &[&Row], palette: &Palette) -> Vec<Key> {
    let mut policies: Vec<&str> =
        cells.iter().filter_map(|row| row.policy.as_deref()).collect::<BTreeSet<_>>().into_iter().collect();
    policies.sort_by_key(|policy| (palette.rank(policy), *policy));
    let mut keys = vec![
        Key { label: "fitted curve".to_owned(), sample: Sample::Line { stroke: CURVE, marker: None } },
        Key { label: "as predicted".to_owned(), sample: Sample::Line { stroke: DIAGONAL, marker: None } },
    ];
    keys.extend(policies.iter().take(MOST_LOOKS).map(|policy| {
        let look = palette.look(policy);
        Key {
            label: clipped(policy, 60),
            sample: Sample::Symbol { marker: look.marker, ink: look.stroke.ink },
        }
    }));
    if policies.len() > MOST_LOOKS {
        let label = format!("{} more policies", policies.len() - MOST_LOOKS);
        keys.push(Key { label, sample: Sample::Blank });
    }
    keys
}

/// Mean absolute difference of prediction and outcome over cells whose policy was left out.
fn error(cells: &[&Row]) -> Option<f64> {
    let errors: Vec<f64> = cells
        .iter()
        .filter_map(|row| Some((row.left_out? - row.executed?).abs()))
        .filter(|error| error.is_finite())
        .collect();
    mean(&errors)
}

fn behind(rows: &[Row], (estimate, outcome): (&str, &str)) -> Behind {
    let mut table = Behind::new(&[
        "kind",
        "policy",
        "budget_tokens",
        "seed",
        "estimate",
        "value",
        "curve",
        "curve_lo",
        "curve_hi",
        "outcome",
        "executed",
        "predicted_without_policy",
    ]);
    for row in rows {
        let (lo, hi) = row.interval.unzip();
        let budget = row.budget.map_or(String::new(), |budget| plain(budget, 6));
        table.row([
            if row.executed.is_some() { "cell" } else { "knot" }.into(),
            row.policy.as_deref().unwrap_or_default().into(),
            budget.as_str().into(),
            row.seed.into(),
            estimate.into(),
            row.value.into(),
            row.curve.into(),
            lo.into(),
            hi.into(),
            outcome.into(),
            row.executed.into(),
            row.left_out.into(),
        ]);
    }
    table
}
