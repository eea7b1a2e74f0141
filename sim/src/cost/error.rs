//! What can be wrong with a cost model.

/// A cost model that cannot be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// No entry has this name.
    #[error("no {what} is called `{given}`; known: {}", known.join(", "))]
    Unknown {
        /// Of what kind.
        what: &'static str,
        /// The name given.
        given: String,
        /// The known names.
        known: Vec<String>,
    },
    /// A table of the program cannot be read.
    #[error("the table of {what} cannot be read: {reason}")]
    Table {
        /// Which.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// Parameters that do not fit.
    #[error("cost model `{kind}`: {reason}")]
    Params {
        /// The model.
        kind: String,
        /// What is wrong, with what is accepted.
        reason: String,
    },
    /// Too few measurements, or all alike.
    #[error(
        "{found} measured passes that determine {independent} of {needed} coefficients; more passes of other lengths are needed"
    )]
    Undetermined {
        /// Measurements.
        found: usize,
        /// Coefficients that they determine.
        independent: usize,
        /// Coefficients.
        needed: usize,
    },
}
