//! What the ledger refuses, with the numbers.

use super::BranchKey;
use crate::types::{BlockId, KvHead, LayerIdx, Pos};

/// A change that the ledger does not make.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// More blocks are asked for than are free.
    #[error("{asked} blocks asked for, {free} of {capacity} are free")]
    OutOfBlocks {
        /// Blocks asked for at once.
        asked: u64,
        /// Blocks that nobody holds.
        free: u64,
        /// Blocks that there are.
        capacity: u32,
    },
    /// Nobody holds this block.
    #[error("block {block} is not held")]
    NotHeld {
        /// The block.
        block: BlockId,
    },
    /// There is no such branch.
    #[error("{branch} has no entries")]
    UnknownBranch {
        /// The branch.
        branch: BranchKey,
    },
    /// The branch is there already.
    #[error("{branch} exists already")]
    BranchExists {
        /// The branch.
        branch: BranchKey,
    },
    /// A branch would see more tokens than a position can name.
    #[error("{branch} would see more than {} tokens", u32::MAX)]
    TooLong {
        /// The branch.
        branch: BranchKey,
    },
    /// An eviction does not speak of every layer and KV head.
    #[error("an eviction of {branch} names {found} kept sets where layers x KV heads is {expected}")]
    KeptSets {
        /// The branch.
        branch: BranchKey,
        /// Layers times KV heads.
        expected: usize,
        /// Kept sets given.
        found: usize,
    },
    /// More is kept than there is.
    #[error("{branch} layer {layer} KV head {head}: {kept} entries to keep, {live} are there")]
    KeptTooMany {
        /// The branch.
        branch: BranchKey,
        /// The layer.
        layer: LayerIdx,
        /// The KV head.
        head: KvHead,
        /// Entries to keep.
        kept: u64,
        /// Entries resident.
        live: u32,
    },
    /// A position is kept twice, or was not resident.
    #[error("{branch} layer {layer} KV head {head}: position {pos} is kept twice or not resident")]
    KeptPosition {
        /// The branch.
        branch: BranchKey,
        /// The layer.
        layer: LayerIdx,
        /// The KV head.
        head: KvHead,
        /// The position.
        pos: Pos,
    },
    /// Positions are tracked, but an eviction only says how many entries stay.
    #[error("an eviction of {branch} says how many entries stay but not which, and positions are tracked")]
    PositionsNeeded {
        /// The branch.
        branch: BranchKey,
    },
    /// An invariant of the ledger does not hold. This is never the user's fault.
    #[error("{rule}: {detail}")]
    Broken {
        /// The rule, as a sentence.
        rule: &'static str,
        /// What was found, with numbers.
        detail: String,
    },
}
