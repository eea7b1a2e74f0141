//! What a run held in memory, and what it evicted.

use kvlab_sim::replay::LayerEviction;

/// What one run held and evicted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Footprint {
    /// Evictions in order, `[layer][eviction]`, with the kept sets in the stack's slot order.
    pub evictions: Vec<Vec<LayerEviction>>,
    /// Most resident entries over all layers and KV heads at a time, after a token is stored and before an eviction.
    pub peak_entries: u64,
    /// Resident over seen, before an eviction at that step, mean over decode steps; absent without one.
    pub mean_keep_ratio: Option<f64>,
    /// Most bits held at a time in the representation of the store, selection metadata included; see `peak_entries` for when.
    pub peak_stored_bits: u64,
    /// Tokens that query heads attended to, summed over heads, layers and decode steps.
    pub attended: u64,
    /// Bits read by decode steps, keys, values and selection metadata.
    pub read_bits: u64,
    /// Decode steps.
    pub steps: u32,
    /// Tokens seen, prompt included.
    pub seen: u32,
}

impl Footprint {
    /// Steps at which anything was evicted.
    #[must_use]
    pub fn eviction_count(&self) -> u64 {
        self.evictions.iter().map(Vec::len).max().unwrap_or(0) as u64
    }
}
