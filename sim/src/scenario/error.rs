//! What can be wrong with a scenario.

use crate::policy::PolicyError;

/// A scenario that cannot be used: where, and why.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {kind}")]
pub struct ScenarioError {
    /// The file, or how the text came in.
    pub file: String,
    /// Why.
    pub kind: Box<ScenarioErrorKind>,
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioErrorKind {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[source] std::io::Error),
    /// The text is no YAML of the expected form.
    #[error("line {line}, column {column}: {reason}{}", hint.as_ref().map_or(String::new(), |h| format!(" (did you mean `{h}`?)")))]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What was found and what is accepted.
        reason: String,
        /// The accepted key nearest to an unknown one.
        hint: Option<String>,
    },
    /// A policy or its parameters do not fit.
    #[error("{path}: {source}")]
    Policy {
        /// Where in the scenario.
        path: String,
        /// Why.
        source: PolicyError,
    },
    /// A value is out of range.
    #[error("{path} is {found}; accepted: {accepted}")]
    Value {
        /// Where in the scenario.
        path: String,
        /// The value found.
        found: String,
        /// What is accepted.
        accepted: String,
    },
    /// Two policies share a label.
    #[error("{list}: the label `{label}` is used twice; give one of them another `label`")]
    DuplicateLabel {
        /// The list.
        list: &'static str,
        /// The label.
        label: String,
    },
    /// There is nothing to do.
    #[error("none of `eviction`, `exit`, `trees`, `pool` and `serve` is given: there is nothing to study")]
    Empty,
}
