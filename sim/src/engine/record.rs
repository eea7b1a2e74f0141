//! What happened: the engine's only outlet.

use super::{PassKind, Phase};
use crate::ledger::KeptSet;
use crate::types::{BranchId, Nanos, Pos, ReqId, Tokens};
use serde::Serialize;

/// When a record was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Stamp {
    /// Simulated time.
    #[serde(rename = "time_nanos")]
    pub time: Nanos,
    /// Phase of the event that caused it.
    pub phase: Phase,
}

/// Something that happened. Entries are one key and one value vector of one (layer, KV head); entry and block numbers
/// are sums over layers and KV heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Record<'a> {
    /// A request arrived.
    Arrived {
        /// The request.
        req: ReqId,
        /// Prompt tokens.
        prompt_len: u32,
        /// All tokens of its root branch, prompt included.
        len: u32,
    },
    /// A request runs from now on.
    Admitted {
        /// The request.
        req: ReqId,
        /// Blocks that it needs at most, reserved for it.
        reserved_blocks: u64,
    },
    /// A request waits until others end.
    Waiting {
        /// The request.
        req: ReqId,
        /// Blocks that it needs at most.
        needed_blocks: u64,
        /// Blocks that nobody has reserved.
        unreserved_blocks: u64,
    },
    /// A request is refused: it can never fit.
    Refused {
        /// The request.
        req: ReqId,
        /// Blocks that it needs at most.
        needed_blocks: u64,
        /// Blocks that there are.
        capacity_blocks: u32,
    },
    /// A branch began with what its parent holds.
    Forked {
        /// The request.
        req: ReqId,
        /// The new branch.
        branch: BranchId,
        /// The branch that it was forked from.
        parent: BranchId,
        /// Tokens seen by both.
        seen: Tokens,
    },
    /// A pass was computed.
    PassDone {
        /// The request.
        req: ReqId,
        /// The branch.
        branch: BranchId,
        /// Prompt or generation.
        kind: PassKind,
        /// Position of the first token.
        first: Pos,
        /// Tokens computed.
        tokens: Tokens,
    },
    /// The tokens of a pass were stored; an eviction that follows at the same length has not happened yet.
    Stored {
        /// The request.
        req: ReqId,
        /// The branch.
        branch: BranchId,
        /// Prompt or generation.
        kind: PassKind,
        /// Tokens seen by now.
        seen: Tokens,
        /// Entries resident now.
        live_entries: u64,
        /// Blocks that the branch holds now.
        blocks: u64,
    },
    /// An eviction happened in every layer and KV head.
    Evicted {
        /// The request.
        req: ReqId,
        /// The branch.
        branch: BranchId,
        /// Tokens seen.
        seen: Tokens,
        /// Entries resident now.
        live_entries: u64,
        /// Blocks that the branch holds now.
        blocks: u64,
        /// What stayed, `[layer, kv_head]`, layers outermost.
        kept: &'a [KeptSet],
    },
    /// Blocks were taken from the pool.
    Allocated {
        /// The request.
        req: ReqId,
        /// The branch.
        branch: BranchId,
        /// How many.
        blocks: u64,
    },
    /// Blocks were copied because another branch holds the original.
    Copied {
        /// The request.
        req: ReqId,
        /// The branch that holds the copies.
        branch: BranchId,
        /// How many.
        blocks: u64,
    },
    /// Blocks got one more holder.
    Shared {
        /// The request.
        req: ReqId,
        /// The new holder.
        branch: BranchId,
        /// How many.
        blocks: u64,
    },
    /// Blocks went back to the pool.
    Freed {
        /// The request.
        req: ReqId,
        /// The last holder.
        branch: BranchId,
        /// How many.
        blocks: u64,
    },
    /// A branch is over and holds nothing any more.
    Released {
        /// The request.
        req: ReqId,
        /// The branch.
        branch: BranchId,
    },
    /// A device began a pass over a batch; it ends when the time moves on to its `PassDone` records.
    Batched {
        /// Sequences in it.
        rows: u32,
        /// Tokens that it computes.
        tokens: u64,
        /// When it ends.
        until: Nanos,
    },
    /// A branch lost its blocks to others; what it had computed must be computed again.
    Preempted {
        /// The request.
        req: ReqId,
        /// The branch.
        branch: BranchId,
        /// Tokens that were resident.
        tokens: Tokens,
    },
    /// The verifier begins with the branches of a request.
    Verifying {
        /// The request.
        req: ReqId,
        /// Branches verified.
        branches: u32,
        /// Layers that the pass runs.
        layers: u16,
    },
    /// Nobody verifies the branches of a request.
    VerifySkipped {
        /// The request.
        req: ReqId,
    },
    /// A request is answered.
    Selected {
        /// The request.
        req: ReqId,
        /// The branch whose answer it is; the root when there is none.
        branch: BranchId,
    },
    /// The run is over.
    Ended {
        /// Requests that were refused.
        refused: u32,
        /// Blocks allocated over the run, copies included; as many were freed.
        allocated_blocks: u64,
    },
}

/// Sees all records of a run, in order.
pub trait Observer {
    /// Takes note of a record.
    fn note(&mut self, stamp: Stamp, record: &Record<'_>);
}
