//! What can stop a replay.

use crate::policy::PolicyError;
use crate::trace::TraceError;

/// A replay that cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A policy cannot decide.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The head of the model has another width than its states.
    #[error("states and rows of the unembedding have {found:?} channels, expected {expected}")]
    Width {
        /// Channels of a state, and of a row.
        found: Vec<usize>,
        /// Channels of the final norm.
        expected: usize,
    },
    /// Recorded values are numbers, and too large to compute with.
    #[error("{what} of sequence {seq}, layer {layer} is not finite: recorded values are too large for it")]
    NotFinite {
        /// What was computed.
        what: &'static str,
        /// Recorded sequence.
        seq: u32,
        /// The layer.
        layer: u16,
    },
    /// A tensor has another shape than the manifest says.
    #[error("{field} of layer {layer} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// `q`, `k` or `v`.
        field: &'static str,
        /// The layer.
        layer: u16,
        /// `[head, pos, head_dim]` expected.
        expected: [usize; 3],
        /// What was found.
        found: Vec<usize>,
    },
}
