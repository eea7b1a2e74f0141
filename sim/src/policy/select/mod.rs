//! Select policies: which tokens are kept, given their scores.

pub mod top_k;
pub mod weighted_sample;

use super::{Draws, HeadView, PolicyError, PolicySpec, lists};
use crate::num;

/// What a selector chose.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// Indices into `view.scored()`, in selector order.
    pub slots: Vec<usize>,
    /// Whether the last kept and the first dropped candidate were equal, so that position decided.
    pub tied: bool,
    /// How many of the last of `slots` are there only since nothing with weight was left.
    pub filled: usize,
}

impl Selection {
    /// The slots that were chosen, and those that only fill up.
    #[must_use]
    pub fn parts(&self) -> (&[usize], &[usize]) {
        self.slots.split_at(self.slots.len().saturating_sub(self.filled))
    }
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

/// `Vec::retain`, without branches: which slots are kept is as good as random.
pub(in crate::policy) fn keep_where(slots: &mut Vec<usize>, is_kept: impl Fn(usize) -> bool) {
    let mut kept = 0;
    for at in 0..slots.len() {
        let slot = slots[at];
        slots[kept] = slot;
        kept += usize::from(is_kept(slot));
    }
    slots.truncate(kept);
}

/// The `count` of `choice` that come first by `ranks`, `[kv_pos]`: what [`best`] gives where a token's key is always the same, without
/// sorting.
pub(super) fn first_ranked(view: &HeadView<'_>, ranks: &[u32], choice: &[usize], count: usize) -> Vec<usize> {
    let scored = view.scored();
    let (mut at_rank, mut first): (Vec<usize>, Vec<usize>) = (lists::take(view.data), lists::take(view.data));
    at_rank.resize(ranks.len(), usize::MAX);
    for slot in choice {
        at_rank[ranks[scored[*slot].idx()] as usize] = *slot;
    }
    // Without branches: which ranks are taken is as good as random. One place more than are wanted takes what is written over.
    let count = count.min(choice.len());
    first.resize(count + 1, 0);
    let mut found = 0;
    for slot in &at_rank {
        if found == count {
            break;
        }
        first[found] = *slot;
        found += usize::from(*slot != usize::MAX);
    }
    first.truncate(count);
    lists::give_back(view.data, at_rank);
    first
}

/// The `count` best of `choice` by `keys` (one for each of `choice`), earlier positions first among equals.
pub(super) fn best(
    view: &HeadView<'_>,
    keys: impl Iterator<Item = f32>,
    choice: &[usize],
    count: usize,
) -> Selection {
    let scored = view.scored();
    let mut words = lists::take(view.data);
    let tied = num::top_places(&mut words, keys, count, |at| scored[choice[at]].get());
    let mut slots: Vec<usize> = lists::take(view.data);
    slots.extend(words.iter().map(|word| choice[num::place_of(*word)]));
    lists::give_back(view.data, words);
    Selection { slots, tied, filled: 0 }
}
