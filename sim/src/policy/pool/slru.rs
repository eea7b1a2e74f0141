//! Blocks with at least `protected_hits` hits go after all others; within both groups the one unused for longest goes first.
//! Needs: nothing. Cost: O(log n) an access.

use super::{BlockFacts, Pool, Rank};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "slru",
    family: Family::Pool,
    summary: "blocks that were hit often go last, then the one unused for longest (segmented LRU)",
    citation: "sgl-project/sglang python/sglang/srt/mem_cache/evict_policy.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Pool> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Slru { params: raw.parse(SPEC.id)? })),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Hits from which a block is protected.
    protected_hits: u32 = 2,
}

#[derive(Debug)]
struct Slru {
    params: Params,
}

impl Pool for Slru {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn rank(&self, block: &BlockFacts) -> Rank {
        let is_protected = block.hits >= self.params.protected_hits;
        Rank { worth: f64::from(u8::from(is_protected)), then: block.last_access }
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
