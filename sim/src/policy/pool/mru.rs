//! The block used last goes first. Needs: nothing. Cost: O(log n) an access.

use super::{Rank, plain, whole};
use crate::policy::Needs;

plain!(
    Mru,
    "mru",
    "the block used last goes first",
    "sgl-project/sglang python/sglang/srt/mem_cache/evict_policy.py",
    Needs::NONE,
    |block| Rank { worth: -whole(block.last_access), then: 0 }
);
