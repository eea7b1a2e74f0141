//! Budget policies: how many tokens a KV head may keep after an eviction.

pub mod ada;
pub mod pyramid;
pub mod share_of_seen;
pub mod uniform;

use super::PolicySpec;
use crate::types::{KvHead, LayerIdx, ModelShape};

/// The head that a budget is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The model.
    pub shape: &'a ModelShape,
    /// Layer.
    pub layer: LayerIdx,
    /// KV head.
    pub head: KvHead,
    /// Tokens seen so far.
    pub seen: u32,
    /// Most recent tokens, always kept.
    pub recent: u32,
}

/// One KV head of a layer when budgets are moved between heads.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Scores of the tokens up for choice.
    pub scores: &'a [f32],
    /// Tokens to be chosen under the head's own budget; at most as many as there are scores.
    pub room: usize,
}

/// Shares a budget out over layers and KV heads.
pub trait Budget: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// Whether the mean budget is the study's.
    fn is_studys(&self) -> bool {
        true
    }

    /// The mean budget over all heads once `seen` tokens were seen, in tokens; `capacity` is the study's.
    fn mean(&self, capacity: u32, seen: u32) -> u32 {
        let _ = seen;
        capacity
    }

    /// Tokens that this head keeps when the mean over all heads is `mean`.
    fn share(&self, place: Place<'_>, mean: u32) -> u32 {
        let _ = place;
        mean
    }

    /// Whether [`Budget::rooms`] looks at all heads of a layer.
    fn is_layer_wide(&self) -> bool {
        false
    }

    /// Tokens to be chosen in each head of a layer, `[kv_head]`: their sum is that of `demand.room`, and no head gets
    /// more than it has scores.
    fn rooms(&self, heads: &[Demand<'_>]) -> Vec<usize> {
        heads.iter().map(|head| head.room).collect()
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}
