//! What cells are compared with.

use super::checked::value;
use super::raw::RawCompare;
use super::{Scenario, ScenarioErrorKind, TreeChoice, nearest};
use crate::policy::exit::entropy::Lens;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A baseline that every other cell of its study is compared with, on the same items.
#[derive(Clone, Debug, PartialEq)]
pub struct Compare {
    /// Label of a policy of evictions or of a pool, of a stack over branch trees or of an arm that serves them; absent where only exits are compared.
    pub baseline: Option<String>,
    /// The exit cell that others are compared with; absent where none is.
    pub exit: Option<ExitPoint>,
    /// What is paired.
    pub by: Pairing,
}

/// One cell of an exit study.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExitPoint {
    /// θ, one of the study's.
    pub theta: f64,
    /// ε, one of the study's.
    pub epsilon: f64,
    /// The lens; absent for that of the cell which is compared.
    #[serde(default)]
    pub lens: Option<Lens>,
}

/// What is paired in a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// Rows of the same item: the problem or prompt.
    #[default]
    Item,
}

pub(super) fn checked(raw: RawCompare, scenario: &Scenario) -> Result<Compare, ScenarioErrorKind> {
    if raw.baseline.is_none() && raw.exit.is_none() {
        let accepted =
            "`baseline`, the label of a policy or stack, or `exit`, the thresholds of an exit cell";
        return Err(value("compare", "without a baseline", accepted));
    }
    if let Some(baseline) = &raw.baseline {
        check_label(baseline, scenario)?;
    }
    if let Some(point) = raw.exit {
        check_point(point, scenario)?;
    }
    Ok(Compare { baseline: raw.baseline, exit: raw.exit, by: raw.by })
}

fn check_label(baseline: &str, scenario: &Scenario) -> Result<(), ScenarioErrorKind> {
    let evictions = scenario.eviction.iter().flat_map(|study| &study.policies).map(|choice| &choice.label);
    let pools = scenario.pool.iter().flat_map(|study| &study.policies).map(|choice| &choice.label);
    let stacks = scenario.trees.iter().flat_map(|study| &study.stacks);
    let recorded = scenario.serve.iter().filter(|study| study.is_recorded());
    let arms = recorded.flat_map(|study| &study.arms).map(|arm| &arm.label);
    let all = evictions.chain(pools).chain(stacks.clone().map(|stack| &stack.label)).chain(arms);
    let labels: Vec<&str> = all.map(String::as_str).collect();
    let found = format!("`{baseline}`");
    if labels.is_empty() {
        let accepted = "a study with `eviction`, `pool`, `trees` or recorded problems under `serve`; exits are compared by `compare.exit`";
        return Err(value("compare.baseline", &found, accepted));
    }
    if !labels.contains(&baseline) {
        let near = nearest(baseline, labels.iter().copied());
        let hint = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
        return Err(value("compare.baseline", &found, &format!("a label of {}{hint}", labels.join(", "))));
    }
    let is_swept = |stack: &TreeChoice| stack.moving().any(|(_, values)| values.len() > 1);
    if stacks.clone().any(|stack| stack.label == baseline && is_swept(stack)) {
        let accepted = "a stack at one point: one with a sweep is several cells";
        return Err(value("compare.baseline", &found, accepted));
    }
    if scenario.trees.as_ref().is_some_and(|study| !study.per_problem) {
        return Err(value("trees.per_problem", "false beside `compare`", "true: comparisons are by problem"));
    }
    Ok(())
}

fn check_point(point: ExitPoint, scenario: &Scenario) -> Result<(), ScenarioErrorKind> {
    let Some(study) = &scenario.exit else {
        return Err(value("compare.exit", "given", "a study with `exit` beside it"));
    };
    for (name, given, known) in
        [("theta", point.theta, &study.theta), ("epsilon", point.epsilon, &study.epsilon)]
    {
        if !known.iter().any(|known| is_same(*known, given)) {
            let known: Vec<String> = known.iter().map(f64::to_string).collect();
            let accepted = format!("a value of exit.{name}: {}", known.join(", "));
            return Err(value(&format!("compare.exit.{name}"), &given.to_string(), &accepted));
        }
    }
    if let Some(lens) = point.lens.filter(|lens| !study.lenses.contains(lens)) {
        let known: Vec<&str> = study.lenses.iter().map(|lens| lens.word()).collect();
        let accepted = format!("a value of exit.lens: {}", known.join(", "));
        return Err(value("compare.exit.lens", &format!("`{}`", lens.word()), &accepted));
    }
    Ok(())
}

/// A threshold on a grid has more digits than one types.
fn is_same(known: f64, given: f64) -> bool {
    (known - given).abs() <= 1e-9 * known.abs().max(1.0)
}

impl ExitPoint {
    /// Whether these are its thresholds, in the study's unit, as far as it says.
    #[must_use]
    pub fn is_at(&self, theta: f64, epsilon: f64, lens: &str) -> bool {
        is_same(theta, self.theta)
            && is_same(epsilon, self.epsilon)
            && self.lens.is_none_or(|wanted| wanted.word() == lens)
    }

    /// `theta 0.5, epsilon 1`.
    #[must_use]
    pub fn words(&self) -> String {
        let lens = self.lens.map_or_else(String::new, |lens| format!(", {}", lens.word()));
        format!("theta {}, epsilon {}{lens}", self.theta, self.epsilon)
    }
}
