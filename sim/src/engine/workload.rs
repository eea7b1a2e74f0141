//! What a run is given: requests with lengths and evictions that are already decided, and the memory they run in.

use crate::ledger::Kept;
use crate::types::{BranchId, ModelShape, Nanos, ReqId};

/// Everything that decides a run, besides its [`super::Settings`] and cost model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The requests, in any order: their order changes nothing.
    pub requests: Vec<Request>,
    /// Shape of the model.
    pub shape: ModelShape,
    /// Slots in a physical block of one (layer, KV head).
    pub block_tokens: u32,
    /// Bytes of one stored number.
    pub bytes_per_scalar: u64,
    /// Physical blocks that there are, over all layers and KV heads; `None` = no limit.
    pub capacity_blocks: Option<u32>,
}

/// One sequence to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its id.
    pub req: ReqId,
    /// Prompt tokens, at least 1.
    pub prompt_len: u32,
    /// All tokens, prompt included.
    pub len: u32,
    /// When it arrives.
    pub arrival: Nanos,
    /// Evictions of the root branch, by tokens seen, strictly rising.
    pub evictions: Vec<Eviction>,
    /// Branches besides the root; a parent comes before its children.
    pub forks: Vec<Fork>,
}

/// An eviction that is already decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Tokens seen when it happens: right after the token at position `seen - 1` was stored and attended.
    pub seen: u32,
    /// What stays.
    pub kept: Kept,
}

/// A branch that begins with what its parent holds, and goes on by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The branch that it starts from.
    pub parent: BranchId,
    /// Its id; 0 is the root and is taken.
    pub child: BranchId,
    /// Tokens that the parent has seen, an eviction at that length included; not before the end of the prompt.
    pub at_seen: u32,
    /// Tokens seen at its end, those of its parent included.
    pub len: u32,
    /// Its own evictions, by tokens seen, strictly rising, after `at_seen`.
    pub evictions: Vec<Eviction>,
}

impl Workload {
    /// Layers times KV heads.
    #[must_use]
    pub fn streams(&self) -> usize {
        usize::from(self.shape.layers) * usize::from(self.shape.kv_heads)
    }
}
