//! One metric of serving, a bar an arm: what `serve-latency` and `serve-speedup` share.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, Side, Span, TickRule, clipped};
use crate::select::{Reader, caption, runs};
use crate::theme::{BLUE, Dash, Stroke, TEXT};
use kvlab_sim::results::Results;

/// Arms that are drawn; more are in the table only.
const MOST: usize = 36;

/// A figure of one metric of serving.
#[derive(Debug)]
pub(crate) struct ArmBars {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) place: Place,
    pub(super) metric: &'static str,
    pub(super) needs: &'static [Need],
    /// A value that means no difference, drawn as a line.
    pub(super) even: Option<f64>,
}

struct Bar {
    label: String,
    value: f64,
    interval: Option<(f64, f64)>,
}

impl Figure for ArmBars {
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
        let bars = self.bars(results);
        let shown = &bars[..bars.len().min(MOST)];
        let ends = shown.iter().flat_map(|bar| {
            let (lo, hi) = bar.interval.unwrap_or((bar.value, bar.value));
            [lo, hi, bar.value]
        });
        let Some(extent) = Extent::of(ends) else {
            return Ok(Outcome::nothing(format!("no finished serve cell has a value of `{}`", self.metric)));
        };
        // Room for the number at the end of the longest bar.
        let extent = extent.include(0.0).at_least(1e-9).padded(0.0, 0.28);
        let scene = Scene {
            title: self.title.to_owned(),
            panels: vec![self.panel(shown, extent)],
            columns: 1,
            share_x: false,
            legend: legend(&bars),
            caption: vec![
                caption::opening(results, &[self.metric], requests(results)),
                "Simulated time, from the cost model of the scenario: no measured speed. Thin bars: 95 % bootstrap interval over requests or problems."
                    .to_owned(),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let said: Vec<String> =
            shown.iter().map(|bar| format!("{}: {}.", bar.label, significant(bar.value, 3))).collect();
        let alt = clipped(&format!("{}. {}", self.title, said.join(" ")), 1200);
        self.behind(&bars).finish(self, scene, alt)
    }
}

impl ArmBars {
    /// In table order: a scenario puts what it compares with first.
    fn bars(&self, results: &Results) -> Vec<Bar> {
        let column = |name: &str| Reader::new(&results.cells, name);
        let value = column(self.metric);
        let (lo, hi) = (column(&format!("{}_lo", self.metric)), column(&format!("{}_hi", self.metric)));
        let bar = |run: runs::Run| {
            let interval = lo.number(run.row).zip(hi.number(run.row)).filter(|(lo, hi)| lo <= hi);
            Some(Bar {
                value: value.number(run.row).filter(|value| value.is_finite())?,
                label: run.label,
                interval,
            })
        };
        runs::study_runs(results, "serve", self.metric).into_iter().filter_map(bar).collect()
    }

    fn panel(&self, bars: &[Bar], extent: Extent) -> Panel {
        let place = |at: usize| -(f64::from(u32::try_from(at).unwrap_or(u32::MAX)));
        let mut marks = vec![Mark::Boxes {
            boxes: bars
                .iter()
                .enumerate()
                .map(|(at, bar)| Span {
                    x: (bar.value.min(0.0), bar.value.max(0.0)),
                    y: (place(at) - 0.32, place(at) + 0.32),
                })
                .collect(),
            ink: BLUE,
        }];
        if let Some(even) = self.even {
            marks.push(Mark::Upright { x: even, stroke: EVEN });
        }
        let whisker = |(at, bar): (usize, &Bar)| bar.interval.map(|(lo, hi)| (place(at), lo, hi));
        marks.push(Mark::Spans { points: bars.iter().enumerate().filter_map(whisker).collect(), ink: TEXT });
        let words = |(at, bar): (usize, &Bar)| {
            let end = bar.interval.map_or(bar.value, |(_, hi)| hi.max(bar.value)).max(0.0);
            (end, place(at), said(bar))
        };
        marks.push(Mark::Words {
            words: bars.iter().enumerate().map(words).collect(),
            ink: TEXT,
            side: Side::Right,
        });
        let names = bars.iter().enumerate().map(|(at, bar)| (place(at), bar.label.clone())).rev().collect();
        let last = place(bars.len().saturating_sub(1));
        Panel {
            title: String::new(),
            x: Axis::linear(caption::label(self.metric), extent, TickRule::Round),
            y: Axis::linear("", Extent { lo: last - 0.6, hi: 0.6 }, TickRule::Named(names)),
            marks,
        }
    }

    fn behind(&self, bars: &[Bar]) -> Behind {
        let mut table = Behind::new(&["arm", self.metric, "interval_lo", "interval_hi"]);
        for bar in bars {
            let (lo, hi) = bar.interval.unzip();
            table.row([bar.label.as_str().into(), bar.value.into(), lo.into(), hi.into()]);
        }
        table
    }
}

const EVEN: Stroke = Stroke { ink: TEXT, width: 1.2, dash: Dash::Dashed };

fn said(bar: &Bar) -> String {
    match bar.interval {
        Some((lo, hi)) if lo < hi => {
            format!("{} [{}, {}]", plain(bar.value, 3), plain(lo, 3), plain(hi, 3))
        }
        _ => plain(bar.value, 3),
    }
}

fn legend(bars: &[Bar]) -> Vec<Key> {
    if bars.len() <= MOST {
        return Vec::new();
    }
    vec![Key { label: format!("{} more in the table only", bars.len() - MOST), sample: Sample::Blank }]
}

/// How many requests or problems are behind a bar.
fn requests(results: &Results) -> Option<String> {
    let counts = Reader::new(&results.cells, "serve_latency_ms_n");
    let most = (0..results.cells.rows()).filter_map(|row| counts.int(row)).max()?;
    let word = if most == 1 { "request or problem" } else { "requests or problems" };
    Some(format!("{} {word} an arm", crate::number::count(most)))
}
