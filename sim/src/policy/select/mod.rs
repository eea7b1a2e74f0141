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
fn best(view: &HeadView<'_>, keys: &[f32], choice: &[usize], count: usize) -> Selection {
    let scored = view.scored();
    let all: Vec<(f32, u32)> =
        keys.iter().zip(choice).map(|(&key, &slot)| (key, scored[slot].get())).collect();
    let kept = crate::num::top(all, count);
    let boundary = kept.last().map(|last| last.0);
    let at_least = boundary.map_or(0, |b| keys.iter().filter(|key| key.total_cmp(&b).is_ge()).count());
    Selection { slots: slots_of(view, choice, &kept), tied: at_least > count }
}

/// The slots of `kept` = (score, position), all of which are in `choice`.
pub(super) fn slots_of(view: &HeadView<'_>, choice: &[usize], kept: &[(f32, u32)]) -> Vec<usize> {
    let scored = view.scored();
    let mut slot_of = vec![0; choice.iter().map(|&slot| scored[slot].idx() + 1).max().unwrap_or(0)];
    choice.iter().for_each(|&slot| slot_of[scored[slot].idx()] = slot);
    kept.iter().map(|(_, pos)| slot_of[*pos as usize]).collect()
}
