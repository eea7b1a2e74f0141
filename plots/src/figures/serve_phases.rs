//! `serve-phases`: where the simulated time of a problem goes: waiting, gate, prefill, decode, verifier.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{count, plain};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, Side, Span, TickRule, clipped};
use crate::select::{Reader, caption, runs, spread};
use crate::theme::{BLUE, GOLD, Ink, SHADES, TEXT, VERMILION};
use kvlab_sim::results::Results;
use std::collections::BTreeMap;

/// Phases in the order in which they are stacked: column, name and ink.
const PHASES: [(&str, &str, Ink); 5] = [
    ("waiting_ms", "waiting for the device", SHADES[1]),
    ("gate_ms", "similarity gate", GOLD),
    ("prefill_ms", "prefill", BLUE),
    ("decode_ms", "decode", SHADES[3]),
    ("verify_ms", "verifier", VERMILION),
];
/// Arms that are drawn, and problems of one arm; more are in the table only.
const MOST_ARMS: usize = 24;
const MOST_PROBLEMS: usize = 8;

/// The figure.
#[derive(Debug)]
pub(crate) struct ServePhases;

/// Milliseconds by phase.
struct Bar {
    arm: String,
    /// The problem; absent for the mean over all of them.
    item: Option<String>,
    phases: [f64; PHASES.len()],
    problems: usize,
}

impl Bar {
    fn total(&self) -> f64 {
        self.phases.iter().sum()
    }
}

impl Figure for ServePhases {
    fn id(&self) -> &'static str {
        "serve-phases"
    }

    fn title(&self) -> &'static str {
        "Where the simulated time of a problem goes"
    }

    fn question(&self) -> &'static str {
        "Which phase does an arm shorten, and what is left?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Serving, rank: 4 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Rows("phases")]
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["serve_latency_ms"]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let (arms, problems) = bars(results);
        let (Some(first), Some(slowest)) = (arms.first(), Extent::of(arms.iter().map(Bar::total))) else {
            return Ok(Outcome::nothing("no finished serve cell has times by phase"));
        };
        let of_first: Vec<&Bar> = problems.iter().filter(|bar| bar.arm == first.arm).collect();
        let some = spread(&of_first, MOST_PROBLEMS);
        let shown: Vec<&Bar> = arms.iter().take(MOST_ARMS).collect();
        let mut panels = vec![panel(&shown, "Mean of an arm", slowest.hi)];
        let most = Extent::of(some.iter().map(|bar| bar.total())).map_or(0.0, |extent| extent.hi);
        // Problems that are all alike say nothing that the mean does not.
        if some.len() > 1 && some.iter().any(|bar| (bar.total() - some[0].total()).abs() > 1e-9) {
            panels.push(panel(&some, &format!("Single problems of {}", first.arm), most));
        }
        let mut legend: Vec<Key> = PHASES
            .iter()
            .enumerate()
            .filter(|(at, _)| arms.iter().chain(&problems).any(|bar| bar.phases[*at] > 0.0))
            .map(|(_, (_, name, ink))| Key { label: (*name).to_owned(), sample: Sample::Tile { ink: *ink } })
            .collect();
        if arms.len() > MOST_ARMS {
            let label = format!("{} more arms in the table only", arms.len() - MOST_ARMS);
            legend.push(Key { label, sample: Sample::Blank });
        }
        let behind_a_bar = arms.iter().map(|bar| bar.problems).max().unwrap_or(0);
        let behind_a_bar = count(i64::try_from(behind_a_bar).unwrap_or(i64::MAX));
        let scene = Scene {
            title: self.title().to_owned(),
            panels,
            columns: 1,
            share_x: false,
            legend,
            caption: vec![
                caption::opening(
                    results,
                    &["serve_latency_ms"],
                    Some(format!("up to {behind_a_bar} problems an arm")),
                ),
                "Simulated time, from the cost model of the scenario: no measured speed. A problem is in prefill while any of its branches is, and waits \
                 while the device works on others; the phases add up to its latency."
                    .to_owned(),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let said: Vec<String> = shown.iter().map(|bar| said(bar)).collect();
        let alt = clipped(&format!("{}. {}", self.title(), said.join(" ")), 1200);
        behind(&arms, &problems).finish(self, scene, alt)
    }
}

/// The means of the arms in table order, and every problem.
fn bars(results: &Results) -> (Vec<Bar>, Vec<Bar>) {
    let Some(table) = results.more("phases") else { return (Vec::new(), Vec::new()) };
    let (cell, item) = (Reader::new(table, "cell"), Reader::new(table, "item"));
    let columns = PHASES.map(|(name, ..)| Reader::new(table, name));
    let mut rows: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for row in 0..table.rows() {
        rows.entry(cell.text(row).unwrap_or_default()).or_default().push(row);
    }
    let (mut arms, mut problems) = (Vec::new(), Vec::new());
    for run in runs::study_runs(results, "serve", "serve_latency_ms") {
        let Some(of_arm) = rows.get(run.cell.as_str()) else { continue };
        let at = |row: usize| columns.map(|column| column.number(row).unwrap_or(0.0).max(0.0));
        #[expect(clippy::cast_precision_loss, reason = "problems are few")]
        let share = 1.0 / of_arm.len() as f64;
        let mut mean = [0.0; PHASES.len()];
        for &row in of_arm {
            let phases = at(row);
            mean.iter_mut().zip(phases).for_each(|(mean, phase)| *mean += phase * share);
            let item = Some(item.text(row).unwrap_or("?").to_owned());
            problems.push(Bar { arm: run.label.clone(), item, phases, problems: 1 });
        }
        arms.push(Bar { arm: run.label, item: None, phases: mean, problems: of_arm.len() });
    }
    (arms, problems)
}

fn panel(bars: &[&Bar], title: &str, longest: f64) -> Panel {
    let place = |at: usize| -(f64::from(u32::try_from(at).unwrap_or(u32::MAX)));
    let mut boxes: Vec<Vec<Span>> = vec![Vec::new(); PHASES.len()];
    for (at, bar) in bars.iter().enumerate() {
        let mut from = 0.0;
        for (of_phase, length) in boxes.iter_mut().zip(bar.phases) {
            if length > 0.0 {
                let y = (place(at) - 0.36, place(at) + 0.36);
                of_phase.push(Span { x: (from, from + length), y });
                from += length;
            }
        }
    }
    let mut marks: Vec<Mark> =
        boxes.into_iter().zip(PHASES).map(|(boxes, (_, _, ink))| Mark::Boxes { boxes, ink }).collect();
    let words =
        bars.iter().enumerate().map(|(at, bar)| (bar.total(), place(at), plain(bar.total(), 3))).collect();
    marks.push(Mark::Words { words, ink: TEXT, side: Side::Right });
    let name = |bar: &Bar| bar.item.clone().unwrap_or_else(|| bar.arm.clone());
    let names = bars.iter().enumerate().map(|(at, bar)| (place(at), name(bar))).rev().collect();
    let last = place(bars.len().saturating_sub(1));
    Panel {
        title: title.to_owned(),
        // Room for the number at the end of the longest bar.
        x: Axis::linear(
            caption::label("serve_latency_ms"),
            Extent { lo: 0.0, hi: longest }.at_least(1e-9).padded(0.0, 0.16),
            TickRule::Round,
        )
        .naturally(0.0, f64::MAX),
        y: Axis::linear("", Extent { lo: last - 0.6, hi: 0.6 }, TickRule::Named(names)),
        marks,
    }
}

fn said(bar: &Bar) -> String {
    let parts: Vec<String> = PHASES
        .iter()
        .zip(bar.phases)
        .filter(|(_, length)| *length > 0.0)
        .map(|((_, name, _), length)| format!("{name} {}", plain(length, 3)))
        .collect();
    format!("{}: {} ms, {}.", bar.arm, plain(bar.total(), 3), parts.join(", "))
}

fn behind(arms: &[Bar], problems: &[Bar]) -> Behind {
    let mut table = Behind::new(&[
        "arm",
        "problem",
        "waiting_ms",
        "gate_ms",
        "prefill_ms",
        "decode_ms",
        "verify_ms",
        "problems",
    ]);
    for bar in arms.iter().chain(problems) {
        let [waiting, gate, prefill, decode, verify] = bar.phases;
        table.row([
            bar.arm.as_str().into(),
            bar.item.as_deref().unwrap_or("mean").into(),
            waiting.into(),
            gate.into(),
            prefill.into(),
            decode.into(),
            verify.into(),
            bar.problems.into(),
        ]);
    }
    table
}
