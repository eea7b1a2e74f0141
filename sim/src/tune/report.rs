//! What `kvlab tune` says, as data.

use super::Method;
use super::measured::{Loss, Test};
use crate::scenario::{Bound, Constraint, Objective};
use serde::Serialize;
use serde_json::{Map, Value};

/// Named values of a setting, in the order of the scenario.
pub type Setting = Map<String, Value>;

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuneReport {
    /// The scenario's id.
    pub scenario: String,
    /// Name of the trace.
    pub source: String,
    /// SHA-256 of the trace.
    pub digest: String,
    /// Whether it was generated and not recorded.
    pub synthetic: bool,
    /// `trees` or `eviction`.
    pub study: &'static str,
    /// What is tuned: the stack's label, or the policies.
    pub tuned: String,
    /// The objective.
    pub objective: Objective,
    /// The constraints.
    pub constraints: Vec<Constraint>,
    /// What the constraints are about: `decision` or `proxy`.
    pub evidence: &'static str,
    /// δ: the probability that a setting is recommended whose constraints do not hold.
    pub delta: f64,
    /// How tests are corrected for each other.
    pub method: Method,
    /// The seed of the split.
    pub seed: u64,
    /// Problems by part.
    pub problems: Parts,
    /// What was looked at.
    pub searched: Searched,
    /// The settings tested, from careful to bold.
    pub path: Vec<PathRow>,
    /// The recommendation; absent when none is certified.
    pub chosen: Option<Chosen>,
    /// What is missing for the first setting that is not certified; absent when all are.
    pub shortfall: Option<Shortfall>,
    /// What would have been chosen by looking at the same problems without any test.
    pub unguarded: Option<Unguarded>,
    /// The recommendation on another trace.
    pub transfer: Option<Transfer>,
    /// What has to be said with it.
    pub notes: Vec<String>,
}

/// How many problems are for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Search.
    pub search: usize,
    /// Calibration.
    pub calibration: usize,
    /// Test.
    pub test: usize,
}

/// What the search looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Searched {
    /// Settings measured.
    pub settings: usize,
    /// The values of each part of a setting.
    pub axes: Vec<SearchedAxis>,
    /// Settings left out on the way, by search problems alone, with the reason.
    pub dropped: Vec<Dropped>,
    /// Settings that cannot run on some problems that they are tested or measured on.
    pub unrun: Vec<Unrun>,
}

/// A setting that cannot run on some problems: each of them is a whole loss in every constraint, so that none goes unseen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unrun {
    /// The setting.
    pub setting: Setting,
    /// On how many problems.
    pub problems: usize,
    /// Of how many, in all parts.
    pub of: usize,
    /// The first reason.
    pub reason: String,
}

/// The values tried of one part of a setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchedAxis {
    /// Its name.
    pub name: String,
    /// The values tried, from careful to bold.
    pub values: Vec<f64>,
    /// Distinct ones that could have been told apart on the search problems; `values` are spread evenly over their ranks.
    pub distinct: usize,
}

/// A setting that the search gave up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dropped {
    /// The setting.
    pub setting: Setting,
    /// In which round.
    pub round: usize,
    /// Why, with numbers.
    pub reason: String,
}

/// One test of the path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathRow {
    /// The setting.
    pub setting: Setting,
    /// The objective on search and calibration problems.
    pub objective: Option<f64>,
    /// The losses of each constraint on calibration problems.
    pub losses: Vec<Loss>,
    /// The p-value of "some constraint does not hold".
    pub p_value: f64,
    /// Whether that is rejected at level δ, all tests taken together.
    pub certified: bool,
}

/// The recommendation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chosen {
    /// The setting.
    pub setting: Setting,
    /// What is guaranteed, in words with numbers, one sentence a constraint.
    pub guarantee: Vec<String>,
    /// What it gives on the test problems.
    pub test: Vec<Measurement>,
    /// Settings beside it.
    pub neighbours: Vec<Neighbour>,
    /// A scenario with the setting as its only stack, for `kvlab sweep`.
    pub yaml: String,
}

/// A metric on some problems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Id of the metric.
    pub metric: &'static str,
    /// `decision`, `proxy`, `executed` or `recorded`.
    pub evidence: &'static str,
    /// Σ numerator / Σ denominator.
    pub value: Option<f64>,
    /// 95 % bootstrap interval by problem.
    pub interval: Option<(f64, f64)>,
    /// Σ numerator.
    pub num: f64,
    /// Σ denominator.
    pub den: f64,
    /// Problems with a denominator.
    pub n: u64,
    /// The same of the setting that changes nothing.
    pub unchanged: Option<f64>,
    /// The mean difference to it, problem by problem, and its interval.
    pub difference: Option<(f64, Option<(f64, f64)>)>,
    /// For a constraint: the bound, whether it holds on these problems, and the one-sided confidence bound of the loss at level δ.
    pub constraint: Option<Held>,
}

/// A constraint on problems that played no part in the choice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Held {
    /// The bound.
    pub bound: Bound,
    /// Whether these problems meet it, without any allowance for chance.
    pub is_met: bool,
    /// The losses.
    pub loss: Loss,
    /// What the mean loss is at most, with confidence 1 − δ.
    pub loss_at_most: f64,
}

/// A setting beside the recommended one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Neighbour {
    /// What differs, e.g. `tau 0.82 → 0.8`.
    pub change: String,
    /// The objective on search and calibration problems.
    pub objective: Option<f64>,
    /// The p-value on calibration problems. No claim follows from it unless the setting is on the path.
    pub p_value: f64,
}

/// What a setting lacks to be certified.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shortfall {
    /// The first setting of the path that is not certified.
    pub setting: Setting,
    /// The constraint with the largest p-value.
    pub constraint: Constraint,
    /// Its losses on calibration problems.
    pub loss: Loss,
    /// The p-value.
    pub p_value: f64,
    /// The level that it has to reach.
    pub level: f64,
    /// Calibration problems that would do without a single loss.
    pub needed_without_loss: Option<u64>,
    /// Calibration problems that would do if losses go on at the rate seen.
    pub needed_at_rate: Option<u64>,
    /// The same in problems of the trace, as they are split: without a loss, and at the rate seen.
    pub problems_in_all: (Option<u64>, Option<u64>),
}

/// The best-looking setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unguarded {
    /// The setting.
    pub setting: Setting,
    /// The objective on search and calibration problems.
    pub objective: Option<f64>,
    /// What it gives on the test problems.
    pub test: Vec<Measurement>,
}

/// The recommendation measured elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transfer {
    /// Name of the other trace.
    pub source: String,
    /// SHA-256 of it.
    pub digest: String,
    /// Whether it was generated.
    pub synthetic: bool,
    /// Its problems.
    pub problems: usize,
    /// Of them, those that the first trace has too.
    pub shared_problems: usize,
    /// Why the setting cannot run on some of them, a reason each: whole losses in every constraint.
    pub unrun: Vec<String>,
    /// What the setting gives there, all problems together.
    pub measured: Vec<Measurement>,
}

impl Test {
    /// The losses in words: `0 of 300 problems`.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Binomial { losses, n } => format!("{losses} of {n} problems, exact binomial tail"),
            Self::Bounded { sum, n } => {
                format!("losses of {sum:.3} in all over {n} problems, Hoeffding-Bentkus bound")
            }
            Self::Betting { worse, better, same } => {
                format!(
                    "{worse} worse, {better} better, {same} the same of {} problems, betting",
                    worse + better + same
                )
            }
        }
    }
}

impl Constraint {
    /// `harm_rate at most 0.01`.
    #[must_use]
    pub fn words(&self) -> String {
        match self.bound {
            Bound::AtMost(limit) => format!("{} at most {limit}", self.metric),
            Bound::AtLeast(least) => format!("{} at least {least}", self.metric),
        }
    }
}
