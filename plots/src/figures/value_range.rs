//! `value-range`: how wide value states are in each layer, and where the N_v reserved ones begin.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{count, plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule};
use crate::select::{Reader, Sample as Bin, caption, distinct, runs, samples, spread};
use crate::theme::{Dash, SKY, Stroke, VERMILION};
use kvlab_sim::results::{RECORDING, Results};
use std::collections::BTreeMap;

const COUNT: &str = "value_range_count";
const CUT: &str = "value_range_cut";
const MOST_PANELS: usize = 6;
const MOST_CUTS: usize = 3;
const CUT_DASHES: [Dash; MOST_CUTS] = [Dash::Solid, Dash::Dashed, Dash::Dotted];

/// The figure.
#[derive(Debug)]
pub(crate) struct ValueRange;

impl Figure for ValueRange {
    fn id(&self) -> &'static str {
        "value-range"
    }

    fn title(&self) -> &'static str {
        "Range of value states, by layer"
    }

    fn question(&self) -> &'static str {
        "How few value states are wide, and does the reserve of N_v tokens reach them?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Recording, rank: 1 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Series(COUNT)]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let layers = by_layer(results, COUNT);
        let total = |bins: &[Bin]| bins.iter().any(|bin| bin.value > 0.0);
        let shown: Vec<i64> =
            layers.iter().filter(|(_, bins)| total(bins)).map(|(layer, _)| *layer).collect();
        if shown.is_empty() {
            return Ok(Outcome::nothing("every bin of every layer is empty"));
        }
        let all_layers = shown.len();
        let shown = spread(&shown, MOST_PANELS);
        let reserves = reserves_in_use(results);
        let cuts = by_layer(results, CUT);
        let most = shown.iter().flat_map(|layer| &layers[layer]).map(|bin| bin.value).fold(1.0, f64::max);
        let mut drawn_cuts = Vec::new();
        let panels = shown
            .iter()
            .map(|layer| {
                let cuts: Vec<(f64, f64)> = reserves
                    .iter()
                    .filter_map(|reserve| Some((*reserve, cut_at(cuts.get(layer)?, *reserve)?)))
                    .collect();
                drawn_cuts.extend(cuts.iter().map(|cut| cut.0));
                panel(*layer, &layers[layer], &cuts, &reserves, most)
            })
            .collect();
        let drawn_cuts = distinct(drawn_cuts);
        let scene = Scene {
            title: self.title().to_owned(),
            panels,
            columns: 3,
            share_x: false,
            legend: legend(&drawn_cuts, &reserves),
            caption: captions(results, all_layers, shown.len(), &reserves, &drawn_cuts),
            synthetic: caption::is_synthetic(results),
        };
        let alt = self.alt(&shown, &cuts, &reserves);
        behind(&layers, &cuts).finish(self, scene, alt)
    }
}

impl ValueRange {
    fn alt(&self, shown: &[i64], cuts: &BTreeMap<i64, Vec<Bin>>, reserves: &[f64]) -> String {
        let mut parts =
            vec![format!("{}: one histogram a layer, counts on a logarithmic scale.", self.title())];
        for layer in shown {
            for reserve in reserves {
                if let Some(cut) = cuts.get(layer).and_then(|bins| cut_at(bins, *reserve)) {
                    parts.push(format!(
                        "Layer {layer}: the {}-th widest has range {}.",
                        plain(*reserve, 4),
                        significant(cut, 3)
                    ));
                }
            }
        }
        parts.join(" ")
    }
}

fn by_layer(results: &Results, metric: &str) -> BTreeMap<i64, Vec<Bin>> {
    let found = samples(&results.series, metric);
    found
        .into_iter()
        .filter(|(key, _)| key.cell == RECORDING)
        .filter_map(|(key, bins)| Some((key.layer?, bins)))
        .collect()
}

/// The N_v of finished cells at the middle budget; at most a few.
fn reserves_in_use(results: &Results) -> Vec<f64> {
    let all = runs::eviction_runs(results);
    let column = Reader::new(&results.cells, "value_tokens");
    let of = |rows: Vec<usize>| {
        distinct(rows.into_iter().filter_map(|row| column.number(row)).filter(|n| *n > 0.0))
    };
    let budget = runs::middle_budget(&all);
    let at_middle = of(all
        .iter()
        .filter(|run| run.budget.is_some() && run.budget == budget)
        .map(|run| run.row)
        .collect());
    let mut found =
        if at_middle.is_empty() { of(all.iter().map(|run| run.row).collect()) } else { at_middle };
    found.truncate(MOST_CUTS);
    found
}

fn cut_at(bins: &[Bin], reserve: f64) -> Option<f64> {
    bins.iter().find(|bin| bin.x.total_cmp(&reserve).is_eq()).map(|bin| bin.value)
}

fn cut_stroke(at: usize) -> Stroke {
    Stroke { ink: VERMILION, width: 1.6, dash: CUT_DASHES[at % MOST_CUTS] }
}

fn panel(layer: i64, bins: &[Bin], cuts: &[(f64, f64)], reserves: &[f64], most: f64) -> Panel {
    let right =
        |at: usize, bin: &Bin| bin.x_hi.or_else(|| bins.get(at + 1).map(|next| next.x)).unwrap_or(bin.x);
    let bars: Vec<(f64, f64, f64)> = bins
        .iter()
        .enumerate()
        .filter(|(_, bin)| bin.value > 0.0)
        .map(|(at, bin)| (bin.x, right(at, bin), bin.value))
        .collect();
    let edges = bars.iter().flat_map(|bar| [bar.0, bar.1]).chain(cuts.iter().map(|cut| cut.1));
    let along = Extent::of(edges).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
    let along = if along.lo >= 0.0 && along.lo < along.hi * 0.5 { along.include(0.0) } else { along };
    let mut marks = vec![Mark::Bars { bars, ink: SKY }];
    for (reserve, cut) in cuts {
        let at = reserves.iter().position(|other| other.total_cmp(reserve).is_eq()).unwrap_or(0);
        marks.push(Mark::Upright { x: *cut, stroke: cut_stroke(at) });
    }
    let title = match cuts {
        [(_, cut)] => format!("Layer {layer}, cut at {}", significant(*cut, 3)),
        _ => format!("Layer {layer}"),
    };
    Panel {
        title,
        x: Axis::linear(
            "Range of the value state (max \u{2212} min over channels)",
            along.padded(0.0, 0.03),
            TickRule::Round,
        ),
        y: Axis::log(caption::label(COUNT), Extent { lo: 0.6, hi: most * 1.6 }, TickRule::Decades),
        marks,
    }
}

fn legend(drawn: &[f64], reserves: &[f64]) -> Vec<Key> {
    let mut legend = vec![Key { label: "value states".to_owned(), sample: Sample::Bar { ink: SKY } }];
    for (at, reserve) in reserves.iter().enumerate().filter(|(_, reserve)| drawn.contains(reserve)) {
        let label = format!("range of the N_v-th widest, N_v = {}", plain(*reserve, 4));
        legend.push(Key { label, sample: Sample::Line { stroke: cut_stroke(at), marker: None } });
    }
    legend
}

fn captions(results: &Results, layers: usize, shown: usize, reserves: &[f64], drawn: &[f64]) -> Vec<String> {
    let mut lines = vec![caption::opening(results, &[COUNT], caption::sequences_recorded(results))];
    let mut second = "Logarithmic counts; each panel has its own range axis.".to_owned();
    if shown < layers {
        second = format!(
            "{shown} of {} layers, first and last among them. {second}",
            count(i64::try_from(layers).unwrap_or(i64::MAX))
        );
    }
    if drawn.is_empty() && !reserves.is_empty() {
        second.push_str(" The recording has no cut for the N_v in use.");
    } else if drawn.is_empty() {
        second.push_str(" No policy here reserves tokens by range.");
    } else {
        second.push_str(
            " Right of the line: what a reserve of N_v tokens holds at the end of a sequence, on average.",
        );
    }
    lines.push(second);
    lines
}

fn behind(layers: &BTreeMap<i64, Vec<Bin>>, cuts: &BTreeMap<i64, Vec<Bin>>) -> Behind {
    let mut table = Behind::new(&["metric", "layer", "x", "x_hi", "value"]);
    for (metric, of_metric) in [(COUNT, layers), (CUT, cuts)] {
        for (layer, bins) in of_metric {
            for bin in bins {
                table.row([
                    metric.into(),
                    Some(*layer).into(),
                    bin.x.into(),
                    bin.x_hi.into(),
                    bin.value.into(),
                ]);
            }
        }
    }
    table
}
