//! LRU over single blocks, as fast as a list can be: the order of [`super::replay()`] without chains and readers.

use super::free::Recency;

/// What happened, in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlatCounts {
    pub(super) hits: u64,
    /// Blocks that were asked for the first time.
    pub(super) first: u64,
    /// Blocks computed again.
    pub(super) again: u64,
    pub(super) evicted: u64,
    pub(super) peak: u64,
}

/// Serves `blocks`, dense indices in order of first appearance, from a cache of `capacity` blocks, at least 1. `evicted` gets the
/// request, from 1, and the block that goes.
pub(super) fn lru(
    blocks: &[u32],
    distinct: u32,
    capacity: u64,
    mut evicted: impl FnMut(u64, u32),
) -> FlatCounts {
    let mut counts = FlatCounts::default();
    let mut order = Recency::new(distinct);
    let mut held = 0_u64;
    let mut seen = 0_u32;
    for (request, &block) in (1_u64..).zip(blocks) {
        if order.holds(block) {
            counts.hits += 1;
            order.remove(block);
            order.push(block);
            continue;
        }
        if block == seen {
            seen += 1;
            counts.first += 1;
        } else {
            counts.again += 1;
        }
        if held < capacity {
            held += 1;
        } else if let Some(victim) = order.first() {
            order.remove(victim);
            counts.evicted += 1;
            evicted(request, victim);
        }
        order.push(block);
    }
    counts.peak = held;
    counts
}
