//! `entropy-map`: how sure the logit lens is after each layer at each position of one sequence.

use super::behind::Behind;
use super::tiles::Scale;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Panel, Scene, Span, TickRule};
use crate::select::{caption, mean, samples};
use kvlab_sim::results::{RECORDING, Results};

const METRIC: &str = "token_entropy_nats";
/// Tiles that are drawn: far more than a recording of any known model has.
const MOST_TILES: usize = 40_000;

/// The figure.
#[derive(Debug)]
pub(crate) struct EntropyMap;

/// The entropy of one layer over a few positions.
struct Tile {
    layer: f64,
    from: f64,
    to: f64,
    value: f64,
    n: Option<i64>,
}

impl Figure for EntropyMap {
    fn id(&self) -> &'static str {
        "entropy-map"
    }

    fn title(&self) -> &'static str {
        "Entropy of the logit lens, by layer and position"
    }

    fn question(&self) -> &'static str {
        "Which tokens are settled early, and which only at the end?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Recording, rank: 1 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Series(METRIC)]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let all = tiles(results);
        let tiles = &all[..all.len().min(MOST_TILES)];
        let (Some(layers), Some(along), Some(scale)) = (
            Extent::of(tiles.iter().map(|tile| tile.layer)),
            Extent::of(tiles.iter().flat_map(|tile| [tile.from, tile.to])),
            Scale::of(tiles.iter().map(|tile| tile.value)),
        ) else {
            return Ok(Outcome::nothing("the recording has no entropy of any layer at any position"));
        };
        let spans: Vec<(Span, f64)> = tiles
            .iter()
            .map(|tile| {
                let y = (tile.layer - 0.5, tile.layer + 0.5);
                (Span { x: (tile.from, tile.to), y }, tile.value)
            })
            .collect();
        let panel = Panel {
            title: String::new(),
            x: Axis::linear("Position in the sequence (tokens)", along.at_least(1.0), TickRule::Round),
            y: Axis::linear(
                "Layer (0 = first)",
                Extent { lo: layers.lo - 0.5, hi: layers.hi + 0.5 },
                TickRule::Whole,
            )
            .naturally(layers.lo, layers.hi),
            marks: scale.marks(&spans),
        };
        let scene = Scene {
            title: self.title().to_owned(),
            panels: vec![panel],
            columns: 1,
            share_x: false,
            legend: scale.legend(" nats"),
            caption: vec![
                caption::opening(results, &[METRIC], caption::one_sequence(results, "the first")),
                format!(
                    "With the final norm, from the prediction of the first generated token on; of a long sequence, neighbouring positions are joined by their mean.{}",
                    if tiles.len() < all.len() { " The table has more than is drawn." } else { "" }
                ),
            ],
            synthetic: caption::is_synthetic(results),
        };
        behind(&all).finish(self, scene, format!("{}. {}", self.title(), described(tiles, layers)))
    }
}

fn tiles(results: &Results) -> Vec<Tile> {
    let found = samples(&results.series, METRIC);
    found
        .iter()
        .filter(|(key, _)| key.cell == RECORDING)
        .filter_map(|(key, values)| Some((key.layer?, values)))
        .flat_map(|(layer, values)| {
            values.iter().map(move |sample| Tile {
                #[expect(clippy::cast_precision_loss, reason = "layers are few")]
                layer: layer as f64,
                from: sample.x,
                to: sample.x_hi.filter(|end| *end > sample.x).unwrap_or(sample.x + 1.0),
                value: sample.value,
                n: sample.n,
            })
        })
        .collect()
}

fn described(tiles: &[Tile], layers: Extent) -> String {
    let of = |layer: f64| {
        let values: Vec<f64> =
            tiles.iter().filter(|tile| tile.layer.total_cmp(&layer).is_eq()).map(|tile| tile.value).collect();
        mean(&values).map(|mean| {
            format!("Mean over positions after layer {}: {} nats.", plain(layer, 3), significant(mean, 3))
        })
    };
    [of(layers.lo), of(layers.hi)].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn behind(tiles: &[Tile]) -> Behind {
    let mut table = Behind::new(&["layer", "from_position", "to_position", METRIC, "positions"]);
    for tile in tiles {
        table.row([tile.layer.into(), tile.from.into(), tile.to.into(), tile.value.into(), tile.n.into()]);
    }
    table
}
