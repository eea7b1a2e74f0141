//! The read-only views that policies decide on.

use super::PolicyError;
use super::{Magnitude, Memo, MemoKey, Weights, weights_from_logits};
use crate::num;
use crate::rope::Rope;
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
    /// Tokens of the prompt, at positions `0..prompt_len`.
    pub prompt_len: u32,
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

    /// The place of the value at each position in the order of `measure`, largest first and the earlier position among equals,
    /// `[kv_pos]`; absent where nobody has put them in order. Positions that are still to come have a place too: what may be
    /// used is which of two resident ones comes first.
    fn value_ranks(&self, measure: Magnitude) -> Option<Rc<Vec<u32>>> {
        let _ = measure;
        None
    }

    /// The rotary frequencies that queries and keys were turned with; absent where there is no rotation or it is unknown.
    fn rope(&self) -> Option<&Rope> {
        None
    }

    /// Positions that were recorded, those still to come included; absent in a running model, which has no future.
    fn recorded_len(&self) -> Option<u32> {
        None
    }

    /// The columns of the attention output matrix that query head `member` of the group writes with,
    /// `[hidden, head_dim]` flattened; absent where they are not at hand.
    fn output_weights(&self, member: usize) -> Option<&[f32]> {
        let _ = member;
        None
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

/// Another KV head of the layer (or the same one), for decisions over a whole layer.
#[derive(Clone, Copy)]
pub struct Peer<'a> {
    /// Vectors by original position.
    pub data: &'a dyn HeadData,
    /// Its resident tokens, `[slot]`.
    pub resident: &'a [Pos],
}

impl std::fmt::Debug for Peer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("resident", &self.resident.len()).finish_non_exhaustive()
    }
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
    /// Attention received by each resident token since it was stored, summed over all queries that saw it and averaged
    /// over the query heads of the group, `[slot]`; empty unless the scorer [accumulates](super::score::Score::accumulates).
    pub mass: &'a [f32],
    /// All KV heads of the layer in order; empty unless a part of the stack is [layer-wide](super::score::Score::is_layer_wide).
    pub peers: &'a [Peer<'a>],
    /// Slots that are up for choice: scored tokens without sinks and reserved ones, sorted. Indices into `scored()`.
    pub choice: &'a [usize],
    /// How many of `choice` will be kept under a uniform budget.
    pub room: usize,
}

impl<'a> HeadView<'a> {
    /// A view of a head by itself, with nothing accumulated and every scored token up for choice but none to be kept.
    #[must_use]
    pub fn new(
        at: At,
        data: &'a dyn HeadData,
        resident: &'a [Pos],
        recent: usize,
        window: Range<u32>,
    ) -> Self {
        Self { at, data, resident, recent, window, mass: &[], peers: &[], choice: &[], room: 0 }
    }
}

impl HeadView<'_> {
    /// Tokens that are scored: all slots but the recent ones, `[slot]`. Sinks are among them, so that their attention
    /// counts in normalisers and pooling; they are never up for choice.
    #[must_use]
    pub fn scored(&self) -> &[Pos] {
        &self.resident[..self.resident.len() - self.recent]
    }

    /// The rotary frequencies.
    ///
    /// # Errors
    /// When they are unknown; the error names `policy`.
    pub fn rope(&self, policy: &'static str) -> Result<&Rope, PolicyError> {
        self.data.rope().ok_or(PolicyError::Missing {
            policy,
            what: "the rotary frequencies of the model (`rope.inv_freq` in the trace's manifest, from format 1.1 on)",
        })
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
