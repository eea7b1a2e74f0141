//! Pool policies: which cached block goes when the pool of physical blocks is full.
//!
//! A policy ranks a block by what is known about it; the smallest rank goes first. It never sees the pool: which blocks may go
//! at all (nobody reads them, no cached block continues them) and how ties are broken is decided in one place,
//! [`crate::pool`].

pub mod belady;
pub mod depth_only;
pub mod fifo;
pub mod lfu;
pub mod lru;
pub mod mru;
pub mod rsbcm;
pub mod score_only;
pub mod slru;

use super::PolicySpec;

/// What is known about a cached block. Times are numbers of requests, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockFacts {
    /// Blocks before it in its prompt.
    pub chain: u32,
    /// Depth of the tree node that owns it, 0 for the root. Where a stream has no tree: `chain`.
    pub depth: u32,
    /// Request that stored it.
    pub created: u64,
    /// Latest request that used it.
    pub last_access: u64,
    /// Requests that found it here since it was stored.
    pub hits: u32,
    /// Largest score of the branches that used it since it was stored, in 0..=1; 1 where branches have none.
    pub score_max: f32,
    /// Mean score of the same branches.
    pub score_mean: f32,
    /// Attention mass that recent queries put on it, in (0, 1]; 1 where it is not known.
    pub attention: f32,
    /// The next request that uses it; absent when none does. A policy that reads it needs the future.
    pub next_use: Option<u64>,
}

/// What a block is worth: the smallest goes first, `worth` before `then`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    /// The policy's measure. Never NaN.
    pub worth: f64,
    /// Decides between equal `worth`.
    pub then: u64,
}

/// How the pool may keep its blocks in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By rank, in a heap.
    #[default]
    Ranked,
    /// The rank is the last access: a linked list, in constant time, gives the same order.
    Recency,
}

/// Ranks blocks for eviction.
pub trait Pool: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// The rank of a block that nobody reads: the smallest goes first.
    fn rank(&self, block: &BlockFacts) -> Rank;

    /// How the pool may keep its blocks in order.
    fn order(&self) -> Order {
        Order::Ranked
    }

    /// Whether a block whose continuation is cached stays: without it, the continuation could not be found.
    fn is_leaf_first(&self) -> bool {
        true
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}

/// A whole number as a rank; exact below 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "counts of requests stay below 2^53")]
pub(super) fn whole(number: u64) -> f64 {
    number as f64
}

/// A policy without parameters: its file is a spec and a rank.
macro_rules! plain {
    ($type:ident, $id:literal, $summary:literal, $citation:literal, $needs:expr, $rank:expr $(, order: $order:expr)?) => {
        /// Identity and capabilities.
        pub const SPEC: $crate::policy::PolicySpec = $crate::policy::PolicySpec {
            id: $id,
            family: $crate::policy::Family::Pool,
            summary: $summary,
            citation: $citation,
            needs: $needs,
            randomness: $crate::policy::Randomness::Deterministic,
            laws: &[],
        };

        /// Registry line.
        pub const ENTRY: $crate::policy::Entry<dyn super::Pool> = $crate::policy::Entry {
            spec: &SPEC,
            build: |raw| {
                raw.parse::<Params>(SPEC.id)?;
                Ok(Box::new($type))
            },
            defaults: $crate::policy::doc::defaults::<Params>,
            docs: Params::DOCS,
        };

        $crate::policy::doc::params! {}

        #[derive(Debug)]
        struct $type;

        impl super::Pool for $type {
            fn spec(&self) -> &'static $crate::policy::PolicySpec {
                &SPEC
            }

            fn rank(&self, block: &super::BlockFacts) -> super::Rank {
                let rank: fn(&super::BlockFacts) -> super::Rank = $rank;
                rank(block)
            }

            $(fn order(&self) -> super::Order {
                $order
            })?

            fn params(&self) -> serde_json::Value {
                serde_json::json!({})
            }
        }
    };
}
use plain;
