//! The block unused for longest goes first: what vLLM and SGLang do. Needs: nothing. Cost: O(1) an access.

use super::{Order, Rank, plain, whole};
use crate::policy::Needs;

plain!(
    Lru,
    "lru",
    "the block unused for longest goes first",
    "vllm-project/vllm vllm/v1/core/block_pool.py; sgl-project/sglang python/sglang/srt/mem_cache/evict_policy.py",
    Needs::NONE,
    |block| Rank { worth: whole(block.last_access), then: 0 },
    order: Order::Recency
);
