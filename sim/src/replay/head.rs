//! One recorded KV head as policies see it.

use crate::num;
use crate::policy::HeadData;
use crate::types::{KvHead, LayerIdx, ModelShape, Pos};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;

use super::ReplayError;
use crate::trace::LayerTensors;
use ndarray::Array3;

/// Vectors of one (sequence, layer, KV head), borrowed from the layer's tensors.
#[derive(Debug)]
pub struct RecordedHead<'a> {
    queries: Vec<&'a [f32]>,
    keys: &'a [f32],
    values: &'a [f32],
    head_dim: usize,
    ranges: OnceCell<Vec<f32>>,
    /// Scaled logits of a query with every key up to its own, by query position, `[member][kv_pos]`.
    rows: RefCell<BTreeMap<u32, Vec<Vec<f32>>>>,
}

impl<'a> RecordedHead<'a> {
    /// The KV head `head` of `tensors`, which hold `len` positions.
    ///
    /// # Errors
    /// When a tensor has another shape than `shape` and `len` say.
    pub fn new(
        tensors: &'a LayerTensors,
        shape: &ModelShape,
        layer: LayerIdx,
        head: KvHead,
        len: u32,
    ) -> Result<Self, ReplayError> {
        let (positions, head_dim) = (len as usize, usize::from(shape.head_dim));
        let rows =
            |field, array: &'a Array3<f32>, heads: u16, head: usize| {
                let expected = [usize::from(heads), positions, head_dim];
                let per_head = positions * head_dim;
                let slice = array.as_slice().filter(|_| array.shape() == expected.as_slice());
                slice.map(|all| &all[head * per_head..(head + 1) * per_head]).ok_or_else(|| {
                    ReplayError::Shape { field, layer: layer.get(), expected, found: array.shape().to_vec() }
                })
            };
        Ok(Self {
            queries: shape
                .q_of(head)
                .map(|q| rows("q", &tensors.q, shape.q_heads, q.idx()))
                .collect::<Result<_, _>>()?,
            keys: rows("k", &tensors.k, shape.kv_heads, head.idx())?,
            values: rows("v", &tensors.v, shape.kv_heads, head.idx())?,
            head_dim,
            ranges: OnceCell::new(),
            rows: RefCell::new(BTreeMap::new()),
        })
    }

    /// Channels a head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Ranges of all values, `[kv_pos]`, computed once.
    #[must_use]
    pub fn ranges(&self) -> &[f32] {
        self.ranges.get_or_init(|| self.values.chunks_exact(self.head_dim).map(num::range).collect())
    }

    /// Forgets the logits of queries before `pos`: nobody will look at them again.
    pub(super) fn forget_before(&self, pos: u32) {
        let mut rows = self.rows.borrow_mut();
        let kept = rows.split_off(&pos);
        *rows = kept;
    }

    /// Hands the logits of the query at `pos` with all keys up to it to `read`, `[member][kv_pos]`. They are computed
    /// once, whichever cells ask.
    pub(super) fn with_logits<T>(&self, pos: Pos, read: impl FnOnce(&[Vec<f32>]) -> T) -> T {
        let mut rows = self.rows.borrow_mut();
        read(rows.entry(pos.get()).or_insert_with(|| {
            let scale = crate::policy::scale(self.head_dim);
            let keys = || self.keys.chunks_exact(self.head_dim).take(pos.idx() + 1);
            self.queries
                .iter()
                .map(|queries| {
                    let query = self.row(queries, pos);
                    keys().map(|key| num::dot(query, key) * scale).collect()
                })
                .collect()
        }))
    }

    fn row(&self, all: &'a [f32], pos: Pos) -> &'a [f32] {
        &all[pos.idx() * self.head_dim..(pos.idx() + 1) * self.head_dim]
    }
}

impl HeadData for RecordedHead<'_> {
    fn group(&self) -> usize {
        self.queries.len()
    }

    fn key(&self, pos: Pos) -> &[f32] {
        self.row(self.keys, pos)
    }

    fn value(&self, pos: Pos) -> &[f32] {
        self.row(self.values, pos)
    }

    fn query(&self, member: usize, pos: Pos) -> &[f32] {
        self.row(self.queries[member], pos)
    }

    fn value_range(&self, pos: Pos) -> f32 {
        self.ranges()[pos.idx()]
    }

    fn logits(&self, member: usize, query_pos: Pos, keys: &[Pos], out: &mut Vec<f32>) {
        out.clear();
        self.with_logits(query_pos, |rows| {
            // A key after the query has no entry: it is not seen.
            let row = &rows[member];
            out.extend(keys.iter().map(|pos| row.get(pos.idx()).copied().unwrap_or(f32::NEG_INFINITY)));
        });
    }
}
