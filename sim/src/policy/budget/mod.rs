//! Budget policies: how many tokens a KV head may keep after an eviction.

pub mod uniform;

use super::PolicySpec;
use crate::types::{KvHead, LayerIdx, ModelShape};

/// Shares a budget out over layers and KV heads.
pub trait Budget: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// Tokens that this head keeps when the mean over all heads is `capacity`.
    fn share(&self, shape: &ModelShape, layer: LayerIdx, head: KvHead, capacity: u32) -> u32;

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}
