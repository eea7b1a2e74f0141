//! The live cache as policies see it: vectors by original position.
//!
//! A vector that is not at hand (an evicted key, a query outside the ring) reads as NaN and is remembered, so that the driver
//! stops with the place: no policy decides on a wrong number.

use std::cell::Cell;

use kvlab_sim::{
    policy::{HeadData, Needs},
    rope::Rope,
    types::{LayerIdx, Pos},
};

use super::known::Known;
use crate::{
    decode::{LayerCache, Pass, Quantity},
    family::DecoderConfig,
    runtime::RuntimeError,
};

/// The most recent post-RoPE queries of every query head.
#[derive(Debug, Clone)]
pub struct QueryRing {
    /// `[layer, q_head, q_pos mod window, head_dim]`; NaN where nothing was stored.
    data: Vec<f32>,
    q_heads: usize,
    head_dim: usize,
    window: usize,
    /// Position after the last one stored.
    next: u32,
}

impl QueryRing {
    /// An empty ring for the last `window` queries; with 0 it stores nothing.
    #[must_use]
    pub fn new(config: &DecoderConfig, window: u32) -> Self {
        let window = window as usize;
        let count = config.layers * config.q_heads * window * config.head_dim;
        let (q_heads, head_dim) = (config.q_heads, config.head_dim);
        Self { data: vec![f32::NAN; count], q_heads, head_dim, window, next: 0 }
    }

    /// Queries per query head.
    #[must_use]
    pub fn window(&self) -> usize {
        self.window
    }

    /// Stores the queries of a pass, which must tap them unless no later window reaches back to it.
    pub fn take(&mut self, pass: &Pass) {
        self.next = pass.positions.last().map_or(self.next, |last| last + 1);
        let Some(queries) = pass.queries.as_ref().filter(|_| self.window > 0) else {
            return;
        };
        let skipped = pass.positions.len().saturating_sub(self.window);
        for (layer, heads) in queries.outer_iter().enumerate() {
            for (head, rows) in heads.outer_iter().enumerate() {
                for (pos, query) in pass.positions.iter().zip(rows.outer_iter()).skip(skipped) {
                    let begin = self.offset(layer, head, *pos);
                    let stored = &mut self.data[begin..begin + self.head_dim];
                    stored.iter_mut().zip(query).for_each(|(to, from)| *to = *from);
                }
            }
        }
    }

    /// The query at `pos`, `[head_dim]`, if it is among the last ones.
    fn row(&self, layer: usize, q_head: usize, pos: u32) -> Option<&[f32]> {
        let is_stored = pos < self.next && (self.next - pos) as usize <= self.window;
        let begin = is_stored.then(|| self.offset(layer, q_head, pos))?;
        self.data.get(begin..begin + self.head_dim)
    }

    fn offset(&self, layer: usize, q_head: usize, pos: u32) -> usize {
        ((layer * self.q_heads + q_head) * self.window + pos as usize % self.window) * self.head_dim
    }
}

/// Vectors of one (layer, KV head) of a running sequence.
#[derive(Debug)]
pub struct LiveHead<'a> {
    /// `[slot, head_dim]`
    keys: &'a [f32],
    /// `[slot, head_dim]`
    values: &'a [f32],
    /// `[kv_pos]`; nothing where a position is not resident.
    slot_of: Vec<Option<usize>>,
    queries: &'a QueryRing,
    layer: usize,
    first_q_head: usize,
    group: usize,
    /// What is known of the model; nothing unless it was given.
    known: Option<&'a Known>,
    /// What is not at hand reads as this, `[head_dim]`.
    absent: Vec<f32>,
    missed: Cell<Option<(Quantity, Pos)>>,
}

impl<'a> LiveHead<'a> {
    /// The KV head `kv_head` of the cache of layer `layer`.
    ///
    /// # Errors
    /// The runtime: keys and values that lie on a device are copied to the host.
    pub fn new(
        cache: &'a LayerCache,
        queries: &'a QueryRing,
        layer: usize,
        kv_head: usize,
    ) -> Result<Self, RuntimeError> {
        Self::looking(cache, queries, layer, kv_head, Needs::KV)
    }

    /// As [`LiveHead::new`]; of keys and values only those that `needs` names are brought to the host, the others are not at hand.
    pub(super) fn looking(
        cache: &'a LayerCache,
        queries: &'a QueryRing,
        layer: usize,
        kv_head: usize,
        needs: Needs,
    ) -> Result<Self, RuntimeError> {
        let mut slot_of = Vec::new();
        for (slot, pos) in cache.positions(kv_head).iter().enumerate() {
            if let Some(pos) = pos {
                let at = *pos as usize;
                slot_of.resize(slot_of.len().max(at + 1), None);
                slot_of[at] = Some(slot);
            }
        }
        let group = queries.q_heads / cache.kv_heads().max(1);
        Ok(Self {
            keys: if needs.keys { cache.keys(kv_head)? } else { &[] },
            values: if needs.values { cache.values(kv_head)? } else { &[] },
            slot_of,
            queries,
            layer,
            first_q_head: kv_head * group,
            group,
            known: None,
            absent: vec![f32::NAN; queries.head_dim],
            missed: Cell::new(None),
        })
    }

    /// With what is known of the model.
    pub(super) fn with_known(self, known: &'a Known) -> Self {
        Self { known: Some(known), ..self }
    }

    /// The last vector that was asked for and was not at hand.
    #[must_use]
    pub fn missed(&self) -> Option<(Quantity, Pos)> {
        self.missed.get()
    }

    fn or_absent<'s>(&'s self, row: Option<&'s [f32]>, quantity: Quantity, pos: Pos) -> &'s [f32] {
        row.unwrap_or_else(|| {
            self.missed.set(Some((quantity, pos)));
            &self.absent
        })
    }

    /// The row of `all` at `pos`, if it is resident.
    fn row(&self, all: &'a [f32], pos: Pos) -> Option<&'a [f32]> {
        let width = self.absent.len();
        let slot = self.slot_of.get(pos.idx()).copied().flatten();
        slot.and_then(|slot| all.get(slot * width..(slot + 1) * width))
    }
}

impl HeadData for LiveHead<'_> {
    fn group(&self) -> usize {
        self.group
    }

    fn key(&self, pos: Pos) -> &[f32] {
        self.or_absent(self.row(self.keys, pos), Quantity::Key, pos)
    }

    fn value(&self, pos: Pos) -> &[f32] {
        self.or_absent(self.row(self.values, pos), Quantity::Value, pos)
    }

    fn query(&self, member: usize, pos: Pos) -> &[f32] {
        let row = self.queries.row(self.layer, self.first_q_head + member, pos.get());
        self.or_absent(row, Quantity::Query, pos)
    }

    fn rope(&self) -> Option<&Rope> {
        self.known.and_then(Known::rope)
    }

    fn output_weights(&self, member: usize) -> Option<&[f32]> {
        let layer = LayerIdx::new(u16::try_from(self.layer).ok()?);
        self.known.and_then(|known| known.output_weights(layer, self.first_q_head + member))
    }
}
