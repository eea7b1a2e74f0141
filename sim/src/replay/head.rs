//! One recorded KV head as policies see it.

use crate::num::{self, products};
use crate::policy::{
    HeadData, Magnitude, Memo, TILE, Weights, divide_by_terms, mean_attention, tiles, weights_from_logits,
};
use crate::rope::Rope;
use crate::types::{KvHead, LayerIdx, ModelShape, Pos, QHead};
use smallvec::SmallVec;
use std::cell::{OnceCell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::ReplayError;
use super::known::Known;
use super::tile::Tile;
use crate::trace::LayerTensors;
use ndarray::{Array3, Axis};

/// What one KV head knows of the model beside its vectors.
#[derive(Clone, Debug, Default)]
pub struct HeadModel<'a> {
    /// The rotation of queries and keys, where there is one and it is known.
    pub rope: Option<&'a Rope>,
    /// What each query head of the group writes with, `[member]`, each `[hidden, head_dim]` flattened; empty where it is
    /// not known.
    pub output_weights: Vec<Vec<f32>>,
}

/// What one layer knows of the model beside its vectors.
#[derive(Clone, Debug, Default)]
pub struct LayerModel<'a> {
    /// The rotation of queries and keys, where there is one and it is known.
    pub rope: Option<&'a Rope>,
    /// The attention output matrix, `[hidden, q_head, head_dim]`, where it is known.
    pub w_o: Option<Array3<f32>>,
}

impl<'a> LayerModel<'a> {
    /// The part of the KV head `head`.
    #[must_use]
    pub fn of_head(&self, shape: &ModelShape, head: KvHead) -> HeadModel<'a> {
        let columns =
            |q: QHead, w_o: &Array3<f32>| w_o.index_axis(Axis(1), q.idx()).iter().copied().collect();
        let output_weights =
            self.w_o.iter().flat_map(|w_o| shape.q_of(head).map(move |q| columns(q, w_o))).collect();
        HeadModel { rope: self.rope, output_weights }
    }
}

/// Vectors of one (sequence, layer, KV head), borrowed from the layer's tensors.
#[derive(Debug)]
pub struct RecordedHead<'a> {
    queries: Vec<&'a [f32]>,
    keys: &'a [f32],
    values: &'a [f32],
    head_dim: usize,
    ranges: OnceCell<Vec<f32>>,
    /// See [`HeadData::value_ranks`], by measure.
    ranks: [OnceCell<Option<Rc<Vec<u32>>>>; Magnitude::COUNT],
    /// Attention weights of sixteen queries each, computed when they are first asked for, `[q_pos / 16]`.
    tiles: Vec<OnceCell<Tile>>,
    /// Room of forgotten tiles, for the next ones.
    room: RefCell<Vec<Vec<f32>>>,
    memo: Rc<Memo>,
    len: u32,
    model: HeadModel<'a>,
    /// The class that is being evicted, if one is.
    pub(super) known: Known,
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
            ranks: Default::default(),
            tiles: (0..len.div_ceil(TILE)).map(|_| OnceCell::new()).collect(),
            room: RefCell::new(Vec::new()),
            memo: Rc::new(Memo::default()),
            len,
            model: HeadModel::default(),
            known: Known::default(),
        })
    }

    /// With work shared with the other KV heads of the layer, through `memo`.
    #[must_use]
    pub(super) fn sharing(self, memo: &Rc<Memo>) -> Self {
        Self { memo: memo.clone(), ..self }
    }

    /// With what the source knows about the model.
    #[must_use]
    pub fn with_model(self, model: HeadModel<'a>) -> Self {
        Self { model, ..self }
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

    /// All keys, `[kv_pos, head_dim]`.
    pub(super) fn keys(&self) -> &[f32] {
        self.keys
    }

    /// All values, `[kv_pos, head_dim]`.
    pub(super) fn values(&self) -> &[f32] {
        self.values
    }

    /// The tile that holds the query at `pos`, computed once whichever cells ask.
    pub(super) fn tile(&self, pos: u32) -> &Tile {
        let first = pos / TILE * TILE;
        self.tiles[(pos / TILE) as usize].get_or_init(|| {
            let room = self.room.borrow_mut().pop().unwrap_or_default();
            Tile::compute(first, &self.queries, self.keys, self.head_dim, room)
        })
    }

    /// Forgets the weights of queries before `pos`: nobody will look at them again soon.
    pub(super) fn forget_before(&mut self, pos: u32) {
        let forgotten = self.tiles[..(pos / TILE) as usize].iter_mut().filter_map(OnceCell::take);
        self.room.get_mut().extend(forgotten.map(Tile::into_rows));
    }

    /// The tiles of `queries`, if a subset's weights are theirs up to a power of two.
    fn tame_tiles(&self, queries: &Range<u32>) -> Option<SmallVec<[&Tile; 4]>> {
        let is_recorded = queries.end as usize <= self.tiles.len() * TILE as usize;
        let tiles: SmallVec<[&Tile; 4]> =
            tiles(queries).filter(|_| is_recorded).map(|tile| self.tile(tile * TILE)).collect();
        (is_recorded && tiles.iter().all(|tile| tile.is_tame())).then_some(tiles)
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

    fn rope(&self) -> Option<&Rope> {
        self.model.rope
    }

    fn recorded_len(&self) -> Option<u32> {
        Some(self.len)
    }

    fn output_weights(&self, member: usize) -> Option<&[f32]> {
        self.model.output_weights.get(member).map(Vec::as_slice)
    }

    fn value_range(&self, pos: Pos) -> f32 {
        self.ranges()[pos.idx()]
    }

    fn value_ranks(&self, measure: Magnitude) -> Option<Rc<Vec<u32>>> {
        self.ranks[measure as usize].get_or_init(|| ranks_of(self, measure)).clone()
    }

    fn weights(&self, queries: Range<u32>, keys: &[Pos], temperature: f32, out: &mut Weights) {
        let recorded = if is_one(temperature) { self.tame_tiles(&queries) } else { None };
        let Some(recorded) = recorded else {
            weights_from_logits(self, queries, keys, temperature, out);
            return;
        };
        out.reset(queries, self.group(), keys.len());
        for (at, tile) in recorded.iter().enumerate() {
            let (rows, lanes) = (tile.rows(), tile.lanes());
            for (target, pos) in out.tile_mut(at).chunks_exact_mut(lanes).zip(keys) {
                // A key after every query of the tile has no row.
                if let Some(row) = rows.get(pos.idx() * lanes..(pos.idx() + 1) * lanes) {
                    target.copy_from_slice(row);
                }
            }
        }
    }

    fn mean_attention(
        &self,
        queries: Range<u32>,
        keys: &[Pos],
        scored: usize,
        temperature: f32,
        out: &mut Vec<f32>,
    ) {
        let recorded = if is_one(temperature) { self.tame_tiles(&queries) } else { None };
        if let Some(partial) = recorded.as_ref().and_then(|_| self.known.mean(&queries, keys, scored)) {
            out.clear();
            out.resize(scored, 0.0);
            products::folds(partial, out);
            divide_by_terms(out, queries.len(), self.group());
            return;
        }
        let latest = keys[..scored].iter().max().map_or(0, |pos| pos.get());
        // A key after every query of a tile has no row there, and no weight.
        if let Some(recorded) = recorded
            && !queries.is_empty()
            && latest / TILE <= queries.start / TILE
        {
            let rows: SmallVec<[&[f32]; 4]> = recorded.iter().map(|tile| tile.rows()).collect();
            let known = self.known.totals(&queries, keys, self.group());
            mean_attention(&rows, (&queries, self.group()), keys, scored, known, out);
            return;
        }
        let mut weights = Weights::default();
        self.weights(queries, keys, temperature, &mut weights);
        weights.mean(scored, out);
    }

    fn memo(&self) -> Option<&Memo> {
        Some(&self.memo)
    }
}

fn is_one(temperature: f32) -> bool {
    temperature.to_bits() == 1.0f32.to_bits()
}

/// The places of all values in the order of `measure`, `[kv_pos]`; nothing where one has no measure.
fn ranks_of(head: &RecordedHead<'_>, measure: Magnitude) -> Option<Rc<Vec<u32>>> {
    let sizes: Vec<f32> = (0..head.len).map(|pos| measure.of_value(head, Pos::new(pos))).collect();
    if sizes.iter().any(|size| size.is_nan()) {
        return None;
    }
    let mut ranks = vec![0; sizes.len()];
    let order = num::top(sizes.into_iter().zip(0..head.len).collect(), head.len as usize);
    for (rank, (_, pos)) in (0..head.len).zip(order) {
        ranks[pos as usize] = rank;
    }
    Some(Rc::new(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceSource;
    use crate::trace::synth::{SynthLength, SynthSpec, Synthetic};

    #[test]
    fn ranks_of_values_are_the_order_of_their_measures() {
        let shape = ModelShape { layers: 1, q_heads: 2, kv_heads: 1, head_dim: 8, hidden: 16, vocab: 32 };
        let spec = SynthSpec { shape, lengths: vec![SynthLength { prompt_len: 40, len: 60 }], seed: 3 };
        let source = Synthetic::build("sinks-and-hitters", spec).expect("the shape is valid");
        let (layer, len) = (LayerIdx::new(0), 60);
        let tensors = source.layer(source.sequences()[0].seq, layer).expect("generated");
        let head =
            RecordedHead::new(&tensors, &shape, layer, KvHead::new(0), len).expect("the shape is that");
        let measures =
            [Magnitude::Range, Magnitude::L1, Magnitude::L2, Magnitude::Variance, Magnitude::Absmax];
        assert_eq!(measures.len(), Magnitude::COUNT);
        for measure in measures {
            let key = |pos: u32| (measure.of_value(&head, Pos::new(pos)), pos);
            let mut order: Vec<u32> = (0..len).collect();
            order.sort_by(|a, b| num::keep_order(key(*a), key(*b)));
            let ranks = head.value_ranks(measure).expect("all are numbers");
            assert!((0..len).zip(&order).all(|(rank, pos)| ranks[*pos as usize] == rank), "{measure:?}");
        }
    }
}
