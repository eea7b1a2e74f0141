//! Score policies: what a resident token is worth. Higher is kept.

pub mod accumulated_attention;
pub mod critical;
pub mod expected_attention;
pub mod inner;
pub mod key_diff;
pub mod key_norm;
pub mod kv_sketch;
pub mod lag_kv;
pub mod last_attention;
pub mod leverage;
pub mod narrow_value;
pub mod oracle;
pub mod r_kv;
pub mod random;
pub mod recency;
pub mod value_magnitude;
pub mod value_weighted;
pub mod window_mass;

use window_mass::Normaliser;

use super::{Draws, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

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

    /// The attention of the last queries that the policy asks its head for, where it asks for it at a temperature of 1: how many
    /// queries, and what their softmax runs over. A replay that is told adds it up as it measures queries; it gives the same scores without.
    fn mean_attention(&self) -> Option<(u32, Normaliser)> {
        None
    }

    /// Whether the policy reads [`HeadView::mass`]: then every query that attends is taken in, prompt included.
    fn accumulates(&self) -> bool {
        false
    }

    /// Whether the policy reads [`HeadView::peers`]: then all KV heads of a layer are evicted together.
    fn is_layer_wide(&self) -> bool {
        false
    }

    /// Whether the scores depend on [`HeadView::choice`] or [`HeadView::room`]: then they are not shared between budgets.
    fn looks_at_choice(&self) -> bool {
        false
    }

    /// Whether scores can be below 0: then they are no weights for a sampler.
    fn can_be_negative(&self) -> bool {
        false
    }

    /// Trace fields that it reads with its parameters.
    fn needs(&self) -> Needs {
        self.spec().needs
    }

    /// Whether it draws with its parameters.
    fn randomness(&self) -> Randomness {
        self.spec().randomness
    }

    /// Whether it claims `law` with its parameters.
    fn claims(&self, law: Law) -> bool {
        self.spec().laws.contains(&law)
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}
