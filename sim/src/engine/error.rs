//! What ends a run early.

use super::{BranchError, EventKey};
use crate::ledger::{BranchKey, LedgerError};
use crate::types::{KvHead, LayerIdx, ReqId, ShapeError};

/// A run that could not be finished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// What must always hold does not. This is never the user's fault.
    #[error("invariant broken at {key}: {rule}: {detail}")]
    Invariant {
        /// The rule, as a sentence.
        rule: &'static str,
        /// The event at which it broke.
        key: EventKey,
        /// What was found, with numbers.
        detail: String,
    },
    /// A limit ended a run that might never have ended.
    #[error("the limit of {value} {limit} is reached at {key}")]
    LimitReached {
        /// Of what.
        limit: &'static str,
        /// How many are allowed.
        value: u64,
        /// The first event beyond it.
        key: EventKey,
    },
    /// The workload makes no sense.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The ledger refused a change.
    #[error("at {key}: {source}")]
    Ledger {
        /// The event.
        key: EventKey,
        /// What it refused.
        source: LedgerError,
    },
    /// The branch tree refused a change.
    #[error("at {key}: {source}")]
    Branch {
        /// The event.
        key: EventKey,
        /// What it refused.
        source: BranchError,
    },
}

impl EngineError {
    /// What the ledger said, at an event; a broken rule of the ledger is a broken rule of the engine.
    pub(super) fn at(key: EventKey, source: LedgerError) -> Self {
        match source {
            LedgerError::Broken { rule, detail } => Self::Invariant { rule, key, detail },
            source => Self::Ledger { key, source },
        }
    }
}

/// A workload that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The model's shape is impossible.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A number that must be at least 1 is 0.
    #[error("`{what}` is 0; at least 1 is needed")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// Two requests have one id.
    #[error("request {req} exists twice")]
    DuplicateRequest {
        /// The id.
        req: ReqId,
    },
    /// A request has no prompt, or one longer than itself.
    #[error("request {req}: a prompt of {prompt_len} tokens in a sequence of {len}; 1 to {len} are possible")]
    PromptLength {
        /// The request.
        req: ReqId,
        /// Prompt tokens.
        prompt_len: u32,
        /// All tokens.
        len: u32,
    },
    /// A fork cannot be made.
    #[error("{branch}: forked from branch {parent} after {at_seen} tokens, ending at {len}: {why}")]
    Fork {
        /// The new branch.
        branch: BranchKey,
        /// Its parent.
        parent: u32,
        /// Tokens seen at the fork.
        at_seen: u32,
        /// Tokens seen at its end.
        len: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// An eviction lies outside its branch or not behind the one before.
    #[error("{branch}: an eviction after {seen} tokens; the next one must lie in {from}..={len}")]
    EvictionOrder {
        /// The branch.
        branch: BranchKey,
        /// Tokens seen at the eviction.
        seen: u32,
        /// The first possible place.
        from: u32,
        /// The last possible place.
        len: u32,
    },
    /// An eviction does not speak of every layer and KV head.
    #[error(
        "{branch}: the eviction after {seen} tokens has {found} kept sets where layers x KV heads is {expected}"
    )]
    KeptSets {
        /// The branch.
        branch: BranchKey,
        /// Tokens seen at the eviction.
        seen: u32,
        /// Kept sets given.
        found: usize,
        /// Layers times KV heads.
        expected: usize,
    },
    /// More is kept than there is.
    #[error(
        "{branch} layer {layer} KV head {head}: the eviction after {seen} tokens keeps {kept} of {live} entries"
    )]
    KeptTooMany {
        /// The branch.
        branch: BranchKey,
        /// The layer.
        layer: LayerIdx,
        /// The KV head.
        head: KvHead,
        /// Tokens seen at the eviction.
        seen: u32,
        /// Entries to keep.
        kept: u64,
        /// Entries resident.
        live: u64,
    },
    /// Positions are tracked, but an eviction only says how many entries stay.
    #[error(
        "{branch}: the eviction after {seen} tokens says how many entries stay but not which, and positions are tracked"
    )]
    PositionsNeeded {
        /// The branch.
        branch: BranchKey,
        /// Tokens seen at the eviction.
        seen: u32,
    },
}
