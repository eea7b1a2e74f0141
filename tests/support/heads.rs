//! Heads built in code, and a head that watches what is read.

use kvlab_sim::policy::{HeadData, Needs};
use kvlab_sim::types::Pos;
use std::cell::Cell;

/// A KV head with vectors given by hand.
#[derive(Clone, Debug)]
pub(crate) struct PlainHead {
    /// `[member][q_pos][head_dim]`.
    pub(crate) queries: Vec<Vec<Vec<f32>>>,
    /// `[kv_pos][head_dim]`.
    pub(crate) keys: Vec<Vec<f32>>,
    /// `[kv_pos][head_dim]`.
    pub(crate) values: Vec<Vec<f32>>,
}

impl PlainHead {
    /// A copy of the first `len` positions of `head`.
    pub(crate) fn of(head: &dyn HeadData, len: u32) -> Self {
        let rows = |of: &dyn Fn(Pos) -> Vec<f32>| (0..len).map(Pos::new).map(of).collect::<Vec<_>>();
        Self {
            queries: (0..head.group()).map(|member| rows(&|pos| head.query(member, pos).to_vec())).collect(),
            keys: rows(&|pos| head.key(pos).to_vec()),
            values: rows(&|pos| head.value(pos).to_vec()),
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
}

/// Remembers which fields were read.
pub(crate) struct WatchedHead<'a> {
    inner: &'a dyn HeadData,
    read: Cell<Needs>,
}

impl<'a> WatchedHead<'a> {
    pub(crate) fn new(inner: &'a dyn HeadData) -> Self {
        Self { inner, read: Cell::new(Needs::NONE) }
    }

    pub(crate) fn read(&self) -> Needs {
        self.read.get()
    }

    fn note(&self, needs: Needs) {
        self.read.set(self.read.get().and(needs));
    }
}

impl HeadData for WatchedHead<'_> {
    fn group(&self) -> usize {
        self.inner.group()
    }
    fn key(&self, pos: Pos) -> &[f32] {
        self.note(Needs { keys: true, ..Needs::NONE });
        self.inner.key(pos)
    }
    fn value(&self, pos: Pos) -> &[f32] {
        self.note(Needs { values: true, ..Needs::NONE });
        self.inner.value(pos)
    }
    fn query(&self, member: usize, pos: Pos) -> &[f32] {
        self.note(Needs { queries: true, ..Needs::NONE });
        self.inner.query(member, pos)
    }
}
