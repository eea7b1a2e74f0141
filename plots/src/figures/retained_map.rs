//! `retained-map`: which tokens one KV head holds after each eviction, and what each is kept for.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{more_policies, percent, plain};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, Span, TickRule, clipped};
use crate::select::{Reader, caption, runs, spread};
use crate::theme::{GOLD, GREEN, Ink, MAGENTA, PURPLE, SHADES, TEXT, VERMILION};
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

/// Reasons in the order of the legend: the word in the table, what it means, and its ink. What scores decide is light, so that it can be told
/// from what is reserved without colours.
const REASONS: [(&str, &str, Ink); 10] = [
    ("sink", "sink: one of the first tokens", TEXT),
    ("prompt", "reserved: the prompt", PURPLE),
    ("value", "reserved for its value", VERMILION),
    ("reserved", "another reserve", MAGENTA),
    ("sampled", "sampled by score", SHADES[2]),
    ("score", "chosen by score", SHADES[4]),
    ("filled", "no weight was left", SHADES[0]),
    ("block", "in a protected block", GREEN),
    ("recent", "recent", GOLD),
    ("fits", "nothing had to go", SHADES[1]),
];
/// Policies that have a panel; more are in the table only.
const MOST_PANELS: usize = 4;
/// Evictions that have a row in a panel.
const MOST_ROWS: usize = 60;
/// Runs of positions that a panel draws: where an eviction leaves many, fewer evictions have a row.
const MOST_RUNS: usize = 6_000;

/// The figure.
#[derive(Debug)]
pub(crate) struct RetainedMap;

/// Positions that are held for one reason.
#[derive(Clone, Copy)]
struct Held<'a> {
    from: f64,
    upto: f64,
    reason: &'a str,
}

/// What one policy holds, by tokens seen.
struct Map<'a> {
    label: String,
    cell: String,
    evictions: BTreeMap<i64, Vec<Held<'a>>>,
}

impl Figure for RetainedMap {
    fn id(&self) -> &'static str {
        "retained-map"
    }

    fn title(&self) -> &'static str {
        "What is held after each eviction, and why"
    }

    fn question(&self) -> &'static str {
        "Which tokens does a policy hold on to, and what for?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Eviction, rank: 6 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Rows("retained")]
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["survival"]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let all = runs::eviction_runs_with(results, "attn_mass_recall");
        let budget = runs::middle_budget(&all);
        let chosen = runs::at_budget(&all, budget);
        let maps = maps(results, &chosen);
        let shown = foremost(&maps);
        let held = || shown.iter().flat_map(|map| map.evictions.values().flatten());
        let seen = Extent::of(shown.iter().flat_map(|map| map.evictions.keys().map(|at| real(*at))));
        let (Some(along), Some(seen)) =
            (Extent::of(held().flat_map(|held| [held.from, held.upto + 1.0])), seen)
        else {
            return Ok(Outcome::nothing(
                "no finished eviction cell at the middle budget has tokens that are told apart",
            ));
        };
        let used: BTreeSet<&str> = held().map(|held| held.reason).collect();
        let at = budget.map_or(String::new(), |budget| format!(": a budget of {} tokens", plain(budget, 4)));
        let scene = Scene {
            title: format!("{}{at}", self.title()),
            panels: shown.iter().map(|map| panel(map, along, seen)).collect(),
            columns: 2,
            share_x: false,
            legend: REASONS
                .iter()
                .filter(|(word, ..)| used.contains(word))
                .map(|(_, says, ink)| Key { label: (*says).to_owned(), sample: Sample::Tile { ink: *ink } })
                .collect(),
            caption: captions(results, &shown, maps.len() - shown.len()),
            synthetic: caption::is_synthetic(results),
        };
        let alt = clipped(&format!("{}{at}. {}", self.title(), described(&shown)), 1200);
        behind(&maps).finish(self, scene, alt)
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts stay far below 2^53")]
fn real(count: i64) -> f64 {
    count as f64
}

fn maps<'a>(results: &'a Results, chosen: &[&runs::Run]) -> Vec<Map<'a>> {
    let Some(table) = results.more("retained") else { return Vec::new() };
    let column = |name: &str| Reader::new(table, name);
    let (cell, seen, reason) = (column("cell"), column("seen"), column("reason"));
    let (from, upto) = (column("from"), column("upto"));
    let mut by_cell: BTreeMap<&str, BTreeMap<i64, Vec<Held<'_>>>> = BTreeMap::new();
    for row in 0..table.rows() {
        if let (Some(cell), Some(seen), Some(from), Some(upto), Some(reason)) =
            (cell.text(row), seen.int(row), from.number(row), upto.number(row), reason.text(row))
        {
            let held = Held { from, upto: upto.max(from), reason };
            by_cell.entry(cell).or_default().entry(seen).or_default().push(held);
        }
    }
    let map = |run: &&runs::Run| {
        let evictions = by_cell.get(run.cell.as_str())?.clone();
        Some(Map { label: run.label.clone(), cell: run.cell.clone(), evictions })
    };
    chosen.iter().filter_map(map).collect()
}

/// The policies with the most kinds of reasons, random choice last, in table order.
fn foremost<'a, 'm>(maps: &'m [Map<'a>]) -> Vec<&'m Map<'a>> {
    let kinds = |map: &Map<'_>| {
        map.evictions.values().flatten().map(|held| held.reason).collect::<BTreeSet<_>>().len()
    };
    let mut order: Vec<usize> = (0..maps.len()).collect();
    order.sort_by_key(|&at| (maps[at].label == "random", std::cmp::Reverse(kinds(&maps[at])), at));
    order.truncate(MOST_PANELS);
    order.sort_unstable();
    order.into_iter().map(|at| &maps[at]).collect()
}

/// The evictions that have a row, by tokens seen.
fn rows(map: &Map<'_>) -> Vec<i64> {
    let all: Vec<i64> = map.evictions.keys().copied().collect();
    let widest = map.evictions.values().map(Vec::len).max().unwrap_or(0).max(1);
    spread(&all, (MOST_RUNS / widest).clamp(2, MOST_ROWS))
}

/// A row reaches to the next one.
fn panel(map: &Map<'_>, along: Extent, seen: Extent) -> Panel {
    let rows = rows(map);
    let step =
        if rows.len() > 1 { seen.width() / real(i64::try_from(rows.len() - 1).unwrap_or(1)) } else { 1.0 };
    let end = seen.hi + step.max(1.0);
    let mut by_reason: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        let until = rows.get(at + 1).map_or(end, |next| real(*next));
        for held in &map.evictions[row] {
            let span = Span { x: (held.from, held.upto + 1.0), y: (real(*row), until) };
            by_reason.entry(held.reason).or_default().push(span);
        }
    }
    let marks = REASONS
        .iter()
        .filter_map(|(word, _, ink)| Some(Mark::Boxes { boxes: by_reason.remove(word)?, ink: *ink }))
        .collect();
    Panel {
        title: map.label.clone(),
        x: Axis::linear("Position (tokens)", along.at_least(1.0), TickRule::Round).naturally(0.0, f64::MAX),
        y: Axis::linear(
            "Tokens seen at the eviction",
            Extent { lo: seen.lo, hi: end }.at_least(1.0),
            TickRule::Round,
        ),
        marks,
    }
}

fn captions(results: &Results, shown: &[&Map<'_>], left: usize) -> Vec<String> {
    let mut second = String::new();
    if let Some(table) = results.more("retained") {
        let first = |name: &str| Reader::new(table, name).int(0);
        if let (Some(sequence), Some(layer), Some(head)) =
            (first("sequence"), first("layer"), first("kv_head"))
        {
            second.push_str(&format!(
                "Sequence {sequence}, layer {layer}, KV head {head}, each counted from 0. "
            ));
        }
    }
    second.push_str("A row shows what is held from one eviction to the next; tokens seen since then are left out. What is blank to the left of the recent tokens is evicted. Reasons are the stack\u{2019}s own.");
    if shown.iter().any(|map| rows(map).len() < map.evictions.len()) {
        second.push_str(" Of many evictions, some have a row, evenly spread.");
    }
    if left > 0 {
        second.push_str(&format!(" {} in the table only.", more_policies(left)));
    }
    vec![caption::opening(results, &["survival"], caption::one_sequence(results, "one")), second]
}

fn described(maps: &[&Map<'_>]) -> String {
    let one = |map: &&Map<'_>| {
        let (seen, held) = map.evictions.last_key_value()?;
        let tokens = |held: &Held<'_>| held.upto - held.from + 1.0;
        let all: f64 = held.iter().map(tokens).sum();
        let of = |(word, ..): &(&str, &str, Ink)| {
            let share = held.iter().filter(|held| held.reason == *word).map(tokens).sum::<f64>() / all;
            (share > 0.0).then(|| format!("{word} {}", percent(share)))
        };
        let shares: Vec<String> = REASONS.iter().filter_map(of).collect();
        Some(format!("{} after {} tokens: {}.", map.label, plain(real(*seen), 6), shares.join(", ")))
    };
    maps.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

fn behind(maps: &[Map<'_>]) -> Behind {
    let mut table =
        Behind::new(&["policy", "cell", "seen_tokens", "from_position", "upto_position", "reason"]);
    for map in maps {
        for (seen, held) in &map.evictions {
            for held in held {
                table.row([
                    map.label.as_str().into(),
                    map.cell.as_str().into(),
                    Some(*seen).into(),
                    held.from.into(),
                    held.upto.into(),
                    held.reason.into(),
                ]);
            }
        }
    }
    table
}
