//! `seed-spread`: how far the seeds of a policy lie apart.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Reader, caption, distinct, mean, runs};
use crate::theme::{Palette, TEXT};
use kvlab_sim::results::Results;
use std::collections::BTreeMap;

/// What is shown of each run: the executed accuracy where there is one, else the proxy.
const METRICS: [&str; 2] = ["accuracy", "attn_mass_recall"];
/// Policies that are drawn; more are in the table only.
const MOST: usize = 30;

/// The figure.
#[derive(Debug)]
pub(crate) struct SeedSpread;

/// The runs of one policy at one budget.
struct Strip {
    label: String,
    /// (seed, value), in order of seeds.
    runs: Vec<(i64, f64)>,
}

impl Figure for SeedSpread {
    fn id(&self) -> &'static str {
        "seed-spread"
    }

    fn title(&self) -> &'static str {
        "What a seed changes"
    }

    fn question(&self) -> &'static str {
        "Is the difference between two policies larger than that between two seeds of one?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Eviction, rank: 9 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::CellColumn("seed")]
    }

    fn metrics(&self) -> Vec<&'static str> {
        METRICS.to_vec()
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let found = METRICS.iter().find_map(|metric| {
            let all = runs::study_runs(results, "eviction", metric);
            let budget = runs::middle_budget(&all);
            let strips = strips(results, &all, budget, metric);
            (!strips.is_empty()).then_some((*metric, all, budget, strips))
        });
        let Some((metric, all, budget, strips)) = found else {
            return Ok(Outcome::nothing("no policy ran with several seeds at the middle budget"));
        };
        let palette = runs::palette(&all);
        let shown = &strips[..strips.len().min(MOST)];
        let at =
            budget.map_or(String::new(), |budget| format!(" at a budget of {} tokens", plain(budget, 4)));
        let mut legend =
            vec![Key { label: "mean of the seeds".to_owned(), sample: Sample::Bar { ink: TEXT } }];
        if strips.len() > MOST {
            let label = format!("{} more in the table only", strips.len() - MOST);
            legend.push(Key { label, sample: Sample::Blank });
        }
        let scene = Scene {
            title: format!("{}{at}", self.title()),
            panels: vec![panel(shown, metric, &palette)],
            columns: 1,
            share_x: false,
            legend,
            caption: vec![
                caption::opening(
                    results,
                    &[metric],
                    caption::sequences_of(results, all.iter().map(|run| run.row)),
                ),
                "A symbol is one run of all problems with one seed; problems are the same in all of them."
                    .to_owned(),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let said: Vec<String> = shown.iter().map(described).collect();
        let alt =
            clipped(&format!("{}{at}, {}. {}", self.title(), caption::label(metric), said.join(" ")), 1200);
        behind(&strips, metric).finish(self, scene, alt)
    }
}

/// Policies with at least two seeds, best mean first.
fn strips(results: &Results, all: &[runs::Run], budget: Option<f64>, metric: &str) -> Vec<Strip> {
    let (seed, value) = (Reader::new(&results.cells, "seed"), Reader::new(&results.cells, metric));
    let mut found: BTreeMap<&str, Vec<(i64, f64)>> = BTreeMap::new();
    for run in all.iter().filter(|run| run.budget.map(f64::to_bits) == budget.map(f64::to_bits)) {
        if let (Some(seed), Some(value)) =
            (seed.int(run.row), value.number(run.row).filter(|v| v.is_finite()))
        {
            found.entry(&run.label).or_default().push((seed, value));
        }
    }
    let mut strips: Vec<Strip> = found
        .into_iter()
        .map(|(label, mut runs)| {
            runs.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
            Strip { label: label.to_owned(), runs }
        })
        .filter(|strip| strip.runs.iter().any(|run| run.0 != strip.runs[0].0))
        .collect();
    strips.sort_by(|a, b| b.mean().total_cmp(&a.mean()).then(a.label.cmp(&b.label)));
    strips
}

impl Strip {
    fn mean(&self) -> f64 {
        mean(&self.runs.iter().map(|run| run.1).collect::<Vec<_>>()).unwrap_or(f64::NEG_INFINITY)
    }
}

fn panel(strips: &[Strip], metric: &str, palette: &Palette) -> Panel {
    let place = |at: usize| -f64::from(u32::try_from(at).unwrap_or(u32::MAX));
    let values = distinct(strips.iter().flat_map(|strip| &strip.runs).map(|run| run.1));
    let extent = Extent::of(values).unwrap_or(Extent { lo: 0.0, hi: 1.0 }).at_least(0.01).padded(0.06, 0.06);
    let mut marks = Vec::new();
    for (at, strip) in strips.iter().enumerate() {
        let look = palette.look(&strip.label);
        let ends = Extent::of(strip.runs.iter().map(|run| run.1));
        let ends = ends.map_or(Vec::new(), |ends| vec![(place(at), ends.lo, ends.hi)]);
        marks.push(Mark::Spans { points: ends, ink: look.stroke.ink });
        let mean = strip.mean();
        marks.push(Mark::Boxes { boxes: vec![tick(mean, place(at), extent)], ink: TEXT });
        let points = strip.runs.iter().map(|run| (run.1, place(at))).collect();
        marks.push(Mark::Symbols { points, marker: look.marker, ink: look.stroke.ink });
    }
    let names = strips.iter().enumerate().map(|(at, strip)| (place(at), strip.label.clone())).rev().collect();
    Panel {
        title: String::new(),
        x: Axis::linear(caption::label(metric), extent, TickRule::Round).naturally(0.0, 1.0),
        y: Axis::linear("", Extent { lo: place(strips.len()) + 0.4, hi: 0.6 }, TickRule::Named(names)),
        marks,
    }
}

/// A narrow upright bar.
fn tick(x: f64, y: f64, extent: Extent) -> crate::scene::Span {
    let half = extent.width() * 0.0025;
    crate::scene::Span { x: (x - half, x + half), y: (y - 0.38, y + 0.38) }
}

fn described(strip: &Strip) -> String {
    let ends = Extent::of(strip.runs.iter().map(|run| run.1)).unwrap_or(Extent { lo: 0.0, hi: 0.0 });
    format!(
        "{}: {} to {} over {} runs.",
        strip.label,
        significant(ends.lo, 3),
        significant(ends.hi, 3),
        strip.runs.len()
    )
}

fn behind(strips: &[Strip], metric: &'static str) -> Behind {
    let mut table = Behind::new(&["policy", "seed", metric]);
    for strip in strips {
        for (seed, value) in &strip.runs {
            table.row([strip.label.as_str().into(), Some(*seed).into(), (*value).into()]);
        }
    }
    table
}
