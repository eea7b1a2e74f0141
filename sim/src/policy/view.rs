//! The read-only views that policies decide on.

use super::{Memo, MemoKey, Weights, weights_from_logits};
use crate::num;
use crate::types::{KvHead, LayerIdx, Pos, SeqIdx};
use std::ops::Range;
use std::rc::Rc;

/// Where and when a decision is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Sequence.
    pub seq: SeqIdx,
    /// Layer.
    pub layer: LayerIdx,
    /// KV head.
    pub head: KvHead,
    /// Which eviction of this sequence it is, from 0.
    pub eviction: u32,
    /// Tokens seen so far: the next position.
    pub seen: u32,
}

/// Vectors of one (sequence, layer, KV head), addressed by original position.
///
/// A replay serves them from a trace, an executor from its cache; both give the same bits for the same vectors.
pub trait HeadData {
    /// Query heads that read this KV head.
    fn group(&self) -> usize;

    /// The post-RoPE key at `pos`, `[head_dim]`.
    fn key(&self, pos: Pos) -> &[f32];

    /// The value at `pos`, `[head_dim]`.
    fn value(&self, pos: Pos) -> &[f32];

    /// The post-RoPE query of query head `member` of the group at `pos`, `[head_dim]`.
    fn query(&self, member: usize, pos: Pos) -> &[f32];

    /// Largest minus smallest channel of the value at `pos`.
    fn value_range(&self, pos: Pos) -> f32 {
        num::range(self.value(pos))
    }

    /// Scaled logits `<query, key> / sqrt(head_dim)` of the query at `query_pos` with the keys at `keys`, into `out`
    /// (cleared first, same order). Keys after the query get minus infinity.
    fn logits(&self, member: usize, query_pos: Pos, keys: &[Pos], out: &mut Vec<f32>) {
        let query = self.query(member, query_pos);
        let scale = scale(query.len());
        out.clear();
        out.extend(keys.iter().map(|&pos| {
            if pos > query_pos { f32::NEG_INFINITY } else { num::dot(query, self.key(pos)) * scale }
        }));
    }

    /// Attention weights of all query heads of the group at `queries` on `keys`, before any normalisation, into `out`:
    /// proportional to `exp(logit / temperature)` within one (query, member), 0 for a key after the query.
    ///
    /// What is made of weights divided by their sum has the same bits, whoever serves the vectors.
    fn weights(&self, queries: Range<u32>, keys: &[Pos], temperature: f32, out: &mut Weights) {
        weights_from_logits(self, queries, keys, temperature, out);
    }

    /// Attention of `queries` on the first `scored` of `keys`, with the softmax over all of `keys`, mean over queries and
    /// query heads, into `out`, `[slot]`: [`Weights::mean`] of [`HeadData::weights`], with the same bits.
    fn mean_attention(
        &self,
        queries: Range<u32>,
        keys: &[Pos],
        scored: usize,
        temperature: f32,
        out: &mut Vec<f32>,
    ) {
        let mut weights = Weights::default();
        self.weights(queries, keys, temperature, &mut weights);
        weights.mean(scored, out);
    }

    /// Where work on this layer that several cells or heads share is remembered; absent where nothing is.
    fn memo(&self) -> Option<&Memo> {
        None
    }
}

/// `1 / sqrt(head_dim)`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "head sizes are small")]
pub(crate) fn scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// One KV head at an eviction.
#[derive(Clone)]
pub struct HeadView<'a> {
    /// Where and when.
    pub at: At,
    /// Vectors by original position.
    pub data: &'a dyn HeadData,
    /// All resident tokens in slot order, `[slot]`. The last `recent` ones are in time order.
    pub resident: &'a [Pos],
    /// Most recent tokens, always kept: the last slots.
    pub recent: usize,
    /// Positions of the most recent queries that may be looked at: as many as the stack keeps.
    pub window: Range<u32>,
}

impl HeadView<'_> {
    /// Tokens that are scored: all slots but the recent ones, `[slot]`. Sinks are among them, so that their attention
    /// counts in normalisers and pooling; they are never up for choice.
    #[must_use]
    pub fn scored(&self) -> &[Pos] {
        &self.resident[..self.resident.len() - self.recent]
    }

    /// Positions of the last `count` queries that are at hand.
    pub fn last_queries(&self, count: u32) -> impl Iterator<Item = Pos> + use<> {
        self.last_window(count).map(Pos::new)
    }

    /// As [`HeadView::last_queries`], as a range.
    #[must_use]
    pub fn last_window(&self, count: u32) -> Range<u32> {
        self.window.end.saturating_sub(count).max(self.window.start)..self.window.end
    }

    /// The shared piece of work under `key`, made by `make` where nobody has made it.
    pub fn shared<T: 'static>(&self, key: MemoKey, make: impl FnOnce() -> T) -> Rc<T> {
        match self.data.memo() {
            Some(memo) => memo.get(key, make),
            None => Rc::new(make()),
        }
    }
}

impl std::fmt::Debug for HeadView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeadView")
            .field("at", &self.at)
            .field("resident", &self.resident.len())
            .finish_non_exhaustive()
    }
}
