//! What is added to the scores of new tokens: zero where a key is seen, minus infinity where it is not.
//!
//! It follows from positions alone. On the host it is written out; where keys lie on a device, a small graph works it out there, from positions
//! that stay there too, so what crosses does not grow with the cache.

use super::cache::LayerCache;
use crate::{
    device::{Device, Memory, Value},
    runtime::{DeviceTensor, RuntimeError},
};

/// Positions from here on are not whole numbers of `f32` any more.
const POSITIONS_IN_F32: u32 = 1 << 24;

/// Added to scores, `[1 or kv_head, group * q_pos, slot + q_pos]`.
pub(super) struct Bias {
    pub(super) shape: [usize; 3],
    pub(super) data: Vec<f32>,
}

/// A bias where a session reads it.
pub(super) struct Shown {
    pub(super) bias: Value,
    /// Positions of all slots after the pass, where they were made on the way.
    pub(super) marks: Option<DeviceTensor>,
}

impl Shown {
    pub(super) fn of(memory: &Memory, bias: Bias) -> Result<Self, RuntimeError> {
        Ok(Self { bias: memory.place(&bias.shape, bias.data)?, marks: None })
    }
}

impl LayerCache {
    /// What is added to the scores of the queries at `new`, per head of a group. With a window, a query does not see keys that
    /// are `window` or more positions back.
    pub(super) fn bias(&self, group: usize, new: &[u32], window: Option<usize>) -> Bias {
        let past = self.slots();
        let count = new.len();
        let heads = self.bias_heads(window);
        let reach = window.and_then(|window| u32::try_from(window).ok()).unwrap_or(u32::MAX);
        let seen = |query: u32, key: u32| query - key < reach;
        let mut data = Vec::with_capacity(heads * group * count * (past + count));
        let bias = |is_seen: bool| if is_seen { 0.0 } else { f32::NEG_INFINITY };
        for kv_head in 0..heads {
            let (begin, head) = (data.len(), self.positions(kv_head));
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

    /// The same where sessions read it.
    pub(super) fn shown(
        &self,
        memory: &Memory,
        group: usize,
        new: &[u32],
        window: Option<usize>,
    ) -> Result<Shown, RuntimeError> {
        let Memory::Device(device) = memory else {
            return Shown::of(memory, self.bias(group, new, window));
        };
        if new.len() == 1 && window.is_none() && self.is_uniform() {
            // A single token that sees everything.
            return Shown::of(memory, Bias { shape: [1, 1, 1], data: vec![0.0] });
        }
        if new.last().is_some_and(|last| *last >= POSITIONS_IN_F32) {
            return Shown::of(memory, self.bias(group, new, window));
        }
        self.shown_there(device, new, window)
    }

    fn shown_there(
        &self,
        device: &Device,
        new: &[u32],
        window: Option<usize>,
    ) -> Result<Shown, RuntimeError> {
        let heads = self.bias_heads(window);
        let (reach, new) = (window.map_or(f32::INFINITY, to_mark_len), new.iter().copied().map(to_mark));
        let new: Vec<f32> = new.collect();
        let made;
        let past = match self.marks().filter(|marks| marks.shape() == [heads, 1, self.slots()]) {
            Some(marks) => marks,
            None => {
                let marks =
                    |head| self.positions(head).iter().map(|pos| pos.map_or(f32::NEG_INFINITY, to_mark));
                made = device
                    .memory()
                    .upload(&[heads, 1, self.slots()], (0..heads).flat_map(marks).collect())?;
                &made
            }
        };
        let (bias, marks) = device.visible(past, &new, reach)?;
        Ok(Shown { bias: Value::Device(bias), marks: Some(marks) })
    }

    /// Heads that a bias tells apart.
    fn bias_heads(&self, window: Option<usize>) -> usize {
        let is_one = self.is_uniform() && (window.is_none() || self.is_same_in_all_heads());
        if is_one { 1 } else { self.kv_heads() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "positions beyond the whole numbers of f32 do not come here")]
fn to_mark(pos: u32) -> f32 {
    pos as f32
}

#[expect(clippy::cast_precision_loss, reason = "a window beyond the whole numbers of f32 hides nothing here")]
fn to_mark_len(window: usize) -> f32 {
    window as f32
}
