//! What is done about keys and values that a layer exit leaves out.
//!
//! A pass that stops after layer l* writes no keys and values above it. Where the pass is continued, a later position that runs those layers would attend to
//! what is not there: a hole. Responsible for naming what may be done; the counts are those of [`crate::replay::ExitOutcome`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is done about holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HolePolicy {
    /// Nothing: exits belong to passes that nobody continues, as in RKSC's verification. Holes are counted as what would be missing.
    #[default]
    VerifyOnly,
    /// Keys and values of every layer left out are computed from the state at the exit, at once, since nobody knows which will be needed (CALM's state
    /// propagation). Later states are then no longer the recorded ones.
    CopyState,
    /// A hole is filled when a position first needs it: its layer runs after all, for that position. Keys and values are then those of a full pass.
    Recompute,
    /// A cell whose exits leave holes is refused.
    Forbid,
}

impl HolePolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::VerifyOnly, Self::CopyState, Self::Recompute, Self::Forbid];

    /// The word used in scenarios and tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::VerifyOnly => "verify-only",
            Self::CopyState => "copy-state",
            Self::Recompute => "recompute",
            Self::Forbid => "forbid",
        }
    }
}
