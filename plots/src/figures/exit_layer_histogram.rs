//! `exit-layer-histogram`: after how many layers positions stop, for a few thresholds.

use super::behind::Behind;
use super::exit_cells::{ExitCell, exit_cells};
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{percent, plain};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Reader, Sample as Bin, caption, distinct, samples, spread};
use crate::theme::{BLUE, CONTEXT};
use kvlab_sim::results::Results;
use std::collections::BTreeMap;

const METRIC: &str = "exit_layer_count";
const MOST_PANELS: usize = 6;
const HALF_BAR: f64 = 0.42;
/// A bar that many times higher than the others would hide them on a linear scale.
const CROWDED: f64 = 8.0;

/// The figure.
#[derive(Debug)]
pub(crate) struct ExitLayerHistogram;

impl Figure for ExitLayerHistogram {
    fn id(&self) -> &'static str {
        "exit-layer-histogram"
    }

    fn title(&self) -> &'static str {
        "Where positions leave the model"
    }

    fn question(&self) -> &'static str {
        "After how many layers do positions stop, and how many run them all?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Exit, rank: 1 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::CellColumn("theta"), Need::Series(METRIC)]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let bins = bins_by_cell(results);
        let cells: Vec<ExitCell> =
            exit_cells(results).into_iter().filter(|cell| bins.contains_key(&cell.cell)).collect();
        let chosen = representative(results, &cells);
        let Some(first) = chosen.first() else {
            return Ok(Outcome::nothing("no finished exit cell has a histogram of exit layers"));
        };
        let of_chosen = || chosen.iter().flat_map(|cell| &bins[&cell.cell]);
        let depth =
            results.manifest.sources.iter().map(|source| f64::from(source.layers)).fold(0.0, f64::max);
        let last = of_chosen().map(|bin| bin.x).fold(depth, f64::max);
        let most = of_chosen().map(|bin| bin.value).fold(1.0, f64::max);
        let most_early = of_chosen().filter(|bin| bin.x < last).map(|bin| bin.value).fold(0.0, f64::max);
        let heights = heights(most, most_early);
        let scale = if most > CROWDED * most_early && most_early > 0.0 { " Logarithmic counts." } else { "" };
        let panels = chosen
            .iter()
            .map(|cell| panel(results, cell, &bins[&cell.cell], last, heights.clone()))
            .collect();
        let scene = Scene {
            title: self.title().to_owned(),
            panels,
            columns: 3,
            share_x: true,
            legend: vec![
                Key { label: "left early".to_owned(), sample: Sample::Bar { ink: BLUE } },
                Key {
                    label: format!("ran all {} layers", plain(last, 3)),
                    sample: Sample::Bar { ink: CONTEXT },
                },
            ],
            caption: vec![
                caption::opening(
                    results,
                    &[METRIC],
                    caption::sequences_of(results, chosen.iter().map(|cell| cell.row)),
                ),
                format!(
                    "{}, \u{3b8} and \u{3b5} in {}, {}: {} of {} cells.{scale}",
                    clipped(&first.facet, 60),
                    if first.unit == "nats" { "nats" } else { "shares of ln V" },
                    first.epsilon_text(),
                    chosen.len(),
                    cells.len()
                ),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let alt = format!("{}. {}", self.title(), described(&chosen, &bins, last));
        behind(&cells, &bins).finish(self, scene, alt)
    }
}

pub(super) fn bins_by_cell(results: &Results) -> BTreeMap<String, Vec<Bin>> {
    let mut found: BTreeMap<String, Vec<Bin>> = BTreeMap::new();
    for (key, bins) in samples(&results.series, METRIC) {
        found.entry(key.cell).or_default().extend(bins);
    }
    found
}

/// Cells of one lens and one ε at a few θ: the ε that skips most, sound thresholds, and where anything leaves early.
pub(super) fn representative<'a>(results: &Results, cells: &'a [ExitCell]) -> Vec<&'a ExitCell> {
    let skip = Reader::new(&results.cells, "skip_rate");
    let skipped = |cell: &ExitCell| skip.number(cell.row).unwrap_or(0.0);
    let pool = preferring(cells.iter().collect(), ExitCell::is_sound);
    let lens = pool.iter().find(|cell| cell.facet.starts_with("final-norm")).or(pool.first());
    let Some(facet) = lens.map(|cell| cell.facet.as_str()) else { return Vec::new() };
    let pool = preferring(pool, |cell| cell.facet == facet);
    let pool = preferring(pool, |cell| skipped(cell) > 0.0);
    let Some(most) = pool.iter().max_by(|a, b| skipped(a).total_cmp(&skipped(b)).then(b.row.cmp(&a.row)))
    else {
        return Vec::new();
    };
    let limit = most.epsilon.map(f64::to_bits);
    let of_limit: Vec<&ExitCell> =
        pool.iter().copied().filter(|cell| cell.epsilon.map(f64::to_bits) == limit).collect();
    let thetas = spread(&distinct(of_limit.iter().map(|cell| cell.theta)), MOST_PANELS);
    let at = |theta: &f64| of_limit.iter().find(|cell| cell.theta.total_cmp(theta).is_eq()).copied();
    thetas.iter().filter_map(at).collect()
}

/// Those with the property, or all when none has it.
fn preferring(cells: Vec<&ExitCell>, property: impl Fn(&ExitCell) -> bool) -> Vec<&ExitCell> {
    let some: Vec<&ExitCell> = cells.iter().copied().filter(|cell| property(cell)).collect();
    if some.is_empty() { cells } else { some }
}

fn panel(results: &Results, cell: &ExitCell, bins: &[Bin], last: f64, heights: Axis) -> Panel {
    let bar = |bin: &Bin| (bin.x - HALF_BAR, bin.x + HALF_BAR, bin.value);
    let (full, early): (Vec<&Bin>, Vec<&Bin>) = bins.iter().partition(|bin| bin.x >= last);
    let skipped = Reader::new(&results.cells, "skip_rate").number(cell.row);
    let title = skipped.map_or_else(
        || cell.theta_text(),
        |share| format!("{}, {} skipped", cell.theta_text(), percent(share)),
    );
    Panel {
        title,
        x: Axis::linear("Layers run", Extent { lo: 0.4, hi: last + 0.6 }, TickRule::Whole)
            .naturally(1.0, last),
        y: heights,
        marks: vec![
            Mark::Bars { bars: early.into_iter().map(bar).collect(), ink: BLUE },
            Mark::Bars { bars: full.into_iter().map(bar).collect(), ink: CONTEXT },
        ],
    }
}

fn heights(most: f64, most_early: f64) -> Axis {
    let label = caption::label(METRIC);
    if most > CROWDED * most_early && most_early > 0.0 {
        return Axis::log(label, Extent { lo: 0.6, hi: most * 1.6 }, TickRule::Decades);
    }
    Axis::linear(label, Extent { lo: 0.0, hi: most * 1.06 }, TickRule::Round).naturally(0.0, f64::MAX)
}

fn described(chosen: &[&ExitCell], bins: &BTreeMap<String, Vec<Bin>>, last: f64) -> String {
    let one = |cell: &&ExitCell| {
        let all: f64 = bins[&cell.cell].iter().map(|bin| bin.value).sum();
        let early: f64 = bins[&cell.cell].iter().filter(|bin| bin.x < last).map(|bin| bin.value).sum();
        let share = if all > 0.0 { early / all } else { 0.0 };
        format!("{}: {} of positions leave early.", cell.theta_text(), percent(share))
    };
    chosen.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn behind(cells: &[ExitCell], bins: &BTreeMap<String, Vec<Bin>>) -> Behind {
    let mut table = Behind::new(&["lens", "theta", "epsilon", "unit", "layers_run", "positions", "cell"]);
    for cell in cells {
        for bin in &bins[&cell.cell] {
            table.row([
                cell.facet.as_str().into(),
                cell.theta.into(),
                cell.epsilon.into(),
                cell.unit.into(),
                bin.x.into(),
                bin.value.into(),
                cell.cell.as_str().into(),
            ]);
        }
    }
    table
}
