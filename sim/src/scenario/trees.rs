//! Stacks over branch trees, with the thresholds to sweep.

use super::checked::value;
use super::raw::{RawSweep, RawTreeStack, RawTrees, tree_parts};
use super::{ScenarioErrorKind, nearest};
use crate::policy::PolicyError;
use crate::steps::Axis;
use crate::trees::{TreeParts, TreeStack};

/// Stacks × swept parameters (× seeds where a policy draws).
#[derive(Clone, Debug, PartialEq)]
pub struct TreeStudy {
    /// The stacks.
    pub stacks: Vec<TreeChoice>,
    /// Thresholds whose step functions are computed, where a stack has them.
    pub steps: Vec<Axis>,
    /// Whether a row is written for every problem under every cell.
    pub per_problem: bool,
}

/// One stack and what is swept of it.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeChoice {
    /// Name in tables and plots.
    pub label: String,
    /// The parts as given.
    pub parts: TreeParts,
    /// Parameters to sweep, by `family.parameter`, with their values: every combination.
    pub sweep: Vec<(String, Vec<f64>)>,
    /// Parameters that move together: the first values of all, then the second ones, each with every combination of `sweep`. As many values for each.
    pub zip: Vec<(String, Vec<f64>)>,
}

/// One stack at one point of its sweep.
#[derive(Debug)]
pub struct TreePlan {
    /// Name of the stack.
    pub label: String,
    /// The seed; absent where no draw is made.
    pub seed: Option<u64>,
    /// The swept parameters and their values here.
    pub swept: Vec<(String, f64)>,
    /// The stack, or why there is none.
    pub stack: Result<TreeStack, PolicyError>,
}

/// Families that a sweep may name.
const FAMILIES: [&str; 4] = ["share", "verify", "exit", "winner"];

impl TreeStudy {
    /// An upper bound on the number of cells with so many seeds.
    pub(super) fn cells_at_most(&self, seeds: usize) -> u64 {
        let points = |choice: &TreeChoice| {
            let together = choice.zip.first().map_or(1, |(_, values)| values.len() as u64);
            choice.sweep.iter().fold(together, |n, (_, values)| n.saturating_mul(values.len() as u64))
        };
        let sum = self.stacks.iter().fold(0u64, |sum, choice| sum.saturating_add(points(choice)));
        sum.saturating_mul(seeds.max(1) as u64)
    }

    /// The cells: stacks in order, the last swept parameter fastest.
    pub(super) fn cells(&self, seeds: &[u64]) -> Vec<TreePlan> {
        let mut cells = Vec::new();
        for choice in &self.stacks {
            for swept in choice.points() {
                let parts = choice.parts_at(&swept);
                let stack = TreeStack::build(&parts);
                let drawn: Vec<Option<u64>> = match &stack {
                    Ok(stack) if stack.is_random() => seeds.iter().copied().map(Some).collect(),
                    _ => vec![None],
                };
                let mut stack = Some(stack);
                for seed in drawn {
                    // The first cell takes the stack that was built, the others build it again: policies are not copied.
                    let stack = stack.take().unwrap_or_else(|| TreeStack::build(&parts));
                    cells.push(TreePlan { label: choice.label.clone(), seed, swept: swept.clone(), stack });
                }
            }
        }
        cells
    }
}

impl TreeChoice {
    /// All parameters that move, those that move together first.
    pub fn moving(&self) -> impl Iterator<Item = &(String, Vec<f64>)> {
        self.zip.iter().chain(&self.sweep)
    }

    /// Every combination of swept values, the last parameter fastest and those that move together slowest.
    fn points(&self) -> Vec<Vec<(String, f64)>> {
        let mut points: Vec<Vec<(String, f64)>> = match self.zip.first() {
            None => vec![Vec::new()],
            Some((_, first)) => (0..first.len())
                .map(|at| self.zip.iter().map(|(key, values)| (key.clone(), values[at])).collect())
                .collect(),
        };
        for (key, values) in &self.sweep {
            points = points
                .into_iter()
                .flat_map(|point: Vec<(String, f64)>| {
                    values.iter().map(move |&value| {
                        let mut point = point.clone();
                        point.push((key.clone(), value));
                        point
                    })
                })
                .collect();
        }
        points
    }

    /// The parts with these values of swept parameters.
    #[must_use]
    pub fn parts_at(&self, swept: &[(String, f64)]) -> TreeParts {
        let mut parts = self.parts.clone();
        for (key, value) in swept {
            let (family, name) = key.split_once('.').unwrap_or((key, ""));
            let part = match family {
                "share" => &mut parts.share,
                "verify" => &mut parts.verify,
                "exit" => &mut parts.exit,
                _ => &mut parts.winner,
            };
            part.params = part.params.with(name, *value);
        }
        parts
    }
}

pub(super) fn checked(raw: RawTrees) -> Result<TreeStudy, ScenarioErrorKind> {
    if raw.stacks.is_empty() {
        return Err(value("trees.stacks", "an empty list", "at least one stack"));
    }
    let mut study = TreeStudy { stacks: Vec::new(), steps: raw.steps, per_problem: raw.per_problem };
    for (at, axis) in study.steps.iter().enumerate() {
        if study.steps[..at].contains(axis) {
            return Err(value("trees.steps", &format!("{} twice", axis.word()), "each threshold once"));
        }
    }
    for (at, raw) in raw.stacks.into_iter().enumerate() {
        let choice = stack(raw, &format!("trees.stacks[{at}]"))?;
        if study.stacks.iter().any(|known| known.label == choice.label) {
            return Err(ScenarioErrorKind::DuplicateLabel { list: "trees.stacks", label: choice.label });
        }
        study.stacks.push(choice);
    }
    Ok(study)
}

fn stack(raw: RawTreeStack, path: &str) -> Result<TreeChoice, ScenarioErrorKind> {
    let label = raw.label;
    if label.trim().is_empty() || label.chars().any(char::is_control) {
        return Err(value(&format!("{path}.label"), &format!("{label:?}"), "printable text"));
    }
    let parts = tree_parts([raw.share, raw.verify, raw.exit, raw.winner], raw.decode_exit);
    let sweep = moving(raw.sweep, &format!("{path}.sweep"))?;
    let zip = moving(raw.zip, &format!("{path}.zip"))?;
    for (key, values) in &sweep {
        if let Some(x) = repeated(values.iter().map(|x| vec![*x]).collect()) {
            let found = format!("{} twice", x[0]);
            return Err(value(&format!("{path}.sweep.{key}"), &found, "each value once"));
        }
    }
    if let Some((key, _)) = zip.iter().find(|(key, _)| sweep.iter().any(|(other, _)| other == key)) {
        let accepted = "each parameter once, under `sweep` or under `zip`";
        return Err(value(&format!("{path}.zip.{key}"), "under `sweep` too", accepted));
    }
    if let Some((first, values)) = zip.first()
        && let Some((key, other)) = zip.iter().find(|(_, other)| other.len() != values.len())
    {
        let found = format!("{} values", other.len());
        let accepted = format!("as many as {first} has: {}", values.len());
        return Err(value(&format!("{path}.zip.{key}"), &found, &accepted));
    }
    let rows = zip.first().map_or(0, |(_, values)| values.len());
    let row = |at: usize| zip.iter().map(|(_, values)| values[at]).collect();
    if let Some(found) = repeated((0..rows).map(row).collect()) {
        return Err(value(&format!("{path}.zip"), &format!("{found:?} twice"), "each row of values once"));
    }
    let choice = TreeChoice { label, parts, sweep, zip };
    // A stack that works nowhere is a mistake; one that works somewhere gives skipped cells for the rest. Each parameter is tried with the first
    // values of the others: that finds unknown names and types without walking a large product.
    let moving: Vec<(String, Vec<f64>)> = choice.moving().cloned().collect();
    let first: Vec<(String, f64)> = moving.iter().map(|(key, values)| (key.clone(), values[0])).collect();
    let mut refused = TreeStack::build(&choice.parts_at(&first)).err();
    for (at, (_, values)) in moving.iter().enumerate() {
        for &other in &values[1..] {
            if refused.is_none() {
                return Ok(choice);
            }
            let mut point = first.clone();
            point[at].1 = other;
            refused = TreeStack::build(&choice.parts_at(&point)).err();
        }
    }
    match refused {
        Some(source) => {
            Err(ScenarioErrorKind::Policy { path: format!("{path} (`{}`)", choice.label), source })
        }
        None => Ok(choice),
    }
}

/// A row that is there twice.
fn repeated(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let order = |a: &Vec<f64>, b: &Vec<f64>| {
        let mut each = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
        each.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    };
    rows.sort_unstable_by(order);
    let at = rows.windows(2).position(|pair| order(&pair[0], &pair[1]).is_eq())?;
    Some(rows.swap_remove(at))
}

/// The parameters that move, each with its values.
fn moving(raw: RawSweep, path: &str) -> Result<Vec<(String, Vec<f64>)>, ScenarioErrorKind> {
    let mut moving = Vec::new();
    for (key, grid) in raw.0 {
        let at = format!("{path}.{key}");
        let family = key.split_once('.').map_or(key.as_str(), |(family, _)| family);
        if !key.contains('.') || !FAMILIES.contains(&family) {
            let hint =
                nearest(family, FAMILIES).map_or(String::new(), |near| format!(" (did you mean `{near}`?)"));
            let accepted = format!("`family.parameter` with a family of {}{hint}", FAMILIES.join(", "));
            return Err(value(&at, &format!("`{key}`"), &accepted));
        }
        if let Some(x) = grid.values().iter().find(|x| !x.is_finite()) {
            return Err(value(&at, &x.to_string(), "finite numbers"));
        }
        moving.push((key, grid.values().to_vec()));
    }
    Ok(moving)
}
