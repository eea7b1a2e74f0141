//! `head-coverage`: which KV heads of which layers keep their attention mass under each policy.

use super::behind::Behind;
use super::tiles::Scale;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{more_policies, plain, significant};
use crate::scene::{Axis, Extent, Panel, Scene, Span, TickRule, clipped};
use crate::select::{caption, mean, runs, samples_of};
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

const METRIC: &str = "head_mass_recall";
/// Policies that have a panel; more are in the table only.
const MOST_PANELS: usize = 6;
/// Tiles of a panel with room for words.
const MOST_WORDS: usize = 48;

/// The figure.
#[derive(Debug)]
pub(crate) struct HeadCoverage;

/// What one policy keeps: (layer, KV head, recall).
struct Map {
    label: String,
    cell: String,
    tiles: Vec<(f64, f64, f64)>,
}

impl Map {
    fn mean(&self) -> f64 {
        mean(&self.tiles.iter().map(|tile| tile.2).collect::<Vec<_>>()).unwrap_or(f64::NEG_INFINITY)
    }

    fn least(&self) -> Option<&(f64, f64, f64)> {
        self.tiles.iter().min_by(|a, b| a.2.total_cmp(&b.2))
    }
}

impl Figure for HeadCoverage {
    fn id(&self) -> &'static str {
        "head-coverage"
    }

    fn title(&self) -> &'static str {
        "Attention mass kept, by layer and KV head"
    }

    fn question(&self) -> &'static str {
        "Is what a policy loses spread over all heads, or are some heads starved?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Eviction, rank: 7 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Series(METRIC)]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let all = runs::eviction_runs_with(results, "attn_mass_recall");
        let budget = runs::middle_budget(&all);
        let chosen = runs::at_budget(&all, budget);
        let maps = maps(results, &chosen);
        let shown = &maps[..maps.len().min(MOST_PANELS)];
        let tiles = || shown.iter().flat_map(|map| &map.tiles);
        let (Some(layers), Some(heads), Some(scale)) = (
            Extent::of(tiles().map(|tile| tile.0)),
            Extent::of(tiles().map(|tile| tile.1)),
            Scale::of(tiles().map(|tile| tile.2)),
        ) else {
            return Ok(Outcome::nothing(
                "no finished eviction cell at the middle budget that evicts has a recall by KV head",
            ));
        };
        let at =
            budget.map_or(String::new(), |budget| format!(" at a budget of {} tokens", plain(budget, 4)));
        let more = if maps.len() > shown.len() {
            format!(" {} in the table only.", more_policies(maps.len() - shown.len()))
        } else {
            String::new()
        };
        let scene = Scene {
            title: format!("{}{at}", self.title()),
            panels: shown.iter().map(|map| panel(map, (layers, heads), &scale)).collect(),
            columns: 3,
            share_x: false,
            legend: scale.legend(""),
            caption: vec![
                caption::opening(
                    results,
                    &[METRIC],
                    caption::sequences_of(results, chosen.iter().map(|run| run.row)),
                ),
                format!(
                    "Mean over the query heads of a group, decode steps and sequences; one scale for all panels, and the full cache, which keeps all of it, has none.{more}"
                ),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let alt = clipped(&format!("{}{at}. {}", self.title(), described(shown)), 1200);
        behind(&maps).finish(self, scene, alt)
    }
}

/// The policies that evict, those that keep most first.
fn maps(results: &Results, chosen: &[&runs::Run]) -> Vec<Map> {
    let mut by_cell: BTreeMap<String, Vec<(f64, f64, f64)>> = BTreeMap::new();
    let cells: BTreeSet<&str> = chosen.iter().map(|run| run.cell.as_str()).collect();
    for (key, values) in samples_of(&results.series, METRIC, |cell| cells.contains(cell)) {
        let Some(layer) = key.layer else { continue };
        #[expect(clippy::cast_precision_loss, reason = "layers are few")]
        let tiles = values.iter().map(|sample| (layer as f64, sample.x, sample.value));
        by_cell.entry(key.cell).or_default().extend(tiles);
    }
    let mut maps: Vec<Map> = chosen
        .iter()
        .filter(|run| run.triggered != Some(false))
        .filter_map(|run| {
            let tiles = by_cell.get(&run.cell)?.clone();
            Some(Map { label: run.label.clone(), cell: run.cell.clone(), tiles })
        })
        .collect();
    maps.sort_by(|a, b| b.mean().total_cmp(&a.mean()).then(a.label.cmp(&b.label)));
    maps
}

fn panel(map: &Map, (layers, heads): (Extent, Extent), scale: &Scale) -> Panel {
    let around = |at: f64| (at - 0.5, at + 0.5);
    let tiles: Vec<(Span, f64)> = map
        .tiles
        .iter()
        .map(|(layer, head, value)| (Span { x: around(*head), y: around(*layer) }, *value))
        .collect();
    let mut marks = scale.marks(&tiles);
    if map.tiles.len() <= MOST_WORDS && heads.width() <= 3.0 && layers.width() <= 8.0 {
        marks.extend(scale.words(map.tiles.iter().map(|(layer, head, value)| (*head, *layer, *value))));
    }
    let axis = |label: &str, ends: Extent| {
        Axis::linear(label, Extent { lo: ends.lo - 0.5, hi: ends.hi + 0.5 }, TickRule::Whole)
            .naturally(ends.lo, ends.hi)
    };
    Panel {
        title: map.label.clone(),
        x: axis("KV head (0 = first)", heads),
        y: axis("Layer (0 = first)", layers),
        marks,
    }
}

fn described(maps: &[Map]) -> String {
    let one = |map: &Map| {
        let (layer, head, value) = map.least()?;
        Some(format!(
            "{}: mean {}, least {} in layer {}, KV head {}.",
            map.label,
            significant(map.mean(), 3),
            significant(*value, 3),
            plain(*layer, 3),
            plain(*head, 3)
        ))
    };
    maps.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

fn behind(maps: &[Map]) -> Behind {
    let mut table = Behind::new(&["policy", "cell", "layer", "kv_head", METRIC]);
    for map in maps {
        for (layer, head, value) in &map.tiles {
            table.row([
                map.label.as_str().into(),
                map.cell.as_str().into(),
                (*layer).into(),
                (*head).into(),
                (*value).into(),
            ]);
        }
    }
    table
}
