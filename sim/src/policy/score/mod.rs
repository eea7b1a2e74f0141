//! Score policies: what a resident token is worth. Higher is kept.

pub mod kv_sketch;
pub mod narrow_value;
pub mod random;
pub mod recency;
pub mod window_mass;

use super::{Draws, HeadView, PolicyError, PolicySpec};

/// Scores tokens of one KV head.
pub trait Score: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// One score for each of `view.scored()`, in that order, into `out` (cleared first). Higher is kept.
    ///
    /// # Errors
    /// When a score is no number.
    fn score(&self, view: &HeadView<'_>, draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError>;

    /// Most recent queries that the policy looks at.
    fn window(&self) -> u32 {
        0
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}
