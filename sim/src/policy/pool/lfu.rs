//! The block with the fewest hits goes first, the one unused for longest among equals. Hits are forgotten with the block.
//! Needs: nothing. Cost: O(log n) an access.

use super::{Rank, plain};
use crate::policy::Needs;

plain!(
    Lfu,
    "lfu",
    "the block with the fewest hits goes first, then the one unused for longest",
    "sgl-project/sglang python/sglang/srt/mem_cache/evict_policy.py",
    Needs::NONE,
    |block| Rank { worth: f64::from(block.hits), then: block.last_access }
);
