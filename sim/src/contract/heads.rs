//! Heads built in code, and a head that watches what is read.

use crate::policy::{HeadData, Needs};
use crate::rope::Rope;
use crate::types::Pos;
use std::cell::Cell;

/// A KV head with vectors given by hand.
#[derive(Clone, Debug, Default)]
pub struct PlainHead {
    /// `[member][q_pos][head_dim]`.
    pub queries: Vec<Vec<Vec<f32>>>,
    /// `[kv_pos][head_dim]`.
    pub keys: Vec<Vec<f32>>,
    /// `[kv_pos][head_dim]`.
    pub values: Vec<Vec<f32>>,
    /// The rotation that queries and keys went through, if any.
    pub rope: Option<Rope>,
    /// What each query head writes with, `[member]`, each `[hidden, head_dim]` flattened; empty if not known.
    pub output_weights: Vec<Vec<f32>>,
}

impl PlainHead {
    /// A copy of the first `len` positions of `head`.
    #[must_use]
    pub fn of(head: &dyn HeadData, len: u32) -> Self {
        let rows = |of: &dyn Fn(Pos) -> Vec<f32>| (0..len).map(Pos::new).map(of).collect::<Vec<_>>();
        Self {
            queries: (0..head.group()).map(|member| rows(&|pos| head.query(member, pos).to_vec())).collect(),
            keys: rows(&|pos| head.key(pos).to_vec()),
            values: rows(&|pos| head.value(pos).to_vec()),
            rope: head.rope().cloned(),
            output_weights: (0..head.group())
                .filter_map(|member| head.output_weights(member).map(<[f32]>::to_vec))
                .collect(),
        }
    }
}

impl HeadData for PlainHead {
    fn group(&self) -> usize {
        self.queries.len()
    }

    fn key(&self, pos: Pos) -> &[f32] {
        &self.keys[pos.idx()]
    }

    fn value(&self, pos: Pos) -> &[f32] {
        &self.values[pos.idx()]
    }

    fn query(&self, member: usize, pos: Pos) -> &[f32] {
        &self.queries[member][pos.idx()]
    }

    fn rope(&self) -> Option<&Rope> {
        self.rope.as_ref()
    }

    fn recorded_len(&self) -> Option<u32> {
        u32::try_from(self.keys.len()).ok()
    }

    fn output_weights(&self, member: usize) -> Option<&[f32]> {
        self.output_weights.get(member).map(Vec::as_slice)
    }
}

/// Hands everything on and remembers which fields were read.
pub struct WatchedHead<'a> {
    inner: &'a dyn HeadData,
    read: Cell<Needs>,
}

impl<'a> WatchedHead<'a> {
    /// Watches `inner`.
    #[must_use]
    pub fn new(inner: &'a dyn HeadData) -> Self {
        Self { inner, read: Cell::new(Needs::NONE) }
    }

    /// What was read so far.
    #[must_use]
    pub fn read(&self) -> Needs {
        self.read.get()
    }

    fn note(&self, needs: Needs) {
        self.read.set(self.read.get().and(needs));
    }
}

impl std::fmt::Debug for WatchedHead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedHead").field("read", &self.read).finish_non_exhaustive()
    }
}

impl HeadData for WatchedHead<'_> {
    fn group(&self) -> usize {
        self.inner.group()
    }

    fn key(&self, pos: Pos) -> &[f32] {
        self.note(Needs::K);
        self.inner.key(pos)
    }

    fn value(&self, pos: Pos) -> &[f32] {
        self.note(Needs::V);
        self.inner.value(pos)
    }

    fn query(&self, member: usize, pos: Pos) -> &[f32] {
        self.note(Needs { queries: true, ..Needs::NONE });
        self.inner.query(member, pos)
    }

    fn rope(&self) -> Option<&Rope> {
        self.note(Needs::ROPE);
        self.inner.rope()
    }

    fn recorded_len(&self) -> Option<u32> {
        self.note(Needs::FUTURE);
        self.inner.recorded_len()
    }

    fn output_weights(&self, member: usize) -> Option<&[f32]> {
        self.note(Needs::W_O);
        self.inner.output_weights(member)
    }
}
