//! Eviction cells as runs: which policy, which budget, which seed, and the label that tells series apart.
//!
//! Rows are never silently mixed: when two cells differ in more than budget and seed, the difference goes into the label.

use super::{Reader, distinct, finished};
use crate::number;
use crate::theme::Palette;
use kvlab_sim::results::Results;
use kvlab_sim::table::Table;
use std::collections::{BTreeMap, BTreeSet};

/// A finished eviction cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    /// Its row in `cells`.
    pub(crate) row: usize,
    /// The cell's id.
    pub(crate) cell: String,
    /// Label of the policy stack.
    pub(crate) policy: String,
    /// The policy, plus what differs from other cells of the same budget and seed.
    pub(crate) label: String,
    /// C, the tokens resident after an eviction; absent for policies without a budget.
    pub(crate) budget: Option<f64>,
    /// Whether anything was evicted, when that is known.
    pub(crate) triggered: Option<bool>,
}

/// Settings that may tell two cells of one policy, budget and seed apart, with their short names.
const VARIANTS: &[(&str, &str)] = &[
    ("value_tokens", "N_v"),
    ("recent_tokens", "B"),
    ("sink_tokens", "sinks"),
    ("period_tokens", "period"),
    ("window_tokens", "window"),
];

/// The finished cells of study `eviction`, in table order.
pub(crate) fn eviction_runs(results: &Results) -> Vec<Run> {
    runs_in(results, "eviction", |_| true)
}

/// Those of them that have a value of `metric`; all of them when none has. Cells that say nothing about the metric (executed
/// ones about a proxy, say) then need not be told apart from those that do.
pub(crate) fn eviction_runs_with(results: &Results, metric: &str) -> Vec<Run> {
    let runs = study_runs(results, "eviction", metric);
    if runs.is_empty() { eviction_runs(results) } else { runs }
}

/// The finished cells of a study that have a value of `metric`, in table order.
pub(crate) fn study_runs(results: &Results, study: &str, metric: &str) -> Vec<Run> {
    let values = Reader::new(&results.cells, metric);
    runs_in(results, study, |row| values.number(row).is_some())
}

fn runs_in(results: &Results, wanted: &str, is_wanted: impl Fn(usize) -> bool) -> Vec<Run> {
    let cells = &results.cells;
    let column = |name| Reader::new(cells, name);
    let (study, cell, policy) = (column("study"), column("cell"), column("policy"));
    let (budget, evictions) = (column("budget_tokens"), column("evictions"));
    let (attend, store) = (column("attend"), column("store"));
    let mut runs: Vec<Run> = (0..cells.rows())
        .filter(|&row| finished(cells, row) && study.text(row).is_none_or(|study| study == wanted))
        .filter(|&row| is_wanted(row))
        .filter_map(|row| {
            let policy = policy.text(row)?.to_owned();
            Some(Run {
                row,
                cell: cell.text(row).unwrap_or_default().to_owned(),
                label: policy.clone(),
                policy,
                budget: budget.number(row),
                // A selection or a store acts without an eviction.
                triggered: evictions
                    .number(row)
                    .map(|count| count > 0.0 || attend.text(row).is_some() || store.text(row).is_some()),
            })
        })
        .collect();
    add_suffixes(cells, &mut runs);
    runs
}

/// Label, budget and seed: cells that agree in these are told apart by a setting, if at all.
type Twins<'a> = (&'a str, Option<u64>, Option<i64>);

fn add_suffixes(cells: &Table, runs: &mut [Run]) {
    let column = |name| Reader::new(cells, name);
    let (source, arm, seed) = (column("source"), column("arm"), column("seed"));
    for (reader, name) in [(source, "on "), (arm, ""), (column("scenario"), "study ")] {
        let known: BTreeSet<_> = runs.iter().map(|run| reader.text(run.row)).collect();
        if known.len() > 1 {
            for run in &mut *runs {
                run.label = format!("{}, {name}{}", run.label, reader.text(run.row).unwrap_or("?"));
            }
        }
    }
    for (name, short) in VARIANTS {
        let reader = column(name);
        let mut groups: BTreeMap<Twins<'_>, BTreeSet<Option<i64>>> = BTreeMap::new();
        for run in &*runs {
            let group = (run.label.as_str(), run.budget.map(f64::to_bits), seed.int(run.row));
            groups.entry(group).or_default().insert(reader.int(run.row));
        }
        let varied: BTreeSet<String> = groups
            .into_iter()
            .filter(|(_, values)| values.len() > 1)
            .map(|((label, ..), _)| label.to_owned())
            .collect();
        for run in runs.iter_mut().filter(|run| varied.contains(&run.label)) {
            let value = reader.int(run.row).map_or("none".to_owned(), number::count);
            run.label = format!("{}, {short} = {value}", run.label);
        }
    }
}

/// Looks for every series of the study.
pub(crate) fn palette(runs: &[Run]) -> Palette {
    Palette::new(runs.iter().map(|run| (run.policy.as_str(), run.label.as_str())))
}

/// The middle of the budgets at which some policy evicted, or of all budgets when none did.
pub(crate) fn middle_budget(runs: &[Run]) -> Option<f64> {
    let active =
        distinct(runs.iter().filter(|run| run.triggered != Some(false)).filter_map(|run| run.budget));
    let budgets = if active.is_empty() { distinct(runs.iter().filter_map(|run| run.budget)) } else { active };
    budgets.get(budgets.len().checked_sub(1)? / 2).copied()
}

/// Runs at `budget`, and those that have no budget: one a label, the first in table order.
pub(crate) fn at_budget(runs: &[Run], budget: Option<f64>) -> Vec<&Run> {
    let mut seen = BTreeSet::new();
    runs.iter()
        .filter(|run| run.budget.is_none() || run.budget.map(f64::to_bits) == budget.map(f64::to_bits))
        .filter(|run| seen.insert(run.label.as_str()))
        .collect()
}

/// At most `most` of the labels: `full` and `random` first, then those with the best mean, ties by name.
pub(crate) fn foremost<'a>(
    means: &BTreeMap<&'a str, f64>,
    most: usize,
    higher_is_better: bool,
) -> BTreeSet<&'a str> {
    let mut order: Vec<(&str, f64)> = means.iter().map(|(label, mean)| (*label, *mean)).collect();
    let is_reference = |label: &str| {
        let policy = label.split(", study ").next().unwrap_or(label);
        ["full", "random", "belady"].contains(&policy)
    };
    order.sort_by(|a, b| {
        let by_value = if higher_is_better { b.1.total_cmp(&a.1) } else { a.1.total_cmp(&b.1) };
        is_reference(b.0).cmp(&is_reference(a.0)).then(by_value).then(a.0.cmp(b.0))
    });
    order.into_iter().take(most).map(|(label, _)| label).collect()
}
