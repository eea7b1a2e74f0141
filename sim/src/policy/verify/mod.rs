//! Verify policies: whether the branches of a problem are shown to the verifier at all.

pub mod always;
pub mod cgee;
pub mod gap;
pub mod majority;
pub mod never;
pub mod random;
pub mod relative_gap;
pub mod top;
pub mod z_score;

use super::{PolicyError, PolicySpec};
use crate::trace::Outcome;

/// The decoded branches of one problem.
#[derive(Clone, Copy, Debug)]
pub struct VerifyView<'a> {
    /// What came of each branch behind the prefix that it got, `[branch]`.
    pub outcomes: &'a [&'a Outcome],
    /// Index of the problem in the trace.
    pub problem: u32,
    /// The cell's seed.
    pub seed: u64,
}

/// Decides whether verification is skipped. A skip is for all branches of a problem.
pub trait Verify: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// Whether the verifier is not asked.
    ///
    /// # Errors
    /// When the trace lacks what the policy looks at.
    fn skips(&self, view: &VerifyView<'_>) -> Result<bool, PolicyError>;

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;

    /// The two rules behind it, whose thresholds have exact step functions.
    fn as_cgee(&self) -> Option<cgee::Params> {
        None
    }
}
