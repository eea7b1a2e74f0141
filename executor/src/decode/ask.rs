//! A layer that is about to attend, as a selection sees it, and what the selection says.

use super::cache::{Bias, LayerCache};
use crate::runtime::Tensor;

/// One layer before a token attends in it: the token's queries, and the keys and values of all rows, its own last.
#[derive(Debug)]
pub struct Ask<'a> {
    /// The layer.
    pub layer: usize,
    /// The position of the token.
    pub pos: u32,
    pub(super) stored: &'a LayerCache,
    /// `[q_head, 1, head_dim]`
    pub(super) queries: &'a Tensor,
    /// `[kv_head, slot + 1, head_dim]`
    pub(super) keys: &'a Tensor,
    /// `[kv_head, slot + 1, head_dim]`
    pub(super) values: &'a Tensor,
}

/// The positions that the query heads of each group attend to, `[kv_head][member][]`.
pub type Attending = Vec<Vec<Vec<u32>>>;

impl<'a> Ask<'a> {
    /// Query heads that share a KV head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.queries.shape()[0] / self.keys.shape()[0].max(1)
    }

    /// The rotated query of a query head, `[head_dim]`.
    #[must_use]
    pub fn query(&self, q_head: usize) -> &'a [f32] {
        let width = self.queries.shape()[2];
        &self.queries.data()[q_head * width..(q_head + 1) * width]
    }

    /// Keys of a KV head, `[row, head_dim]`. Rows of hidden slots mean nothing.
    #[must_use]
    pub fn keys(&self, kv_head: usize) -> &'a [f32] {
        head(self.keys, kv_head)
    }

    /// Values of a KV head, `[row, head_dim]`. Rows of hidden slots mean nothing.
    #[must_use]
    pub fn values(&self, kv_head: usize) -> &'a [f32] {
        head(self.values, kv_head)
    }

    /// Original positions of the rows of a KV head, the token's own last; nothing where a slot is hidden.
    pub fn positions(&self, kv_head: usize) -> impl Iterator<Item = Option<u32>> + use<'a> {
        self.stored.positions(kv_head).iter().copied().chain([Some(self.pos)])
    }
}

fn head(tensor: &Tensor, kv_head: usize) -> &[f32] {
    let [_, rows, width] = [0, 1, 2].map(|axis| tensor.shape()[axis]);
    &tensor.data()[kv_head * rows * width..(kv_head + 1) * rows * width]
}

/// `bias` of one new token at `pos`, with everything hidden that is not attended to, `[kv_head, group, slot + 1]`.
pub(super) fn narrowed(stored: &LayerCache, bias: &Bias, pos: u32, attending: &Attending) -> Bias {
    let [heads, stacked, rows] = bias.shape;
    let mut data = Vec::with_capacity(attending.len() * stacked * rows);
    for (kv_head, members) in attending.iter().enumerate() {
        let base = if heads == 1 { 0 } else { kv_head };
        for (member, positions) in members.iter().enumerate() {
            let mut wanted = positions.clone();
            wanted.sort_unstable();
            let begin = (base * stacked + member) * rows;
            let slots = stored.positions(kv_head).iter().copied().chain([Some(pos)]);
            for (added, slot) in bias.data[begin..begin + rows].iter().zip(slots) {
                let is_wanted = slot.is_some_and(|pos| wanted.binary_search(&pos).is_ok());
                data.push(if is_wanted { *added } else { f32::NEG_INFINITY });
            }
        }
    }
    Bias { shape: [attending.len(), stacked, rows], data }
}
