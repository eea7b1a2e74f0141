//! Thresholds and budgets that can never act, decide nothing, or repeat one another, with the number that shows it.

use super::exit::unseen;
use super::repeats::Place;
use crate::num;
use crate::policy::exit::LayerFacts;
use crate::policy::exit::entropy::{Lens, Params};
use crate::results::{CellRow, NOTES};
use crate::scenario::ExitPlan;
use crate::table::Value;
use crate::trace::LensRow;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What is said about the thresholds of one cell, and where they lie. Whether it repeats another cell is left to [`super::repeats`].
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// In words, each with a number.
    pub(super) findings: Vec<String>,
    pub(super) places: Vec<Place>,
}

impl Found {
    /// Writes it into a row.
    pub(super) fn note(&self, row: &mut CellRow) {
        if !self.findings.is_empty() {
            let mut said: Vec<String> = self.findings.clone();
            if let Value::Text(before) = row.get("lint") {
                said.insert(0, before);
            }
            row.text("lint", said.join("; "));
        }
        if !self.places.is_empty() {
            row.text(NOTES, serde_json::to_string(&self.places).unwrap_or_default());
        }
    }
}

/// What findings about exit cells are taken from: recorded decode positions under each lens, and what would happen without a threshold.
pub(super) struct ExitLint {
    layers: u16,
    largest_possible: f64,
    /// By lens; why there is nothing to go by where there is not.
    observed: BTreeMap<&'static str, Result<Observed, String>>,
    /// (lens, bits of ε) → the largest entropy at which ε alone would stop a pass.
    stops_at: BTreeMap<(&'static str, u64), Option<f64>>,
    /// (lens, bits of θ) → the largest change with which θ alone would stop a pass.
    stops_with: BTreeMap<(&'static str, u64), Option<f64>>,
}

/// The entropies that could stop a pass under one lens, and the changes, from the first layer that counts: nats, rising, each once.
#[derive(Clone, Debug, PartialEq)]
struct Observed {
    entropies: Vec<f64>,
    changes: Vec<f64>,
}

impl Observed {
    /// Over `rows` (`layers` entries a position); nothing without rows.
    fn of(rows: &[LensRow], layers: u16, min_layer: u16, lens: Lens) -> Option<Self> {
        let (mut entropies, mut changes) = (Vec::new(), Vec::new());
        for position in rows.chunks_exact(usize::from(layers)) {
            let counted: Vec<f64> = position
                .iter()
                .skip(usize::from(min_layer))
                .filter_map(|row| lens.entropy_nats(row).map(f64::from))
                .filter(|e| e.is_finite())
                .collect();
            changes.extend(counted.windows(2).map(|pair| (pair[1] - pair[0]).abs()));
            // The first entropy that counts only serves as "before": no exit is possible there.
            entropies.extend(counted.iter().skip(1));
        }
        let sorted = |mut values: Vec<f64>| {
            values.par_sort_unstable_by(f64::total_cmp);
            values.dedup_by(|a, b| a.total_cmp(b).is_eq());
            (!values.is_empty()).then_some(values)
        };
        Some(Self { entropies: sorted(entropies)?, changes: sorted(changes)? })
    }
}

impl ExitLint {
    /// Over the decode positions of all sequences, `[pos][layer]` in `rows`.
    pub(super) fn of(plans: &[ExitPlan], rows: &[LensRow], layers: u16, vocab: u32) -> Self {
        let mut lint = Self {
            layers,
            largest_possible: num::ln(f64::from(vocab)),
            observed: BTreeMap::new(),
            stops_at: BTreeMap::new(),
            stops_with: BTreeMap::new(),
        };
        let facts: Vec<LayerFacts> = rows.iter().map(LayerFacts::from).collect();
        for plan in plans {
            let Params { theta, epsilon, min_layer, .. } = plan.params;
            let word = plan.lens.word();
            let observed = || match unseen(plan, rows) {
                Some(left_out) => Err(left_out),
                None => Observed::of(rows, layers, min_layer, plan.lens)
                    .ok_or_else(|| nothing_observed(min_layer, layers)),
            };
            lint.observed.entry(word).or_insert_with(observed);
            let largest = |params: Params, of: fn(&Params, &[LayerFacts], usize) -> f64| {
                largest_at_exit(&facts, layers, &params, of)
            };
            lint.stops_at.entry((word, epsilon.to_bits())).or_insert_with(|| {
                let entropy: fn(&Params, &[LayerFacts], usize) -> f64 =
                    |params, pass, at| pass[at].entropy(params.lens);
                largest(Params { theta: f64::INFINITY, ..plan.params }, entropy)
            });
            lint.stops_with
                .entry((word, theta.to_bits()))
                .or_insert_with(|| largest(Params { epsilon: f64::INFINITY, ..plan.params }, largest_change));
        }
        lint
    }

    /// What is to be said about a cell.
    pub(super) fn found(&self, plan: &ExitPlan) -> Found {
        let Params { theta, epsilon, min_layer, patience, .. } = plan.params;
        let word = plan.lens.word();
        let only = |finding: String| Found { findings: vec![finding], places: Vec::new() };
        let observed = match self.observed.get(word) {
            Some(Ok(observed)) => observed,
            Some(Err(why)) => return only(why.clone()),
            None => return Found::default(),
        };
        if !can_exit(&plan.params, self.layers) {
            return only(too_patient(&plan.params, self.layers));
        }
        let mut found = Found::default();
        let mut alone = Vec::new();
        alone.extend(theta_alone(theta, &observed.entropies, self.largest_possible));
        let stops_at = self.stops_at.get(&(word, epsilon.to_bits())).copied().flatten();
        if alone.is_empty() {
            alone.extend(undecisive("theta", theta, "entropy", stops_at));
        }
        let said = alone.len();
        alone.extend(epsilon_alone(epsilon, &observed.changes));
        let stops_with = self.stops_with.get(&(word, theta.to_bits())).copied().flatten();
        if alone.len() == said {
            alone.extend(undecisive("epsilon", epsilon, "change", stops_with));
        }
        found.findings = alone;
        let group = format!("exit {word} {min_layer} {patience}");
        found.places = vec![
            Place::of(&group, "theta", theta, &observed.entropies),
            Place::of(&group, "epsilon", epsilon, &observed.changes),
        ];
        found
    }
}

/// The largest of what `of` reads where a pass under `params` stops before its last layer, over all positions; nothing where none does.
fn largest_at_exit(
    facts: &[LayerFacts],
    layers: u16,
    params: &Params,
    of: fn(&Params, &[LayerFacts], usize) -> f64,
) -> Option<f64> {
    let one = |pass: &[LayerFacts]| {
        let run = params.layers_run(pass, params.theta, params.epsilon);
        (run < layers).then(|| of(params, pass, usize::from(run) - 1))
    };
    let larger = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    facts.par_chunks_exact(usize::from(layers.max(1))).map(one).reduce(|| None, larger)
}

/// The largest of the changes that have to be small for an exit after the zero-based layer `at`.
fn largest_change(params: &Params, pass: &[LayerFacts], at: usize) -> f64 {
    let entropy = |layer: usize| pass[layer].entropy(params.lens);
    let first = at.saturating_sub(usize::from(params.patience));
    (first + 1..=at).map(|layer| (entropy(layer) - entropy(layer - 1)).abs()).fold(0.0, f64::max)
}

fn theta_alone(theta: f64, entropies: &[f64], largest_possible: f64) -> Option<String> {
    let (smallest, largest) = (entropies.first()?, entropies.last()?);
    if theta >= largest_possible {
        return Some(format!(
            "theta is vacuous: {theta:.3} nats is not below the largest possible entropy, ln V = {largest_possible:.3}"
        ));
    }
    if theta > *largest {
        return Some(format!(
            "theta is vacuous: {theta:.3} nats is above every observed entropy (largest {largest:.3})"
        ));
    }
    (theta <= *smallest).then(|| {
        format!("theta is unreachable: no observed entropy is below {theta:.3} nats (smallest {smallest:.3})")
    })
}

fn epsilon_alone(epsilon: f64, changes: &[f64]) -> Option<String> {
    let (smallest, largest) = (changes.first()?, changes.last()?);
    if epsilon > *largest {
        return Some(format!(
            "epsilon is vacuous: {epsilon:.3} nats is above every observed change (largest {largest:.3})"
        ));
    }
    (epsilon <= *smallest).then(|| {
        format!(
            "epsilon is unreachable: no observed change is below {epsilon:.3} nats (smallest {smallest:.3})"
        )
    })
}

/// What is compared with a threshold where the other one alone would stop a pass: when all of it is below, leaving the threshold out changes nothing.
fn undecisive(axis: &str, value: f64, what: &str, largest: Option<f64>) -> Option<String> {
    match largest {
        Some(largest) if value > largest => Some(format!(
            "{axis} is never decisive: without it every pass stops after the same layer, the other threshold as it is (largest {what} at a stop {largest:.3} nats)"
        )),
        Some(_) => None,
        None => Some(format!("{axis} is never decisive: the other threshold alone stops no pass")),
    }
}

/// Whether an exit before the last layer is possible at all.
fn can_exit(params: &Params, layers: u16) -> bool {
    u32::from(params.min_layer) + u32::from(params.patience) + 1 < u32::from(layers)
}

/// The note on a policy whose earliest exit is the last layer or later.
fn too_patient(params: &Params, layers: u16) -> String {
    let Params { min_layer, patience, .. } = *params;
    format!(
        "theta is unreachable: with min_layer {min_layer} and patience {patience} no exit is possible before the last of {layers} layers"
    )
}

/// The note on thresholds that no entropy is compared with.
fn nothing_observed(min_layer: u16, layers: u16) -> String {
    format!(
        "theta is unreachable: no entropy is compared with it (min_layer {min_layer}, {layers} layers, and at least one \
         decode position with lens facts is needed)"
    )
}

/// The note on a stack that never had to evict.
#[must_use]
pub fn never_triggered(budget: Option<u32>, period: Option<u32>, longest: u32) -> String {
    let budget = budget.map_or_else(String::new, |b| format!(" of {b} tokens"));
    let period = period.map_or_else(String::new, |p| format!(", one in {p} tokens"));
    format!(
        "the policy never triggered: the budget{budget} was not exceeded at any due step{period} (longest sequence {longest} tokens); results equal the full cache"
    )
}
