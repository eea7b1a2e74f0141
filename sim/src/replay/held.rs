//! What a cache holds of one KV head: keys and values as the store gives them back, beside what was recorded.

use super::RecordedHead;
use crate::policy::HeadData;
use crate::policy::store::Stored;
use crate::rope::Rope;
use crate::types::Pos;

/// Keys and values of one KV head as they are stored, by original position.
#[derive(Clone, Debug)]
pub(super) struct HeldVectors {
    keys: Vec<f32>,
    values: Vec<f32>,
    head_dim: usize,
}

impl HeldVectors {
    /// Everything as it was recorded, positions that are still to come included.
    pub(super) fn of(recorded: &RecordedHead<'_>) -> Self {
        let (keys, values) = (recorded.keys().to_vec(), recorded.values().to_vec());
        Self { keys, values, head_dim: recorded.head_dim() }
    }

    /// Replaces key and value of the tokens given by what is read back of them.
    pub(super) fn store(&mut self, changed: &[(Pos, Stored)]) {
        for (pos, stored) in changed {
            let row = pos.idx() * self.head_dim..(pos.idx() + 1) * self.head_dim;
            for (all, precision) in [(&mut self.keys, stored.key), (&mut self.values, stored.value)] {
                let read = precision.read_back(&all[row.clone()]);
                all[row.clone()].copy_from_slice(&read);
            }
        }
    }

    /// The head as policies and queries see it.
    pub(super) fn seen<'a>(&'a self, recorded: &'a RecordedHead<'a>) -> HeldHead<'a> {
        HeldHead { vectors: self, recorded }
    }
}

/// One KV head whose keys and values are those that are stored; queries are the recorded ones.
#[derive(Debug)]
pub(super) struct HeldHead<'a> {
    vectors: &'a HeldVectors,
    recorded: &'a RecordedHead<'a>,
}

impl HeldHead<'_> {
    fn row<'s>(&self, all: &'s [f32], pos: Pos) -> &'s [f32] {
        let width = self.vectors.head_dim;
        &all[pos.idx() * width..(pos.idx() + 1) * width]
    }
}

impl HeadData for HeldHead<'_> {
    fn group(&self) -> usize {
        self.recorded.group()
    }

    fn key(&self, pos: Pos) -> &[f32] {
        self.row(&self.vectors.keys, pos)
    }

    fn value(&self, pos: Pos) -> &[f32] {
        self.row(&self.vectors.values, pos)
    }

    fn query(&self, member: usize, pos: Pos) -> &[f32] {
        self.recorded.query(member, pos)
    }

    fn rope(&self) -> Option<&Rope> {
        self.recorded.rope()
    }

    fn recorded_len(&self) -> Option<u32> {
        self.recorded.recorded_len()
    }

    fn output_weights(&self, member: usize) -> Option<&[f32]> {
        self.recorded.output_weights(member)
    }
}
