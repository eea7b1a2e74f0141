//! Rows of keys or of values of one layer, where they lie.
//!
//! On the host they are one array, which the runtime made and anybody reads. On a device sessions read them; whoever looks from the host makes a copy
//! the first time, and from then on the copy follows: new rows come from the pass, and what is taken out is taken out of both.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use crate::{
    device::{Device, Memory},
    runtime::{DeviceTensor, Feed, RuntimeError, Tensor},
};

/// Rows of every KV head on the host, `[kv_head][slot * head_dim]`: each grows by itself.
type Mirror = Vec<Vec<f32>>;

/// `[kv_head, slot, head_dim]`, shared with forks until one of them changes.
#[derive(Debug, Clone)]
pub(super) enum Store {
    Host(Arc<Tensor>),
    Device(Held),
}

/// Rows on a device.
#[derive(Debug, Clone)]
pub(super) struct Held {
    rows: Arc<HeldRows>,
    device: Arc<Device>,
}

/// Rows on a device and, once the host has looked at them, its copy. Forks share both.
#[derive(Debug)]
struct HeldRows {
    there: DeviceTensor,
    mirror: OnceLock<Mirror>,
}

/// What a pass gave: all rows, and the new ones among them.
#[derive(Debug)]
pub(super) enum Grown {
    /// The new rows are the last ones.
    Host(Tensor),
    /// The new rows, `[kv_head, q_pos, head_dim]`, are on the host too.
    Device { all: DeviceTensor, new: Tensor, device: Arc<Device> },
}

impl Grown {
    /// An array that ends with the `count` new rows of every head, and which of its rows they are.
    pub(super) fn newest(&self, count: usize) -> (&Tensor, Range<usize>) {
        match self {
            Self::Host(all) => (all, all.shape()[1] - count..all.shape()[1]),
            Self::Device { new, .. } => (new, 0..count),
        }
    }
}

/// Rows of every KV head, as the host reads them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Heads<'a> {
    One(&'a Tensor),
    Each(&'a [Vec<f32>]),
}

impl<'a> Heads<'a> {
    /// `[slot, head_dim]` of a KV head.
    pub(super) fn head(self, kv_head: usize) -> &'a [f32] {
        match self {
            Self::One(tensor) => {
                let size = tensor.shape()[1] * tensor.shape()[2];
                &tensor.data()[kv_head * size..(kv_head + 1) * size]
            }
            Self::Each(heads) => &heads[kv_head],
        }
    }
}

impl Store {
    pub(super) fn empty(memory: &Memory, kv_heads: usize, head_dim: usize) -> Result<Self, RuntimeError> {
        let shape = [kv_heads, 0, head_dim];
        Ok(match memory {
            Memory::Host => Self::Host(Arc::new(Tensor::new(&shape, Vec::new())?)),
            Memory::Device(device) => {
                let rows = device.memory().upload(&shape, Vec::new())?;
                Self::Device(Held::new(rows, None, device))
            }
        })
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(held) => held.rows.there.shape(),
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.shape()[1]
    }

    pub(super) fn head_dim(&self) -> usize {
        self.shape()[2]
    }

    pub(super) fn feed(&self) -> Feed<'_> {
        match self {
            Self::Host(tensor) => tensor.feed(),
            Self::Device(held) => held.rows.there.feed(),
        }
    }

    /// The rows, read from the host. Those of a device are copied the first time.
    pub(super) fn heads(&self) -> Result<Heads<'_>, RuntimeError> {
        match self {
            Self::Host(tensor) => Ok(Heads::One(tensor)),
            Self::Device(held) => held.mirror().map(Heads::Each),
        }
    }

    /// Takes what a pass gave, which holds the old rows and the new ones.
    pub(super) fn append(&mut self, grown: Grown) {
        match grown {
            Grown::Host(all) => *self = Self::Host(Arc::new(all)),
            Grown::Device { all, new, device } => {
                let mut mirror = match self {
                    Self::Host(_) => None,
                    Self::Device(before) => before.take_mirror(),
                };
                if let Some(heads) = &mut mirror {
                    let size = new.shape()[1] * new.shape()[2];
                    let grown = heads.iter_mut().zip(new.data().chunks_exact(size));
                    grown.for_each(|(head, rows)| head.extend_from_slice(rows));
                }
                *self = Self::Device(Held::new(all, mirror, &device));
            }
        }
    }

    /// Keeps the rows of the slots given, `[kv_head][]`, zero-padded to `longest`.
    pub(super) fn gather(&mut self, slots: &[Vec<usize>], longest: usize) -> Result<(), RuntimeError> {
        let width = self.head_dim();
        match self {
            Self::Host(tensor) => {
                let mut data = Vec::with_capacity(slots.len() * longest * width);
                for (head, slots) in slots.iter().enumerate() {
                    take_rows(&mut data, Heads::One(tensor).head(head), slots, longest, width);
                }
                *tensor = Arc::new(Tensor::new(&[slots.len(), longest, width], data)?);
            }
            Self::Device(held) => {
                let there = held.device.gather(&held.rows.there, slots, longest)?;
                let of_head = |(rows, slots): (&Vec<f32>, &Vec<usize>)| {
                    let mut head = Vec::with_capacity(longest * width);
                    take_rows(&mut head, rows, slots, longest, width);
                    head
                };
                let mirror = held.rows.mirror.get();
                let mirror = mirror.map(|heads| heads.iter().zip(slots).map(of_head).collect());
                *held = Held::new(there, mirror, &held.device);
            }
        }
        Ok(())
    }

    /// Rows of several, one behind the other in every KV head; at least one of them, and all of one model.
    pub(super) fn joined(parts: &[&Self], kv_heads: usize) -> Result<Self, RuntimeError> {
        if let Some(Self::Device(Held { device, .. })) = parts.first() {
            let rows: Vec<&DeviceTensor> = parts.iter().filter_map(|part| part.on_device()).collect();
            if rows.len() == parts.len() {
                return Ok(Self::Device(Held::new(device.join(&rows)?, None, device)));
            }
        }
        let width = parts.first().map_or(0, |part| part.head_dim());
        let slots = parts.iter().map(|part| part.slots()).sum();
        let heads = parts.iter().map(|part| part.heads()).collect::<Result<Vec<_>, _>>()?;
        let mut data = Vec::with_capacity(kv_heads * slots * width);
        for head in 0..kv_heads {
            heads.iter().for_each(|part| data.extend_from_slice(part.head(head)));
        }
        Ok(Self::Host(Arc::new(Tensor::new(&[kv_heads, slots, width], data)?)))
    }

    fn on_device(&self) -> Option<&DeviceTensor> {
        match self {
            Self::Host(_) => None,
            Self::Device(held) => Some(&held.rows.there),
        }
    }

    /// Puts rows from the host in place of all that is there, `[kv_head][slot * head_dim]`.
    pub(super) fn replace(&mut self, heads: Mirror) -> Result<(), RuntimeError> {
        let width = self.head_dim();
        let slots = heads.first().map_or(0, |head| head.len() / width.max(1));
        let (shape, data) = ([heads.len(), slots, width], heads.concat());
        match self {
            Self::Host(tensor) => *tensor = Arc::new(Tensor::new(&shape, data)?),
            Self::Device(held) => {
                let there = held.device.memory().upload(&shape, data)?;
                *held = Held::new(there, Some(heads), &held.device);
            }
        }
        Ok(())
    }
}

impl Held {
    fn new(there: DeviceTensor, mirror: Option<Mirror>, device: &Arc<Device>) -> Self {
        let mirror = mirror.map_or_else(OnceLock::new, OnceLock::from);
        Self { rows: Arc::new(HeldRows { there, mirror }), device: Arc::clone(device) }
    }

    fn mirror(&self) -> Result<&[Vec<f32>], RuntimeError> {
        if let Some(mirror) = self.rows.mirror.get() {
            return Ok(mirror);
        }
        let copy = self.rows.there.to_host()?;
        let heads = (0..copy.shape()[0]).map(|head| Heads::One(&copy).head(head).to_vec()).collect();
        // Whoever comes second has copied the same.
        Ok(self.rows.mirror.get_or_init(|| heads))
    }

    /// The copy, moved out where no fork needs it any more.
    fn take_mirror(&mut self) -> Option<Mirror> {
        match Arc::get_mut(&mut self.rows) {
            Some(rows) => rows.mirror.take(),
            None => self.rows.mirror.get().cloned(),
        }
    }
}

/// Adds the rows at `slots` of `[slot, head_dim]` to `data`, zero-padded to `longest`.
fn take_rows(data: &mut Vec<f32>, rows: &[f32], slots: &[usize], longest: usize, width: usize) {
    for slot in slots {
        data.extend_from_slice(&rows[slot * width..(slot + 1) * width]);
    }
    data.resize(data.len() + (longest - slots.len()) * width, 0.0);
}
