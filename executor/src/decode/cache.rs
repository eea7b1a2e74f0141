//! Keys and values of a sequence, with the original position of every row.
//!
//! A layer's arrays have one length for all heads. A head that keeps fewer rows than another is padded at the end, and the
//! padding is hidden from attention. A row keeps the position it was made at, whatever is done to its vectors. Where the rows lie, on the host
//! or on a device, is a matter of [`super::store`].

use std::sync::Arc;

use super::{
    error::DecodeError,
    store::{Grown, Store},
};
use crate::{
    device::Memory,
    runtime::{DeviceTensor, Feed, RuntimeError},
};

/// Changes a row in place: KV head, position, key and value, each `[head_dim]`.
pub type Rewrite<'r> = &'r mut dyn FnMut(usize, u32, &mut [f32], &mut [f32]);

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerCache {
    /// `[kv_head, slot, head_dim]`, shared with forks until one of them changes.
    keys: Store,
    /// `[kv_head, slot, head_dim]`
    values: Store,
    /// Original position per `[kv_head][slot]`; nothing where a slot is hidden.
    positions: Vec<Vec<Option<u32>>>,
    /// What the pass before left on the device of the positions; nothing once they changed otherwise.
    marks: Option<Arc<DeviceTensor>>,
}

/// What a pass adds to a layer.
#[derive(Debug)]
pub(super) struct Appended {
    pub(super) keys: Grown,
    pub(super) values: Grown,
    /// Positions of all slots after the pass, where it made them.
    pub(super) marks: Option<DeviceTensor>,
}

impl LayerCache {
    fn empty(memory: &Memory, kv_heads: usize, head_dim: usize) -> Result<Self, RuntimeError> {
        let nothing = || Store::empty(memory, kv_heads, head_dim);
        let positions = vec![Vec::new(); kv_heads];
        Ok(Self { keys: nothing()?, values: nothing()?, positions, marks: None })
    }

    /// Slots of every head, hidden ones included.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.keys.slots()
    }

    /// KV heads.
    #[must_use]
    pub fn kv_heads(&self) -> usize {
        self.positions.len()
    }

    pub(super) fn head_dim(&self) -> usize {
        self.keys.head_dim()
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

    /// Keys of a KV head after rotation, `[slot, head_dim]` row-major. Rows of hidden slots mean nothing.
    ///
    /// # Errors
    /// The runtime: keys that lie on a device are copied to the host the first time somebody looks.
    pub fn keys(&self, kv_head: usize) -> Result<&[f32], RuntimeError> {
        Ok(self.keys.heads()?.head(kv_head))
    }

    /// Values of a KV head, `[slot, head_dim]` row-major. Rows of hidden slots mean nothing.
    ///
    /// # Errors
    /// As [`LayerCache::keys`].
    pub fn values(&self, kv_head: usize) -> Result<&[f32], RuntimeError> {
        Ok(self.values.heads()?.head(kv_head))
    }

    pub(super) fn key_store(&self) -> &Store {
        &self.keys
    }

    pub(super) fn value_store(&self) -> &Store {
        &self.values
    }

    pub(super) fn feeds(&self) -> [Feed<'_>; 2] {
        [self.keys.feed(), self.values.feed()]
    }

    /// What is known on the device of the positions.
    pub(super) fn marks(&self) -> Option<&DeviceTensor> {
        self.marks.as_deref()
    }

    /// No slot is hidden in any head.
    pub(super) fn is_uniform(&self) -> bool {
        self.positions.iter().flatten().all(Option::is_some)
    }

    /// Takes the arrays that a pass gave, which hold the old rows and one new row per position.
    pub(super) fn append(&mut self, appended: Appended, positions: &[u32]) {
        self.keys.append(appended.keys);
        self.values.append(appended.values);
        self.marks = appended.marks.map(Arc::new);
        for head in &mut self.positions {
            head.extend(positions.iter().copied().map(Some));
        }
    }

    /// This layer, with rows from the host in place of all that was there, `[kv_head][slot * head_dim]`, at the same positions in every head.
    pub(super) fn hold(
        &mut self,
        keys: Vec<Vec<f32>>,
        values: Vec<Vec<f32>>,
        positions: &[u32],
    ) -> Result<(), RuntimeError> {
        self.keys.replace(keys)?;
        self.values.replace(values)?;
        self.positions.fill(positions.iter().copied().map(Some).collect());
        self.marks = None;
        Ok(())
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
        self.marks = None;
        Ok(())
    }

    /// Hands every resident row to `change`: KV head, position, key and value, each `[head_dim]`. Rows of a device go through the host.
    fn rewrite(&mut self, change: Rewrite<'_>) -> Result<(), RuntimeError> {
        let (width, heads) = (self.head_dim(), self.kv_heads());
        let (key_heads, value_heads) = (self.keys.heads()?, self.values.heads()?);
        let mut keys: Vec<Vec<f32>> = (0..heads).map(|head| key_heads.head(head).to_vec()).collect();
        let mut values: Vec<Vec<f32>> = (0..heads).map(|head| value_heads.head(head).to_vec()).collect();
        for (head, slots) in self.positions.iter().enumerate() {
            let rows = keys[head].chunks_exact_mut(width).zip(values[head].chunks_exact_mut(width));
            for ((key, value), pos) in rows.zip(slots) {
                if let Some(pos) = pos {
                    change(head, *pos, key, value);
                }
            }
        }
        self.keys.replace(keys)?;
        self.values.replace(values)
    }

    /// Keeps the slots given, which rise, in every head.
    fn keep_slots(&mut self, kept: &[usize]) -> Result<(), RuntimeError> {
        let slots = vec![kept.to_vec(); self.positions.len()];
        self.keys.gather(&slots, kept.len())?;
        self.values.gather(&slots, kept.len())?;
        for head in &mut self.positions {
            *head = kept.iter().map(|slot| head[*slot]).collect();
        }
        self.marks = None;
        Ok(())
    }

    /// The slots of several, one after the other.
    fn joined(parts: &[&Self]) -> Result<Self, RuntimeError> {
        let heads = parts.first().map_or(0, |part| part.positions.len());
        let join = |of: fn(&Self) -> &Store| {
            Store::joined(&parts.iter().map(|part| of(part)).collect::<Vec<_>>(), heads)
        };
        let positions = (0..heads)
            .map(|head| parts.iter().flat_map(|part| part.positions[head].clone()).collect())
            .collect();
        Ok(Self { keys: join(Self::key_store)?, values: join(Self::value_store)?, positions, marks: None })
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
        self.keys.gather(&slots, longest)?;
        self.values.gather(&slots, longest)?;
        for head in &mut self.positions {
            head.retain(Option::is_some);
            head.resize(longest, None);
        }
        Ok(())
    }

    /// All heads hold the same positions in the same slots.
    pub(super) fn is_same_in_all_heads(&self) -> bool {
        self.positions.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// Keys and values of all layers, and the position that comes next.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    next_position: u32,
}

impl KvCache {
    pub(crate) fn empty(
        memory: &Memory,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> Result<Self, RuntimeError> {
        let layers =
            (0..layers).map(|_| LayerCache::empty(memory, kv_heads, head_dim)).collect::<Result<_, _>>()?;
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
