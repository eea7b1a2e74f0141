//! Select policies: which tokens are kept, given their scores.

pub mod top_k;
pub mod weighted_sample;

use super::{Draws, HeadView, PolicyError, PolicySpec};

/// What a selector chose.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// Indices into `view.scored()`, in selector order.
    pub slots: Vec<usize>,
    /// Whether the last kept and the first dropped candidate were equal, so that position decided.
    pub tied: bool,
}

/// Chooses among scored tokens of one KV head.
pub trait Select: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// `count` of `choice` (indices into `view.scored()`; `count` is at most its length).
    ///
    /// `scores` has one finite or infinite number, never NaN, for each of `view.scored()`.
    ///
    /// # Errors
    /// When the scores cannot be used.
    fn select(
        &self,
        view: &HeadView<'_>,
        scores: &[f32],
        choice: &[usize],
        count: usize,
        draws: &Draws,
    ) -> Result<Selection, PolicyError>;

    /// Whether scores are weights, which cannot be below 0.
    fn takes_weights(&self) -> bool {
        false
    }

    /// What a selected token is kept for, as a word in tables.
    fn reason(&self) -> &'static str {
        "score"
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}

/// The `count` best of `choice` by `keys` (one for each of `choice`), earlier positions first among equals.
pub(super) fn best(
    view: &HeadView<'_>,
    keys: impl Iterator<Item = f32>,
    choice: &[usize],
    count: usize,
) -> Selection {
    let scored = view.scored();
    let (mut slots, tied) = crate::num::top_places(keys, count, |at| scored[choice[at]].get());
    slots.iter_mut().for_each(|at| *at = choice[*at]);
    Selection { slots, tied }
}
