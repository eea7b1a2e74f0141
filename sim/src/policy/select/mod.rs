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

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}

/// The `count` best of `choice` by `keys` (one for each of `choice`), earlier positions first among equals.
fn best(view: &HeadView<'_>, keys: &[f32], choice: &[usize], count: usize) -> Selection {
    let scored = view.scored();
    let by_pos: std::collections::BTreeMap<u32, usize> =
        choice.iter().map(|&slot| (scored[slot].get(), slot)).collect();
    let all: Vec<(f32, u32)> =
        keys.iter().zip(choice).map(|(&key, &slot)| (key, scored[slot].get())).collect();
    let kept = crate::num::top(all, count);
    let boundary = kept.last().map(|last| last.0);
    let at_least = boundary.map_or(0, |b| keys.iter().filter(|key| key.total_cmp(&b).is_ge()).count());
    Selection { slots: kept.into_iter().map(|(_, pos)| by_pos[&pos]).collect(), tied: at_least > count }
}
