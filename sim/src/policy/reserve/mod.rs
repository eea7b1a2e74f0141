//! Reserve policies: tokens that are kept before scores are looked at.

pub mod none;
pub mod prompt;
pub mod random;
pub mod value_magnitude;

use super::{Draws, HeadView, PolicyError, PolicySpec};

/// Reserves slots of one KV head.
pub trait Reserve: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// N_v: how many of the K slots are reserved under a budget of `capacity` tokens, sinks included.
    fn reserved(&self, capacity: u32) -> u32;

    /// How many slots it asks for at an eviction, sinks included.
    fn wanted(&self, capacity: u32, view: &HeadView<'_>) -> u32 {
        let _ = view;
        self.reserved(capacity)
    }

    /// Whether sinks take some of the reserved slots.
    fn holds_sinks(&self) -> bool {
        true
    }

    /// At most `count` of `choice` (indices into `view.scored()`), best first.
    ///
    /// # Errors
    /// When a magnitude is no number.
    fn reserve(
        &self,
        view: &HeadView<'_>,
        choice: &[usize],
        count: usize,
        draws: &Draws,
    ) -> Result<Vec<usize>, PolicyError>;

    /// What a reserved token is kept for, as a word in tables.
    fn reason(&self) -> &'static str {
        "reserved"
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}
