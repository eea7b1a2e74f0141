//! What can stop the choice of a setting.

use crate::policy::PolicyError;
use crate::run::RunError;
use crate::trace::TraceError;
use crate::trees::TreeError;

/// A choice that cannot be made. That no setting is good enough is none of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// The scenario has no study whose settings could be chosen, or several.
    #[error("tune.study: {found}; accepted: {accepted}")]
    Study {
        /// What the scenario has.
        found: String,
        /// What is accepted.
        accepted: String,
    },
    /// A stack or its sweep does not fit.
    #[error("{path}: {found}; accepted: {accepted}")]
    Stack {
        /// Where in the scenario.
        path: String,
        /// What was found.
        found: String,
        /// What is accepted.
        accepted: String,
    },
    /// The study does not measure a metric problem by problem.
    #[error("`{metric}` cannot be {role} of a study of {study}; accepted: {accepted}")]
    Metric {
        /// The metric.
        metric: &'static str,
        /// `the objective` or `a constraint`.
        role: &'static str,
        /// The study.
        study: &'static str,
        /// What is accepted.
        accepted: String,
    },
    /// A limit that every setting keeps, or none.
    #[error("the limit of `{metric}` is {found}; accepted: {accepted}")]
    Limit {
        /// The metric.
        metric: &'static str,
        /// What was found.
        found: f64,
        /// What is accepted.
        accepted: String,
    },
    /// A part of the split is empty.
    #[error(
        "{problems} problems are too few to be split: {search} for the search, {calibration} for calibration, {test} for the test; accepted: at least one in each"
    )]
    TooFew {
        /// All problems.
        problems: usize,
        /// Of the search.
        search: usize,
        /// Of calibration.
        calibration: usize,
        /// Of the test.
        test: usize,
    },
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A problem cannot be replayed.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A policy cannot be built.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A replay failed.
    #[error(transparent)]
    Run(#[from] RunError),
}
