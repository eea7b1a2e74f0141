//! Exit policies: after which layer a pass may stop.

pub mod entropy;
pub mod never;

use super::PolicySpec;
use crate::trace::LensRow;

/// Decides where a pass over the layers stops.
pub trait Exit: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// Layers run for one position: from 1 to `rows.len()`. `rows` has one entry a layer, in order, `[layer]`.
    fn layers_run(&self, rows: &[LensRow]) -> u16;

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}
