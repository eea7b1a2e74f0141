//! A layer that is about to attend, as a selection sees it, and what the selection says.

use super::{bias::Bias, cache::LayerCache, store::Heads};
use crate::runtime::Tensor;

/// One layer before a token attends in it: the token's queries, and the keys and values of all rows, its own last.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The layer.
    pub layer: usize,
    /// The position of the token.
    pub pos: u32,
    pub(super) stored: &'a LayerCache,
    /// `[q_head, 1, head_dim]`
    pub(super) queries: &'a Tensor,
    pub(super) keys: AskedRows<'a>,
    pub(super) values: AskedRows<'a>,
}

/// Rows of every KV head, the token's own last.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedRows<'a> {
    pub(super) first: Heads<'a>,
    /// The token's own, `[kv_head, 1, head_dim]`, where it is not among the first.
    pub(super) last: Option<&'a Tensor>,
}

/// The positions that the query heads of each group attend to, `[kv_head][member][]`.
pub type Attending = Vec<Vec<Vec<u32>>>;

impl<'a> Ask<'a> {
    /// Query heads that share a KV head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.queries.shape()[0] / self.stored.kv_heads().max(1)
    }

    /// The rotated query of a query head, `[head_dim]`.
    #[must_use]
    pub fn query(&self, q_head: usize) -> &'a [f32] {
        let width = self.queries.shape()[2];
        &self.queries.data()[q_head * width..(q_head + 1) * width]
    }

    /// The key of a row of a KV head, `[head_dim]`, if there are so many rows. Rows of hidden slots mean nothing.
    #[must_use]
    pub fn key(&self, kv_head: usize, row: usize) -> Option<&'a [f32]> {
        self.keys.row(kv_head, row, self.queries.shape()[2])
    }

    /// The value of a row of a KV head, `[head_dim]`, if there are so many rows. Rows of hidden slots mean nothing.
    #[must_use]
    pub fn value(&self, kv_head: usize, row: usize) -> Option<&'a [f32]> {
        self.values.row(kv_head, row, self.queries.shape()[2])
    }

    /// Original positions of the rows of a KV head, the token's own last; nothing where a slot is hidden.
    pub fn positions(&self, kv_head: usize) -> impl Iterator<Item = Option<u32>> + use<'a> {
        self.stored.positions(kv_head).iter().copied().chain([Some(self.pos)])
    }
}

impl<'a> AskedRows<'a> {
    fn row(&self, kv_head: usize, row: usize, width: usize) -> Option<&'a [f32]> {
        let first = self.first.head(kv_head);
        let own = self.last.map_or(&[] as &[f32], |last| Heads::One(last).head(kv_head));
        let at = row * width;
        if at < first.len() {
            return first.get(at..at + width);
        }
        own.get(at - first.len()..at - first.len() + width)
    }
}

/// A bias of one new token at `pos`, its shape and numbers, with everything hidden that is not attended to, `[kv_head, group, slot + 1]`.
pub(super) fn narrowed(
    stored: &LayerCache,
    (shape, bias): (&[usize], &[f32]),
    pos: u32,
    attending: &Attending,
) -> Bias {
    let [heads, stacked, rows] = [0, 1, 2].map(|axis| shape[axis]);
    let mut data = Vec::with_capacity(attending.len() * stacked * rows);
    for (kv_head, members) in attending.iter().enumerate() {
        let base = if heads == 1 { 0 } else { kv_head };
        for (member, positions) in members.iter().enumerate() {
            let mut wanted = positions.clone();
            wanted.sort_unstable();
            let begin = (base * stacked + member) * rows;
            let slots = stored.positions(kv_head).iter().copied().chain([Some(pos)]);
            for (added, slot) in bias[begin..begin + rows].iter().zip(slots) {
                let is_wanted = slot.is_some_and(|pos| wanted.binary_search(&pos).is_ok());
                data.push(if is_wanted { *added } else { f32::NEG_INFINITY });
            }
        }
    }
    Bias { shape: [attending.len(), stacked, rows], data }
}
