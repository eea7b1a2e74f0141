//! `entropy-by-layer`: how sure the logit lens is after each layer, with and without the final norm.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{count, plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Sample as Value, caption, samples};
use crate::theme::{BLUE, CONTEXT, Dash, Look, Marker, Stroke, VERMILION};
use kvlab_sim::results::{RECORDING, Results};

const NORMED: &str = "lens_entropy_nats";
const RAW: &str = "raw_lens_entropy_nats";
const LENSES: [(&str, &str, Look); 2] = [
    (
        NORMED,
        "with the final norm",
        Look { stroke: Stroke { ink: BLUE, width: 1.8, dash: Dash::Solid }, marker: Marker::Circle },
    ),
    (
        RAW,
        "without it",
        Look { stroke: Stroke { ink: VERMILION, width: 1.8, dash: Dash::Long }, marker: Marker::Square },
    ),
];
const UNIFORM: Stroke = Stroke { ink: CONTEXT, width: 1.2, dash: Dash::Dotted };

/// The figure.
#[derive(Debug)]
pub(crate) struct EntropyByLayer;

/// Quantiles of one lens at one layer: `(layer, p10, p50, p90, n)`.
type Quantiles = (f64, Option<f64>, f64, Option<f64>, Option<i64>);

impl Figure for EntropyByLayer {
    fn id(&self) -> &'static str {
        "entropy-by-layer"
    }

    fn title(&self) -> &'static str {
        "Entropy of the logit lens, by layer"
    }

    fn question(&self) -> &'static str {
        "After which layer is the model sure of the next token?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Recording, rank: 0 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Series(NORMED)]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let lenses = LENSES.map(|(metric, name, look)| (metric, name, look, quantiles(results, metric)));
        let medians = || lenses.iter().flat_map(|lens| &lens.3);
        let Some(layers) = Extent::of(medians().map(|q| q.0)) else {
            return Ok(Outcome::nothing("the recording has no median entropy of any layer"));
        };
        let uniform = largest_entropy(results);
        let heights = medians().flat_map(|q| [q.1, Some(q.2), q.3]).flatten().chain(uniform);
        let heights = Extent::of(heights).unwrap_or(layers).include(0.0).at_least(0.1).padded(0.0, 0.05);
        let mut panel = Panel {
            title: String::new(),
            x: Axis::linear("Layer (0 = first)", layers.at_least(1.0).padded(0.02, 0.02), TickRule::Whole)
                .naturally(layers.lo, layers.hi),
            y: Axis::linear("Entropy of the next token (nats)", heights, TickRule::Round)
                .naturally(0.0, f64::MAX),
            marks: Vec::new(),
        };
        let mut legend = Vec::new();
        for (_, name, look, found) in lenses.iter().filter(|lens| !lens.3.is_empty()) {
            let band: Vec<_> = found.iter().filter_map(|q| Some((q.0, q.1?, q.3?))).collect();
            panel.marks.insert(0, Mark::Band { points: band, ink: look.stroke.ink });
            let line: Vec<_> = found.iter().map(|q| (q.0, q.2)).collect();
            panel.marks.push(Mark::Line { points: line.clone(), stroke: look.stroke });
            panel.marks.push(Mark::Symbols { points: line, marker: look.marker, ink: look.stroke.ink });
            legend.push(Key {
                label: (*name).to_owned(),
                sample: Sample::Line { stroke: look.stroke, marker: Some(look.marker) },
            });
        }
        if let Some(most) = uniform {
            panel.marks.push(Mark::Across { y: most, stroke: UNIFORM });
            legend.push(Key {
                label: format!("ln V = {}: every token alike", significant(most, 4)),
                sample: Sample::Line { stroke: UNIFORM, marker: None },
            });
        }
        let positions = medians().filter_map(|q| q.4).max();
        let scene = Scene {
            title: self.title().to_owned(),
            panels: vec![panel],
            columns: 1,
            share_x: false,
            legend,
            caption: captions(results, positions),
            synthetic: caption::is_synthetic(results),
        };
        let alt =
            format!("{}. {}", self.title(), clipped(&described(&lenses.map(|lens| (lens.1, lens.3))), 900));
        behind(results).finish(self, scene, alt)
    }
}

fn quantiles(results: &Results, metric: &str) -> Vec<Quantiles> {
    let found = samples(&results.series, metric);
    // The layer is on the x axis; the layer column may repeat it.
    let stat = |name: &str| -> Vec<Value> {
        let of_stat = found.iter().filter(|(key, _)| key.cell == RECORDING && key.stat == name);
        let mut values: Vec<Value> = of_stat.flat_map(|(_, values)| values).copied().collect();
        values.sort_by(|a, b| a.x.total_cmp(&b.x));
        values
    };
    let at = |values: &[Value], x: f64| {
        values.iter().find(|value| value.x.total_cmp(&x).is_eq()).map(|value| value.value)
    };
    let (low, high) = (stat("p10"), stat("p90"));
    stat("p50")
        .iter()
        .map(|median| (median.x, at(&low, median.x), median.value, at(&high, median.x), median.n))
        .collect()
}

/// ln of the vocabulary size, when all sources agree on it.
fn largest_entropy(results: &Results) -> Option<f64> {
    let mut sizes = results.manifest.sources.iter().map(|source| source.vocab).filter(|vocab| *vocab > 1);
    let first = sizes.next()?;
    sizes.all(|vocab| vocab == first).then(|| f64::from(first).ln())
}

fn captions(results: &Results, positions: Option<i64>) -> Vec<String> {
    let mut lines = vec![caption::opening(results, &[NORMED], caption::sequences_recorded(results))];
    let over = positions.map_or("decode positions".to_owned(), |n| format!("{} decode positions", count(n)));
    lines.push(format!("Lines: median over {over}. Bands: from the 10th to the 90th percentile, a spread and not a confidence interval."));
    lines
}

fn described(lenses: &[(&str, Vec<Quantiles>)]) -> String {
    let one = |(name, found): &(&str, Vec<Quantiles>)| {
        let (first, last) = (found.first()?, found.last()?);
        Some(format!(
            "{name}: median {} nats after layer {}, {} nats after layer {}.",
            significant(first.2, 3),
            plain(first.0, 3),
            significant(last.2, 3),
            plain(last.0, 3)
        ))
    };
    lenses.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

fn behind(results: &Results) -> Behind {
    let mut table = Behind::new(&["metric", "layer", "p10", "p50", "p90", "positions"]);
    for (metric, ..) in LENSES {
        for (layer, low, median, high, n) in quantiles(results, metric) {
            table.row([metric.into(), layer.into(), low.into(), median.into(), high.into(), n.into()]);
        }
    }
    table
}
