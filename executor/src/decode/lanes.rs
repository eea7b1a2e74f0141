//! Several sequences in one pass.
//!
//! The rows of all of them go through every product together, and attention sees one list of keys: a bias shows each row the keys of its
//! own sequence and those that all have in common. Nothing is padded, so sequences of any lengths go together, every row keeps its position,
//! and a common prefix is stored once. Keys that are hidden weigh exactly nothing, but sums over a longer list round elsewhere: a
//! row's numbers agree with those of its sequence by itself to rounding, not to the last bit.

use super::{
    bias::{Bias, Shown},
    cache::KvCache,
    decoder::Decoder,
    error::DecodeError,
    pass::{Pass, Taps},
};
use crate::{
    device::{Device, Memory, Value},
    runtime::{DeviceTensor, RuntimeError},
};

/// Keys and values of several sequences, their lanes.
#[derive(Debug)]
pub struct Lanes {
    cache: KvCache,
    /// Which lane a slot belongs to, `[slot]`; nothing where all lanes see it.
    owners: Vec<Option<usize>>,
    /// Position of the next token, `[lane]`.
    next: Vec<u32>,
    /// What the pass before left on the device of the owners; nothing once they changed otherwise.
    marks: Option<DeviceTensor>,
}

impl Lanes {
    /// `count` sequences that go on from the same prefix. Nothing may have been evicted from it.
    #[must_use]
    pub fn behind(prefix: KvCache, count: usize) -> Self {
        let slots = prefix.layers().first().map_or(0, super::cache::LayerCache::slots);
        let next = vec![prefix.next_position(); count];
        Self { cache: prefix, owners: vec![None; slots], next, marks: None }
    }

    /// Sequences that have nothing in common. Nothing may have been evicted from any.
    ///
    /// # Errors
    /// The runtime.
    pub fn joined(caches: &[KvCache]) -> Result<Self, RuntimeError> {
        let slots = |cache: &KvCache| cache.layers().first().map_or(0, super::cache::LayerCache::slots);
        let owners = caches.iter().enumerate().flat_map(|(lane, cache)| vec![Some(lane); slots(cache)]);
        Ok(Self {
            owners: owners.collect(),
            next: caches.iter().map(KvCache::next_position).collect(),
            cache: KvCache::joined(caches)?,
            marks: None,
        })
    }

    /// Takes the keys and values of lanes that will not go on out of memory.
    ///
    /// # Errors
    /// The runtime.
    pub fn end(&mut self, ended: &[usize]) -> Result<(), RuntimeError> {
        let stays = |owner: &Option<usize>| owner.is_none_or(|lane| !ended.contains(&lane));
        let kept: Vec<usize> = (0..self.owners.len()).filter(|slot| stays(&self.owners[*slot])).collect();
        if kept.len() < self.owners.len() {
            self.cache.keep_slots(&kept)?;
            self.owners.retain(stays);
            self.marks = None;
        }
        Ok(())
    }

    /// What is added to the scores of `rows`, `(lane, position)`: a row sees what is common, its own lane, and of the new rows those of
    /// its lane up to itself.
    fn bias(&self, group: usize, rows: &[(usize, u32)]) -> Bias {
        let width = self.owners.len() + rows.len();
        let mut data = Vec::with_capacity(group * rows.len() * width);
        let bias = |is_seen: bool| if is_seen { 0.0 } else { f32::NEG_INFINITY };
        for (row, (lane, _)) in rows.iter().enumerate() {
            data.extend(self.owners.iter().map(|owner| bias(owner.is_none_or(|owner| owner == *lane))));
            data.extend(among(rows, row));
        }
        let end = data.len();
        for _repeat in 1..group {
            data.extend_from_within(0..end);
        }
        Bias { shape: [1, group * rows.len(), width], data }
    }

    /// The same where sessions read it.
    fn shown(&self, memory: &Memory, group: usize, rows: &[(usize, u32)]) -> Result<Shown, RuntimeError> {
        match memory {
            Memory::Host => Shown::of(memory, self.bias(group, rows)),
            Memory::Device(device) => self.shown_there(device, rows),
        }
    }

    fn shown_there(&self, device: &Device, rows: &[(usize, u32)]) -> Result<Shown, RuntimeError> {
        let made;
        let past = match &self.marks {
            Some(marks) => marks,
            None => {
                let marks = self.owners.iter().map(|owner| owner.map_or(-1.0, to_mark));
                made = device.memory().upload(&[1, 1, self.owners.len()], marks.collect())?;
                &made
            }
        };
        let new: Vec<f32> = rows.iter().map(|(lane, _)| to_mark(*lane)).collect();
        let among: Vec<f32> = (0..rows.len()).flat_map(|row| among(rows, row)).collect();
        let (bias, marks) = device.lanes(past, &new, &among)?;
        Ok(Shown { bias: Value::Device(bias), marks: Some(marks) })
    }
}

/// What is added for the new rows in the scores of one of them.
fn among(rows: &[(usize, u32)], row: usize) -> impl Iterator<Item = f32> {
    let lane = rows[row].0;
    let is_seen = move |(at, (other, _)): (usize, &(usize, u32))| at <= row && *other == lane;
    rows.iter().enumerate().map(move |each| if is_seen(each) { 0.0 } else { f32::NEG_INFINITY })
}

#[expect(clippy::cast_precision_loss, reason = "there are fewer lanes than whole numbers of f32")]
fn to_mark(lane: usize) -> f32 {
    lane as f32
}

impl Decoder<'_> {
    /// Feeds tokens to several sequences at once: `fed` is a list of `(lane, token)`, those of a lane in the order of the sequence. The
    /// decoder's own sequence is left as it is.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn forward_lanes(
        &mut self,
        lanes: &mut Lanes,
        fed: &[(usize, u32)],
        taps: Taps,
    ) -> Result<Pass, DecodeError> {
        let tokens: Vec<u32> = fed.iter().map(|(_, token)| *token).collect();
        let mut next = lanes.next.clone();
        let mut rows = Vec::with_capacity(fed.len());
        for (lane, _) in fed {
            let position = next[*lane];
            rows.push((*lane, position));
            next[*lane] = position.checked_add(1).ok_or(DecodeError::PositionsExhausted)?;
        }
        let positions: Vec<u32> = rows.iter().map(|(_, position)| *position).collect();
        self.check_tokens(&tokens)?;
        let Shown { bias, marks } = lanes.shown(self.memory(), self.config().group(), &rows)?;
        let (pass, appended) = self.walk_shown(&lanes.cache, &tokens, positions, bias, taps)?;
        for (layer, appended) in appended.into_iter().enumerate() {
            lanes.cache.layer_mut(layer)?.append(appended, &pass.positions);
        }
        lanes.owners.extend(rows.iter().map(|(lane, _)| Some(*lane)));
        (lanes.next, lanes.marks) = (next, marks);
        Ok(pass)
    }
}
