//! `wording-similarity`: how similar branches are to the root, by how far their wording is from the root's.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{count, plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, Span, TickRule, clipped};
use crate::select::{Reader, caption, distinct, spread};
use crate::theme::{Dash, MUTED, Marker, SHADES, Stroke, TEXT, VERMILION};
use kvlab_sim::results::Results;
use std::collections::BTreeMap;

/// What the levels mean.
const LEVELS: [&str; 4] = ["identical", "minor rewording", "other structure", "other framing"];
/// Stacks with a panel of their own; more are in the table only.
const MOST_PANELS: usize = 4;
/// Lines for τ in a panel.
const MOST_TAUS: usize = 8;
const TAU: Stroke = Stroke { ink: VERMILION, width: 1.4, dash: Dash::Dashed };

/// The figure.
#[derive(Debug)]
pub(crate) struct WordingSimilarity;

/// Quantiles of one level: from least to most.
struct Level {
    level: i64,
    quantiles: [f64; 5],
    branches: i64,
    sharing: i64,
    both: i64,
    changed: i64,
}

/// Stacks with equal similarities: gates that differ in τ only.
struct Gate {
    stacks: Vec<String>,
    taus: Vec<f64>,
    levels: Vec<Level>,
}

impl Figure for WordingSimilarity {
    fn id(&self) -> &'static str {
        "wording-similarity"
    }

    fn title(&self) -> &'static str {
        "Similarity σ to the root, by wording"
    }

    fn question(&self) -> &'static str {
        "Does the similarity gate tell a reworded prefix from another question?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Trees, rank: 0 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Rows("wordings")]
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["share_rate"]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let gates = gates(results);
        let shown = &gates[..gates.len().min(MOST_PANELS)];
        let levels = || shown.iter().flat_map(|gate| &gate.levels);
        let ends =
            levels().flat_map(|level| level.quantiles).chain(shown.iter().flat_map(|g| g.taus.clone()));
        let (Some(heights), false) = (Extent::of(ends), levels().next().is_none()) else {
            return Ok(Outcome::nothing("no stack has similarities by wording"));
        };
        let names = distinct(levels().map(|level| real(level.level)));
        let panels = shown.iter().map(|gate| panel(gate, heights, &names)).collect();
        let mut legend = vec![
            Key { label: "median".to_owned(), sample: Sample::Symbol { marker: Marker::Diamond, ink: TEXT } },
            Key { label: "10 % to 90 %".to_owned(), sample: Sample::Tile { ink: SHADES[3] } },
            Key {
                label: "least to most".to_owned(),
                sample: Sample::Line {
                    stroke: Stroke { ink: MUTED, width: 1.0, dash: Dash::Solid },
                    marker: None,
                },
            },
            Key {
                label: "τ: a branch shares from here on".to_owned(),
                sample: Sample::Line { stroke: TAU, marker: None },
            },
        ];
        if gates.len() > MOST_PANELS {
            let label = format!("{} more gates in the table only", gates.len() - MOST_PANELS);
            legend.push(Key { label, sample: Sample::Blank });
        }
        let most = shown.iter().map(|gate| gate.levels.iter().map(|level| level.branches).sum::<i64>()).max();
        let scene = Scene {
            title: self.title().to_owned(),
            panels,
            columns: if shown.len() > 1 { 2 } else { 1 },
            share_x: false,
            legend,
            caption: vec![
                caption::opening(
                    results,
                    &["share_rate"],
                    Some(format!("{} branches of all problems", count(most.unwrap_or(0)))),
                ),
                format!(
                    "Spread over branches, no confidence interval. {}",
                    changed(shown).unwrap_or_default()
                ),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let alt = clipped(&format!("{}. {}", self.title(), described(shown)), 1200);
        behind(&gates).finish(self, scene, alt)
    }
}

#[expect(clippy::cast_precision_loss, reason = "levels are few")]
fn real(level: i64) -> f64 {
    level as f64
}

/// In table order; stacks with the same similarities are one.
fn gates(results: &Results) -> Vec<Gate> {
    let Some(table) = results.more("wordings") else { return Vec::new() };
    let column = |name: &str| Reader::new(table, name);
    let quantiles = ["sigma_min", "sigma_p10", "sigma_p50", "sigma_p90", "sigma_max"].map(&column);
    let mut order: Vec<&str> = Vec::new();
    let mut by_group: BTreeMap<&str, Gate> = BTreeMap::new();
    for row in 0..table.rows() {
        let group = column("group").text(row).unwrap_or_default();
        let (Some(level), [Some(least), Some(low), Some(middle), Some(high), Some(most)]) =
            (column("level").int(row), quantiles.map(|reader| reader.number(row)))
        else {
            continue;
        };
        let gate = by_group.entry(group).or_insert_with(|| {
            order.push(group);
            let stack = column("stack").text(row).unwrap_or("?").to_owned();
            let own = column("tau").number(row);
            let taus = swept(results, &stack);
            Gate {
                taus: if taus.is_empty() { own.into_iter().collect() } else { spread(&taus, MOST_TAUS) },
                stacks: vec![stack],
                levels: Vec::new(),
            }
        });
        let int = |name: &str| column(name).int(row).unwrap_or(0);
        gate.levels.push(Level {
            level,
            quantiles: [least, low, middle, high, most],
            branches: int("branches"),
            sharing: int("sharing"),
            both: int("both_answers"),
            changed: int("changed_answers"),
        });
    }
    let mut gates: Vec<Gate> = Vec::new();
    for group in order {
        let Some(gate) = by_group.remove(group) else { continue };
        let same = |known: &&mut Gate| {
            let all = |gate: &Gate| -> Vec<(i64, [u64; 5])> {
                gate.levels.iter().map(|level| (level.level, level.quantiles.map(f64::to_bits))).collect()
            };
            all(known) == all(&gate)
        };
        match gates.iter_mut().find(same) {
            Some(known) => {
                known.stacks.extend(gate.stacks);
                known.taus = distinct(known.taus.iter().copied().chain(gate.taus));
            }
            None => gates.push(gate),
        }
    }
    gates
}

/// The τ of the cells of a stack.
fn swept(results: &Results, stack: &str) -> Vec<f64> {
    let column = |name: &str| Reader::new(&results.cells, name);
    let (policy, tau) = (column("policy"), column("tau"));
    let rows = (0..results.cells.rows()).filter(|&row| policy.text(row) == Some(stack));
    distinct(rows.filter_map(|row| tau.number(row)))
}

fn panel(gate: &Gate, heights: Extent, names: &[f64]) -> Panel {
    let at = |level: &Level| real(level.level);
    let all = |pick: fn(&[f64; 5]) -> (f64, f64)| -> Vec<(f64, f64, f64)> {
        gate.levels
            .iter()
            .map(|level| {
                let (lo, hi) = pick(&level.quantiles);
                (at(level), lo, hi)
            })
            .collect()
    };
    let half = 0.16;
    let boxes = all(|q| (q[1], q[3]))
        .into_iter()
        .map(|(x, lo, hi)| Span { x: (x - half, x + half), y: (lo, hi.max(lo + heights.width() * 1e-3)) });
    let mut marks = vec![
        Mark::Whiskers { points: all(|q| (q[0], q[4])), ink: MUTED },
        Mark::Boxes { boxes: boxes.collect(), ink: SHADES[3] },
        Mark::Symbols {
            points: gate.levels.iter().map(|level| (at(level), level.quantiles[2])).collect(),
            marker: Marker::Diamond,
            ink: TEXT,
        },
    ];
    marks.extend(gate.taus.iter().map(|tau| Mark::Across { y: *tau, stroke: TAU }));
    let lo = names.first().copied().unwrap_or(0.0);
    let hi = names.last().copied().unwrap_or(0.0);
    let named = names.iter().map(|level| (*level, name(*level))).collect();
    Panel {
        title: clipped(&gate.stacks.join(", "), 60),
        x: Axis::linear(
            "Wording of the branch\u{2019}s prefix",
            Extent { lo: lo - 0.5, hi: hi + 0.5 },
            TickRule::Named(named),
        ),
        y: Axis::linear(
            "Similarity σ to the root",
            heights.at_least(0.02).padded(0.06, 0.06),
            TickRule::Round,
        )
        .naturally(-1.0, 1.0),
        marks,
    }
}

fn name(level: f64) -> String {
    LEVELS
        .iter()
        .zip(0_u32..)
        .find(|(_, at)| f64::from(*at).total_cmp(&level).is_eq())
        .map_or_else(|| plain(level, 3), |(name, _)| (*name).to_owned())
}

/// How often an answer changes behind the root's prefix.
fn changed(gates: &[Gate]) -> Option<String> {
    let levels = &gates.first()?.levels;
    let parts: Vec<String> = levels
        .iter()
        .filter(|level| level.both > 0)
        .map(|level| {
            format!(
                "{} of {} at \u{201c}{}\u{201d}",
                count(level.changed),
                count(level.both),
                name(real(level.level))
            )
        })
        .collect();
    (!parts.is_empty()).then(|| {
        format!("Branches that answer otherwise behind the root\u{2019}s prefix: {}.", parts.join(", "))
    })
}

fn described(gates: &[Gate]) -> String {
    let one = |gate: &Gate| {
        let levels: Vec<String> = gate
            .levels
            .iter()
            .map(|level| format!("{} median {}", name(real(level.level)), significant(level.quantiles[2], 3)))
            .collect();
        let taus: Vec<String> = gate.taus.iter().map(|tau| plain(*tau, 4)).collect();
        format!("{}: {}; τ {}.", gate.stacks.join(", "), levels.join(", "), taus.join(", "))
    };
    gates.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn behind(gates: &[Gate]) -> Behind {
    let mut table = Behind::new(&[
        "stacks",
        "taus",
        "level",
        "wording",
        "branches",
        "sigma_min",
        "sigma_p10",
        "sigma_p50",
        "sigma_p90",
        "sigma_max",
        "sharing_at_first_tau",
        "both_answers",
        "changed_answers",
    ]);
    for gate in gates {
        let taus: Vec<String> = gate.taus.iter().map(|tau| plain(*tau, 6)).collect();
        for level in &gate.levels {
            let [least, low, middle, high, most] = level.quantiles;
            table.row([
                gate.stacks.join(", ").as_str().into(),
                taus.join(", ").as_str().into(),
                Some(level.level).into(),
                name(real(level.level)).as_str().into(),
                Some(level.branches).into(),
                least.into(),
                low.into(),
                middle.into(),
                high.into(),
                most.into(),
                Some(level.sharing).into(),
                Some(level.both).into(),
                Some(level.changed).into(),
            ]);
        }
    }
    table
}
