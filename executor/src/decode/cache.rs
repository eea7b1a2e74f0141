//! Keys and values of a sequence, with the original position of every row.
//!
//! A layer's arrays have one length for all heads. A head that keeps fewer rows than another is padded at the end, and the
//! padding is hidden from attention. A row keeps the position it was made at, whatever is done to its vectors.

use std::sync::Arc;

use ndarray::ArrayView3;

use super::error::DecodeError;
use crate::runtime::{RuntimeError, Tensor};

/// Changes a row in place: KV head, position, key and value, each `[head_dim]`.
pub type Rewrite<'r> = &'r mut dyn FnMut(usize, u32, &mut [f32], &mut [f32]);

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerCache {
    /// `[kv_head, slot, head_dim]`, shared with forks until one of them changes.
    keys: Arc<Tensor>,
    /// `[kv_head, slot, head_dim]`
    values: Arc<Tensor>,
    /// Original position per `[kv_head][slot]`; nothing where a slot is hidden.
    positions: Vec<Vec<Option<u32>>>,
}

impl LayerCache {
    fn empty(kv_heads: usize, head_dim: usize) -> Result<Self, RuntimeError> {
        let nothing = || Tensor::new(&[kv_heads, 0, head_dim], Vec::new()).map(Arc::new);
        Ok(Self { keys: nothing()?, values: nothing()?, positions: vec![Vec::new(); kv_heads] })
    }

    /// Slots of every head, hidden ones included.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.keys.shape()[1]
    }

    /// Original positions of a head by slot; nothing where a slot is hidden.
    #[must_use]
    pub fn positions(&self, kv_head: usize) -> &[Option<u32>] {
        &self.positions[kv_head]
    }

    /// Resident positions of a head, in slot order.
    pub fn resident(&self, kv_head: usize) -> impl Iterator<Item = u32> + '_ {
        self.positions[kv_head].iter().copied().flatten()
    }

    /// Keys after rotation, `[kv_head, slot, head_dim]`. Rows of hidden slots mean nothing.
    #[must_use]
    pub fn keys(&self) -> ArrayView3<'_, f32> {
        view(&self.keys)
    }

    /// Values, `[kv_head, slot, head_dim]`. Rows of hidden slots mean nothing.
    #[must_use]
    pub fn values(&self) -> ArrayView3<'_, f32> {
        view(&self.values)
    }

    pub(super) fn key_tensor(&self) -> &Tensor {
        &self.keys
    }

    pub(super) fn value_tensor(&self) -> &Tensor {
        &self.values
    }

    /// No slot is hidden in any head.
    fn is_uniform(&self) -> bool {
        self.positions.iter().flatten().all(Option::is_some)
    }

    /// Takes the arrays that a pass gave, which hold the old rows and one new row per position.
    pub(super) fn append(&mut self, keys: Tensor, values: Tensor, positions: &[u32]) {
        (self.keys, self.values) = (Arc::new(keys), Arc::new(values));
        for head in &mut self.positions {
            head.extend(positions.iter().copied().map(Some));
        }
    }

    /// Hides every slot whose position is not kept.
    fn hide(&mut self, layer: usize, kept: &[Vec<u32>]) -> Result<(), DecodeError> {
        let (given, heads) = (kept.len(), self.positions.len());
        if given != heads {
            return Err(DecodeError::HeadCount { layer, given, heads });
        }
        let mut chosen = Vec::with_capacity(heads);
        for (head, (slots, kept)) in self.positions.iter().zip(kept).enumerate() {
            let mut wanted = kept.clone();
            wanted.sort_unstable();
            let missing = |pos: u32, twice: bool| DecodeError::NotResident { layer, head, pos, twice };
            if let Some(pair) = wanted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(missing(pair[0], true));
            }
            let keep = |slot: &Option<u32>| slot.filter(|pos| wanted.binary_search(pos).is_ok());
            let after: Vec<Option<u32>> = slots.iter().map(keep).collect();
            let mut found: Vec<u32> = after.iter().copied().flatten().collect();
            found.sort_unstable();
            if let Some(pos) = wanted.iter().find(|pos| found.binary_search(pos).is_err()) {
                return Err(missing(*pos, false));
            }
            chosen.push(after);
        }
        self.positions = chosen;
        Ok(())
    }

    /// Hands every resident row to `change`: KV head, position, key and value, each `[head_dim]`.
    fn rewrite(&mut self, change: Rewrite<'_>) -> Result<(), RuntimeError> {
        let (shape, width) = (self.keys.shape().to_vec(), self.keys.shape()[2]);
        let (mut keys, mut values) = (self.keys.data().to_vec(), self.values.data().to_vec());
        let rows = keys.chunks_exact_mut(width).zip(values.chunks_exact_mut(width));
        let slots = self
            .positions
            .iter()
            .enumerate()
            .flat_map(|(head, slots)| slots.iter().map(move |pos| (head, pos)));
        for ((key, value), (head, pos)) in rows.zip(slots) {
            if let Some(pos) = pos {
                change(head, *pos, key, value);
            }
        }
        self.keys = Arc::new(Tensor::new(&shape, keys)?);
        self.values = Arc::new(Tensor::new(&shape, values)?);
        Ok(())
    }

    /// Keeps the slots given, which rise, in every head.
    fn keep_slots(&mut self, kept: &[usize]) -> Result<(), RuntimeError> {
        let slots = vec![kept.to_vec(); self.positions.len()];
        self.keys = Arc::new(gather(&self.keys, &slots, kept.len())?);
        self.values = Arc::new(gather(&self.values, &slots, kept.len())?);
        for head in &mut self.positions {
            *head = kept.iter().map(|slot| head[*slot]).collect();
        }
        Ok(())
    }

    /// The slots of several, one after the other.
    fn joined(parts: &[&Self]) -> Result<Self, RuntimeError> {
        let join = |of: fn(&Self) -> &Tensor| {
            let tensors: Vec<&Tensor> = parts.iter().map(|part| of(part)).collect();
            concatenated(&tensors).map(Arc::new)
        };
        let heads = parts.first().map_or(0, |part| part.positions.len());
        let positions = (0..heads)
            .map(|head| parts.iter().flat_map(|part| part.positions[head].clone()).collect())
            .collect();
        Ok(Self { keys: join(Self::key_tensor)?, values: join(Self::value_tensor)?, positions })
    }

    /// Removes hidden slots, padding shorter heads to the longest.
    fn compact(&mut self) -> Result<(), RuntimeError> {
        if self.is_uniform() {
            return Ok(());
        }
        let slots: Vec<Vec<usize>> = self
            .positions
            .iter()
            .map(|head| {
                head.iter().enumerate().filter(|(_, pos)| pos.is_some()).map(|(slot, _)| slot).collect()
            })
            .collect();
        let longest = slots.iter().map(Vec::len).max().unwrap_or(0);
        self.keys = Arc::new(gather(&self.keys, &slots, longest)?);
        self.values = Arc::new(gather(&self.values, &slots, longest)?);
        for head in &mut self.positions {
            head.retain(Option::is_some);
            head.resize(longest, None);
        }
        Ok(())
    }

    /// What is added to the scores of the queries at `new`, per head of a group. With a window, a query does not see keys that
    /// are `window` or more positions back.
    pub(super) fn bias(&self, group: usize, new: &[u32], window: Option<usize>) -> Bias {
        let past = self.slots();
        let count = new.len();
        let heads = if self.shares_bias() && (window.is_none() || self.is_same_in_all_heads()) {
            1
        } else {
            self.positions.len()
        };
        let reach = window.and_then(|window| u32::try_from(window).ok()).unwrap_or(u32::MAX);
        let seen = |query: u32, key: u32| query - key < reach;
        let mut data = Vec::with_capacity(heads * group * count * (past + count));
        let bias = |is_seen: bool| if is_seen { 0.0 } else { f32::NEG_INFINITY };
        for head in &self.positions[..heads] {
            let begin = data.len();
            for (row, query) in new.iter().enumerate() {
                data.extend(head.iter().map(|slot| bias(slot.is_some_and(|key| seen(*query, key)))));
                let own = new.iter().enumerate();
                data.extend(own.map(|(column, key)| bias(column <= row && seen(*query, *key))));
            }
            let end = data.len();
            for _repeat in 1..group {
                data.extend_from_within(begin..end);
            }
        }
        Bias { shape: [heads, group * count, past + count], data }
    }

    /// All heads hold the same positions in the same slots.
    fn is_same_in_all_heads(&self) -> bool {
        self.positions.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Without a window, the bias of this layer is that of any layer with the same number of slots.
    pub(super) fn shares_bias(&self) -> bool {
        self.is_uniform()
    }
}

/// Added to scores, `[1 or kv_head, group * q_pos, slot + q_pos]`.
pub(super) struct Bias {
    pub(super) shape: [usize; 3],
    pub(super) data: Vec<f32>,
}

fn view(tensor: &Tensor) -> ArrayView3<'_, f32> {
    let shape = tensor.shape();
    ArrayView3::from_shape((shape[0], shape[1], shape[2]), tensor.data())
        .expect("a tensor is as large as its shape says")
}

/// The rows of the slots given, zero-padded to `longest`.
fn gather(tensor: &Tensor, slots: &[Vec<usize>], longest: usize) -> Result<Tensor, RuntimeError> {
    let [heads, past, width] = [0, 1, 2].map(|axis| tensor.shape()[axis]);
    let mut data = Vec::with_capacity(heads * longest * width);
    for (rows, slots) in tensor.data().chunks_exact((past * width).max(1)).zip(slots) {
        for slot in slots {
            data.extend_from_slice(&rows[slot * width..(slot + 1) * width]);
        }
        data.resize(data.len() + (longest - slots.len()) * width, 0.0);
    }
    Tensor::new(&[heads, longest, width], data)
}

/// `[kv_head, slot, head_dim]` of several, joined along the slots.
fn concatenated(parts: &[&Tensor]) -> Result<Tensor, RuntimeError> {
    let [heads, width] = parts.first().map_or([0, 0], |part| [part.shape()[0], part.shape()[2]]);
    let slots: usize = parts.iter().map(|part| part.shape()[1]).sum();
    let mut data = Vec::with_capacity(heads * slots * width);
    for head in 0..heads {
        for part in parts {
            let size = part.shape()[1] * width;
            data.extend_from_slice(&part.data()[head * size..(head + 1) * size]);
        }
    }
    Tensor::new(&[heads, slots, width], data)
}

/// Keys and values of all layers, and the position that comes next.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    next_position: u32,
}

impl KvCache {
    pub(crate) fn empty(layers: usize, kv_heads: usize, head_dim: usize) -> Result<Self, RuntimeError> {
        let layers = (0..layers).map(|_| LayerCache::empty(kv_heads, head_dim)).collect::<Result<_, _>>()?;
        Ok(Self { layers, next_position: 0 })
    }

    /// The slots of several caches of one model, one after the other in every layer, for [`super::Lanes`].
    pub(super) fn joined(caches: &[Self]) -> Result<Self, RuntimeError> {
        let count = caches.first().map_or(0, |cache| cache.layers.len());
        let layer =
            |at: usize| LayerCache::joined(&caches.iter().map(|cache| &cache.layers[at]).collect::<Vec<_>>());
        let layers = (0..count).map(layer).collect::<Result<_, _>>()?;
        Ok(Self { layers, next_position: caches.iter().map(|cache| cache.next_position).max().unwrap_or(0) })
    }

    /// Keeps the slots given in every layer and head.
    pub(super) fn keep_slots(&mut self, kept: &[usize]) -> Result<(), RuntimeError> {
        self.layers.iter_mut().try_for_each(|layer| layer.keep_slots(kept))
    }

    /// The layers.
    #[must_use]
    pub fn layers(&self) -> &[LayerCache] {
        &self.layers
    }

    /// The position of the next token. Removing rows does not change it.
    #[must_use]
    pub fn next_position(&self) -> u32 {
        self.next_position
    }

    pub(super) fn layer_mut(&mut self, layer: usize) -> Result<&mut LayerCache, DecodeError> {
        let layers = self.layers.len();
        self.layers.get_mut(layer).ok_or(DecodeError::NoSuchLayer { layer, layers })
    }

    pub(super) fn set_next_position(&mut self, asked: u32) -> Result<(), DecodeError> {
        let all = self.layers.iter().flat_map(|layer| layer.positions.iter().flatten().copied().flatten());
        match all.max() {
            Some(resident) if resident >= asked => Err(DecodeError::PositionTaken { asked, resident }),
            _ => {
                self.next_position = asked;
                Ok(())
            }
        }
    }

    /// Says that positions below `next` have been fed.
    pub(super) fn advance_to(&mut self, next: u32) {
        self.next_position = next;
    }

    /// See [`super::Decoder::retain`].
    pub(super) fn retain(&mut self, layer: usize, kept: &[Vec<u32>]) -> Result<(), DecodeError> {
        let cache = self.layer_mut(layer)?;
        cache.hide(layer, kept)?;
        Ok(cache.compact()?)
    }

    /// See [`super::Decoder::rewrite`].
    pub(super) fn rewrite(&mut self, layer: usize, change: Rewrite<'_>) -> Result<(), DecodeError> {
        Ok(self.layer_mut(layer)?.rewrite(change)?)
    }

    /// See [`super::Decoder::mask`].
    pub(super) fn mask(&mut self, layer: usize, kept: &[Vec<u32>]) -> Result<(), DecodeError> {
        self.layer_mut(layer)?.hide(layer, kept)
    }
}
