//! The block stored first goes first. Needs: nothing. Cost: O(log n) an access.

use super::{Rank, plain, whole};
use crate::policy::Needs;

plain!(
    Fifo,
    "fifo",
    "the block stored first goes first",
    "sgl-project/sglang python/sglang/srt/mem_cache/evict_policy.py",
    Needs::NONE,
    |block| Rank { worth: whole(block.created), then: 0 }
);
