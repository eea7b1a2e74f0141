//! Every threshold at once: outcomes change only where a threshold crosses an observed value.
//!
//! A gate compares something observed with a threshold, so what a study gives is a step function of each threshold, with steps at
//! observed values only. [`StepTable`] holds, for each problem, what is needed to evaluate any setting of (τ, τ_conf, margin, θ, ε)
//! exactly, counts and accuracy included, without the trace:
//!
//! * [`StepTable::at`] evaluates one setting;
//! * [`StepTable::along`] gives the exact step function of one threshold, the others held fixed;
//! * [`StepTable::joint`] evaluates a list of settings;
//! * [`StepTable::grid`] evaluates every combination of lists of thresholds;
//! * [`StepTable::export`] gives the facts behind all of it, for a reader who evaluates settings elsewhere;
//! * [`StepTable::problem`] evaluates one setting on one problem, work and flipped verdicts included.
//!
//! All of them give the same integers, and so does [`crate::trees::replay_problem`] at the same thresholds. Nothing depends on the
//! number of threads. A stack may hold policies without these thresholds (a fixed exit layer, a vote): they act as they are,
//! and the thresholds that they do not have change nothing.
//!
//! ```
//! use kvlab_sim::steps::{Axis, Setting, StepTable};
//! use kvlab_sim::trace::TraceSource;
//! use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};
//! use kvlab_sim::trees::{TreeFacts, TreeModel, TreeParts, TreeStack};
//! use kvlab_sim::policy::compose::Part;
//! use kvlab_sim::types::ModelShape;
//!
//! let shape = ModelShape { layers: 6, q_heads: 1, kv_heads: 1, head_dim: 2, hidden: 2, vocab: 100 };
//! let source = SyntheticBranches::build(shape, 1, BranchParams::default())?;
//! let trees: Vec<TreeFacts> =
//!     (0..source.problems()).map(|at| Ok(TreeFacts::new(at, source.problem(at)?))).collect::<Result<_, kvlab_sim::trace::TraceError>>()?;
//! let stack = TreeStack::build(&TreeParts {
//!     share: Part::plain("asks"),
//!     verify: Part::plain("cgee"),
//!     exit: Part::plain("entropy"),
//!     ..TreeParts::default()
//! })?;
//! let table = StepTable::build(&trees, &stack, TreeModel { layers: 6, vocab: 100 })?;
//! let base = Setting::of(&stack, 100);
//! // Sharing everything is τ = 0; the first step covers every τ up to the smallest similarity seen.
//! let steps = table.along(Axis::Tau, &base);
//! assert_eq!(steps[0].counts, table.at(&Setting { tau: 0.0, ..base }));
//! assert_eq!(steps[0].counts.shared, table.branches());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod along;
mod build;
mod export;
mod grid;
mod joint;
mod problem;
mod single;

pub use along::Step;
pub use export::{BranchStops, JointFact};
pub use grid::Grid;
pub use single::ProblemCounts;

use crate::policy::verify::cgee;
use crate::trees::TreeStack;
use problem::{ProblemFacts, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// τ of the similarity gate: a branch shares at σ ≥ τ.
    Tau,
    /// τ_conf of the skip rules: a problem may be skipped at top ≥ τ_conf.
    TauConf,
    /// The margin of rule A: a problem may be skipped at a lead ≥ margin.
    Margin,
    /// θ of the entropy exit, nats: a layer may exit at an entropy < θ.
    Theta,
    /// ε of the entropy exit, nats: a layer may exit at changes < ε.
    Epsilon,
}

impl Axis {
    /// All, in the order of [`Setting`].
    pub const ALL: [Self; 5] = [Self::Tau, Self::TauConf, Self::Margin, Self::Theta, Self::Epsilon];

    /// The word used in tables and scenarios.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tau => "tau",
            Self::TauConf => "tau-conf",
            Self::Margin => "margin",
            Self::Theta => "theta",
            Self::Epsilon => "epsilon",
        }
    }

    /// Whether a threshold of `stack` is behind it.
    #[must_use]
    pub fn applies_to(self, stack: &TreeStack) -> bool {
        match self {
            Self::Tau => stack.share.as_asks().is_some(),
            Self::TauConf => stack.verify.as_cgee().is_some(),
            Self::Margin => stack.verify.as_cgee().is_some_and(|rule| rule.rule != cgee::Rule::B),
            Self::Theta | Self::Epsilon => stack.exit.as_entropy().is_some(),
        }
    }
}

/// One setting of all thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// τ: smallest similarity at which a branch shares.
    pub tau: f64,
    /// Smallest confidence of the surest branch at a skip.
    pub tau_conf: f64,
    /// Smallest lead of the surest branch at a skip by rule A.
    pub margin: f64,
    /// Entropy below which a layer may exit, nats.
    pub theta: f64,
    /// Largest change of the entropy at an exit, nats.
    pub epsilon: f64,
}

impl Setting {
    /// The thresholds of a stack on a vocabulary of `vocab` tokens; 0 where it has none.
    #[must_use]
    pub fn of(stack: &TreeStack, vocab: u32) -> Self {
        let (asks, rule, exit) = (stack.share.as_asks(), stack.verify.as_cgee(), stack.exit.as_entropy());
        let nats = exit.map_or(1.0, |exit| exit.unit.nats(vocab));
        Self {
            tau: asks.map_or(0.0, |asks| asks.tau),
            tau_conf: rule.map_or(0.0, |rule| rule.tau_conf),
            margin: rule.map_or(0.0, |rule| rule.margin),
            theta: exit.map_or(0.0, |exit| exit.theta * nats),
            epsilon: exit.map_or(0.0, |exit| exit.epsilon * nats),
        }
    }

    /// The value on an axis.
    #[must_use]
    pub fn get(&self, axis: Axis) -> f64 {
        match axis {
            Axis::Tau => self.tau,
            Axis::TauConf => self.tau_conf,
            Axis::Margin => self.margin,
            Axis::Theta => self.theta,
            Axis::Epsilon => self.epsilon,
        }
    }

    /// The same setting with another value on an axis.
    #[must_use]
    pub fn with(mut self, axis: Axis, value: f64) -> Self {
        match axis {
            Axis::Tau => self.tau = value,
            Axis::TauConf => self.tau_conf = value,
            Axis::Margin => self.margin = value,
            Axis::Theta => self.theta = value,
            Axis::Epsilon => self.epsilon = value,
        }
        self
    }
}

/// What a setting gives, summed over problems. Denominators are those of [`StepTable`], and `verified` here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Branches decoded behind the root's prefix.
    pub shared: u64,
    /// Problems whose verification is skipped.
    pub skipped: u64,
    /// Branches that are verified.
    pub verified: u64,
    /// Of them, those that stop before the last layer.
    pub exited: u64,
    /// Layers run over all verified branches.
    pub layers_run: u64,
    /// Problems answered as expected.
    pub correct: u64,
    /// Problems with the answer of the full pipeline.
    pub agreeing: u64,
    /// Problems that the full pipeline answers rightly and this setting does not.
    pub harmed: u64,
    /// Problems that this setting answers rightly and the full pipeline does not.
    pub helped: u64,
}

impl Counts {
    fn add(&mut self, more: &Self) {
        self.shared += more.shared;
        self.skipped += more.skipped;
        self.verified += more.verified;
        self.exited += more.exited;
        self.layers_run += more.layers_run;
        self.correct += more.correct;
        self.agreeing += more.agreeing;
        self.harmed += more.harmed;
        self.helped += more.helped;
    }
}

/// What is needed of every problem to evaluate any setting of the thresholds of one stack.
#[derive(Debug)]
pub struct StepTable<'a> {
    stack: &'a TreeStack,
    problems: Vec<ProblemFacts>,
    rule: Option<cgee::Params>,
    branches: u64,
    gradable: u64,
    full_correct: u64,
    layers: u16,
}

impl StepTable<'_> {
    /// Branches over all problems: the denominator of `shared`.
    #[must_use]
    pub fn branches(&self) -> u64 {
        self.branches
    }

    /// Problems: the denominator of `skipped` and `agreeing`.
    #[must_use]
    pub fn problems(&self) -> u64 {
        self.problems.len() as u64
    }

    /// Problems with a known answer: the denominator of `correct`, `harmed` and `helped`.
    #[must_use]
    pub fn gradable(&self) -> u64 {
        self.gradable
    }

    /// Of them, those that the full pipeline answers rightly.
    #[must_use]
    pub fn full_correct(&self) -> u64 {
        self.full_correct
    }

    /// Layers of the model: times `verified`, the denominator of `layers_run`.
    #[must_use]
    pub fn layers(&self) -> u16 {
        self.layers
    }

    /// What one setting gives.
    #[must_use]
    pub fn at(&self, setting: &Setting) -> Counts {
        let mut counts = Counts::default();
        for problem in &self.problems {
            counts.add(&problem.at(self.rules(), setting));
        }
        counts
    }

    /// Whether two settings give the same in every problem.
    #[must_use]
    pub fn is_same(&self, left: &Setting, right: &Setting) -> bool {
        self.problems.iter().all(|problem| problem.at(self.rules(), left) == problem.at(self.rules(), right))
    }

    fn rules(&self) -> Rules<'_> {
        Rules { rule: self.rule.as_ref(), winner: self.stack.winner.as_ref() }
    }
}
