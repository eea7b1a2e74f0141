//! The `tune` section: which setting to look for, under which constraints, and how sure to be.

use super::checked::value;
use super::{ScenarioErrorKind, nearest, schema};
use crate::metrics::{Better, METRICS, metric};
use crate::steps::Axis;
use crate::tune::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawTune {
    study: Option<TunedStudy>,
    stack: Option<String>,
    thresholds: Option<Vec<Axis>>,
    objective: Option<String>,
    constraints: Option<Vec<RawConstraint>>,
    delta: Option<f64>,
    search: Option<f64>,
    calibration: Option<f64>,
    seed: Option<u64>,
    method: Option<Method>,
    path: Option<u32>,
    candidates: Option<u32>,
    survivors: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawConstraint {
    #[schemars(schema_with = "schema::metric")]
    metric: String,
    at_most: Option<f64>,
    at_least: Option<f64>,
}

/// The study whose settings are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TunedStudy {
    /// Thresholds of a stack over branch trees.
    Trees,
    /// Policies and budgets of an eviction study.
    Eviction,
}

impl TunedStudy {
    /// The word used in scenarios.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Trees => "trees",
            Self::Eviction => "eviction",
        }
    }
}

/// Which way the objective is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Up.
    Maximise,
    /// Down.
    Minimise,
}

/// What is to be as large, or as small, as the constraints let it be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Objective {
    /// Id of the metric.
    pub metric: &'static str,
    /// Which way.
    pub direction: Direction,
}

/// What a constraint holds a metric to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

/// A metric that has to stay within a bound on problems to come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Constraint {
    /// Id of the metric.
    pub metric: &'static str,
    /// The bound.
    pub bound: Bound,
}

/// What `kvlab tune` looks for; see `scenarios/reference.yaml`.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneSpec {
    /// The study; absent for the only one of the scenario.
    pub study: Option<TunedStudy>,
    /// Label of the stack over branch trees; absent for the first one with a threshold.
    pub stack: Option<String>,
    /// Thresholds that move.
    pub thresholds: Vec<Axis>,
    /// The objective; absent for the study's default.
    pub objective: Option<Objective>,
    /// The constraints; empty for the study's default.
    pub constraints: Vec<Constraint>,
    /// δ: the probability that the guarantee is wrong.
    pub delta: f64,
    /// Share of the problems that the search sees.
    pub search: f64,
    /// Share of the problems that settings are tested on. The rest is held out.
    pub calibration: f64,
    /// Decides which problem is in which share.
    pub seed: u64,
    /// How tests are corrected for each other.
    pub method: Method,
    /// Most settings that are tested.
    pub path: usize,
    /// About how many settings the search looks at, where settings are thresholds.
    pub candidates: usize,
    /// Settings that successive halving leaves, where settings are replayed one by one.
    pub survivors: usize,
}

impl Default for TuneSpec {
    fn default() -> Self {
        Self {
            study: None,
            stack: None,
            thresholds: Axis::ALL.to_vec(),
            objective: None,
            constraints: Vec::new(),
            delta: 0.05,
            search: 0.25,
            calibration: 0.5,
            seed: 0,
            method: Method::FixedSequence,
            path: 24,
            candidates: 4096,
            survivors: 12,
        }
    }
}

/// What flags say over the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuneFlags {
    /// The study.
    pub study: Option<TunedStudy>,
    /// `METRIC`, `max:METRIC` or `min:METRIC`.
    pub objective: Option<String>,
    /// `METRIC=NUMBER` each. Any constraint given replaces all of the file.
    pub at_most: Vec<String>,
    /// `METRIC=NUMBER` each.
    pub at_least: Vec<String>,
    /// δ.
    pub delta: Option<f64>,
    /// Share for the search.
    pub search: Option<f64>,
    /// Share for calibration.
    pub calibration: Option<f64>,
    /// The seed of the split.
    pub seed: Option<u64>,
    /// The correction.
    pub method: Option<Method>,
}

impl TuneSpec {
    /// The same with what flags say.
    ///
    /// # Errors
    /// When a flag names an unknown metric or a number out of range.
    pub fn with(mut self, flags: &TuneFlags) -> Result<Self, ScenarioErrorKind> {
        self.study = flags.study.or(self.study);
        if let Some(text) = &flags.objective {
            self.objective = Some(objective(text, "--objective")?);
        }
        if !(flags.at_most.is_empty() && flags.at_least.is_empty()) {
            self.constraints.clear();
            for text in &flags.at_most {
                let (metric, limit) = assignment(text, "--at-most")?;
                self.constraints.push(Constraint { metric, bound: Bound::AtMost(limit) });
            }
            for text in &flags.at_least {
                let (metric, limit) = assignment(text, "--at-least")?;
                self.constraints.push(Constraint { metric, bound: Bound::AtLeast(limit) });
            }
        }
        self.delta = flags.delta.unwrap_or(self.delta);
        self.search = flags.search.unwrap_or(self.search);
        self.calibration = flags.calibration.unwrap_or(self.calibration);
        self.seed = flags.seed.unwrap_or(self.seed);
        self.method = flags.method.unwrap_or(self.method);
        self.checked()
    }

    fn checked(self) -> Result<Self, ScenarioErrorKind> {
        if !(self.delta > 0.0 && self.delta < 1.0) {
            return Err(value("tune.delta", &self.delta.to_string(), "above 0 and below 1"));
        }
        for (path, share) in [("tune.search", self.search), ("tune.calibration", self.calibration)] {
            if !(share > 0.0 && share < 1.0) {
                return Err(value(path, &share.to_string(), "above 0 and below 1"));
            }
        }
        if self.search + self.calibration >= 1.0 {
            let found = format!("{} with a search share of {}", self.calibration, self.search);
            return Err(value("tune.calibration", &found, "shares that leave some problems for the test"));
        }
        for constraint in &self.constraints {
            let (Bound::AtMost(limit) | Bound::AtLeast(limit)) = constraint.bound;
            if !limit.is_finite() {
                let path = format!("tune.constraints ({})", constraint.metric);
                return Err(value(&path, &limit.to_string(), "a finite number"));
            }
        }
        Ok(self)
    }
}

/// A metric of the registry.
fn known(id: &str, path: &str) -> Result<&'static str, ScenarioErrorKind> {
    metric(id).map(|metric| metric.id).ok_or_else(|| {
        let near = nearest(id, METRICS.iter().map(|metric| metric.id));
        let hint = near.map_or(String::new(), |near| format!(" (did you mean `{near}`?)"));
        value(path, &format!("`{id}`"), &format!("a metric of `kvlab list metrics`{hint}"))
    })
}

fn objective(text: &str, path: &str) -> Result<Objective, ScenarioErrorKind> {
    let (direction, id) = match text.split_once(':') {
        Some(("max", id)) => (Some(Direction::Maximise), id),
        Some(("min", id)) => (Some(Direction::Minimise), id),
        Some(_) => return Err(value(path, &format!("`{text}`"), "METRIC, max:METRIC or min:METRIC")),
        None => (None, text),
    };
    let metric_id = known(id, path)?;
    let better = metric(metric_id).map_or(Better::Neither, |metric| metric.better);
    let direction = match (direction, better) {
        (Some(direction), _) => direction,
        (None, Better::Higher) => Direction::Maximise,
        (None, Better::Lower) => Direction::Minimise,
        (None, Better::Neither) => {
            let accepted = format!("max:{id} or min:{id}, since neither direction of it is better by itself");
            return Err(value(path, &format!("`{id}`"), &accepted));
        }
    };
    Ok(Objective { metric: metric_id, direction })
}

fn assignment(text: &str, path: &str) -> Result<(&'static str, f64), ScenarioErrorKind> {
    let parts = text.split_once('=').and_then(|(id, number)| Some((id, number.parse::<f64>().ok()?)));
    let Some((id, limit)) = parts else {
        return Err(value(path, &format!("`{text}`"), "METRIC=NUMBER, e.g. harm_rate=0.01"));
    };
    Ok((known(id.trim(), path)?, limit))
}

pub(super) fn checked(raw: RawTune) -> Result<TuneSpec, ScenarioErrorKind> {
    let default = TuneSpec::default();
    let thresholds = raw.thresholds.unwrap_or(default.thresholds);
    for (at, axis) in thresholds.iter().enumerate() {
        if thresholds[..at].contains(axis) {
            return Err(value("tune.thresholds", &format!("{} twice", axis.word()), "each threshold once"));
        }
    }
    if thresholds.is_empty() {
        return Err(value("tune.thresholds", "an empty list", "at least one threshold"));
    }
    let mut constraints = Vec::new();
    for (at, raw) in raw.constraints.unwrap_or_default().into_iter().enumerate() {
        let path = format!("tune.constraints[{at}]");
        let bound = match (raw.at_most, raw.at_least) {
            (Some(limit), None) => Bound::AtMost(limit),
            (None, Some(limit)) => Bound::AtLeast(limit),
            _ => {
                return Err(value(
                    &path,
                    "neither or both of `at_most` and `at_least`",
                    "exactly one of them",
                ));
            }
        };
        let metric = known(&raw.metric, &format!("{path}.metric"))?;
        constraints.push(Constraint { metric, bound });
    }
    let count = |path: &str, given: Option<u32>, default: usize, most: u32| match given {
        None => Ok(default),
        Some(count) if (1..=most).contains(&count) => Ok(count as usize),
        Some(count) => Err(value(path, &count.to_string(), &format!("1 to {most}"))),
    };
    TuneSpec {
        study: raw.study,
        stack: raw.stack,
        thresholds,
        objective: raw.objective.map(|text| objective(&text, "tune.objective")).transpose()?,
        constraints,
        delta: raw.delta.unwrap_or(default.delta),
        search: raw.search.unwrap_or(default.search),
        calibration: raw.calibration.unwrap_or(default.calibration),
        seed: raw.seed.unwrap_or(default.seed),
        method: raw.method.unwrap_or(default.method),
        path: count("tune.path", raw.path, default.path, 1000)?,
        candidates: count("tune.candidates", raw.candidates, default.candidates, 1_000_000)?,
        survivors: count("tune.survivors", raw.survivors, default.survivors, 1000)?,
    }
    .checked()
}
