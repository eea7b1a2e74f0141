//! One KV head of a layer that is about to attend, as a selection sees it: the query of the new token, and all keys and values.

use std::cell::Cell;

use kvlab_sim::{policy::HeadData, rope::Rope, types::Pos};

use super::known::Known;
use crate::decode::{Ask, Quantity};

/// Vectors by original position. A query other than the new token's is not at hand; see [`AskedHead::missed`].
#[derive(Debug)]
pub(super) struct AskedHead<'a> {
    ask: Ask<'a>,
    kv_head: usize,
    /// `[member]`, each `[head_dim]`.
    queries: Vec<&'a [f32]>,
    /// `[kv_pos]`; nothing where a position is not resident.
    row_of: Vec<Option<usize>>,
    pos: Pos,
    known: &'a Known,
    /// What is not at hand reads as this, `[head_dim]`.
    absent: Vec<f32>,
    missed: Cell<Option<(Quantity, Pos)>>,
}

impl<'a> AskedHead<'a> {
    pub(super) fn new(ask: &Ask<'a>, kv_head: usize, known: &'a Known) -> Self {
        let group = ask.group();
        let queries: Vec<&[f32]> =
            (kv_head * group..(kv_head + 1) * group).map(|head| ask.query(head)).collect();
        let mut row_of = vec![None; ask.pos as usize + 1];
        for (row, pos) in ask.positions(kv_head).enumerate() {
            if let Some(pos) = pos {
                row_of[pos as usize] = Some(row);
            }
        }
        let absent = vec![f32::NAN; queries.first().map_or(0, |query| query.len())];
        let pos = Pos::new(ask.pos);
        Self { ask: *ask, kv_head, queries, row_of, pos, known, absent, missed: Cell::new(None) }
    }

    /// The last vector that was asked for and was not at hand.
    pub(super) fn missed(&self) -> Option<(Quantity, Pos)> {
        self.missed.get()
    }

    fn row_of(&self, pos: Pos) -> Option<usize> {
        self.row_of.get(pos.idx()).copied().flatten()
    }

    fn or_absent<'s>(&'s self, row: Option<&'s [f32]>, quantity: Quantity, pos: Pos) -> &'s [f32] {
        row.unwrap_or_else(|| {
            self.missed.set(Some((quantity, pos)));
            &self.absent
        })
    }
}

impl HeadData for AskedHead<'_> {
    fn group(&self) -> usize {
        self.queries.len()
    }

    fn key(&self, pos: Pos) -> &[f32] {
        let row = self.row_of(pos).and_then(|row| self.ask.key(self.kv_head, row));
        self.or_absent(row, Quantity::Key, pos)
    }

    fn value(&self, pos: Pos) -> &[f32] {
        let row = self.row_of(pos).and_then(|row| self.ask.value(self.kv_head, row));
        self.or_absent(row, Quantity::Value, pos)
    }

    fn query(&self, member: usize, pos: Pos) -> &[f32] {
        if pos == self.pos {
            return self.queries[member];
        }
        self.missed.set(Some((Quantity::Query, pos)));
        &self.absent
    }

    fn rope(&self) -> Option<&Rope> {
        self.known.rope()
    }
}
