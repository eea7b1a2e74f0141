//! What cells are compared with.

use super::checked::value;
use super::raw::RawCompare;
use super::{Scenario, ScenarioErrorKind, nearest};
use serde::{Deserialize, Serialize};

/// A baseline that every other cell of its study is compared with, on the same items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Label of an eviction policy or a stack over branch trees.
    pub baseline: String,
    /// What is paired.
    pub by: Pairing,
}

/// What is paired in a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// Rows of the same item: the problem or prompt.
    #[default]
    Item,
}

pub(super) fn checked(raw: RawCompare, scenario: &Scenario) -> Result<Compare, ScenarioErrorKind> {
    let evictions = scenario.eviction.iter().flat_map(|study| &study.policies).map(|choice| &choice.label);
    let stacks = scenario.trees.iter().flat_map(|study| &study.stacks);
    let labels: Vec<&str> =
        evictions.chain(stacks.clone().map(|stack| &stack.label)).map(String::as_str).collect();
    let found = format!("`{}`", raw.baseline);
    if labels.is_empty() {
        let accepted = "a study with `eviction` or `trees`: other cells have no rows by item";
        return Err(value("compare.baseline", &found, accepted));
    }
    if !labels.contains(&raw.baseline.as_str()) {
        let near = nearest(&raw.baseline, labels.iter().copied());
        let hint = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
        return Err(value("compare.baseline", &found, &format!("a label of {}{hint}", labels.join(", "))));
    }
    let is_swept = |sweep: &[(String, Vec<f64>)]| sweep.iter().any(|(_, values)| values.len() > 1);
    if stacks.clone().any(|stack| stack.label == raw.baseline && is_swept(&stack.sweep)) {
        let accepted = "a stack at one point: one with a sweep is several cells";
        return Err(value("compare.baseline", &found, accepted));
    }
    if scenario.trees.as_ref().is_some_and(|study| !study.per_problem) {
        return Err(value("trees.per_problem", "false beside `compare`", "true: comparisons are by problem"));
    }
    Ok(Compare { baseline: raw.baseline, by: raw.by })
}
