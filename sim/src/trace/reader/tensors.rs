//! Tensors of a trace: which rows of which shards, and that they are numbers.

use super::super::folder::{self, open_inside};
use super::super::map::map;
use super::super::shard::{self, Layout, TensorField};
use super::Trace;
use crate::trace::TraceError;
use crate::types::{LayerIdx, SeqIdx};
use ndarray::{Array3, Axis};
use std::ops::Range;
use std::path::Path;

impl Trace {
    /// Tensors of one layer of one sequence, `[head, position, width]`, at the positions `window`. Fields without heads have
    /// one.
    pub(super) fn tensors<const N: usize>(
        &self,
        seq: SeqIdx,
        layer: LayerIdx,
        names: [&'static str; N],
        window: Range<u32>,
    ) -> Result<[Array3<f32>; N], TraceError> {
        let info = self.sequence(seq)?;
        if layer.get() >= self.manifest.shape.layers {
            let (given, count) = (u64::from(layer.get()), u64::from(self.manifest.shape.layers));
            return Err(TraceError::OutOfRange { what: "layer", given, count });
        }
        if window.start > window.end || window.end > info.len {
            let (given, count) = (u64::from(window.end.max(window.start)), u64::from(info.len));
            return Err(TraceError::OutOfRange { what: "position", given, count });
        }
        let mut places = [0; N];
        for (place, name) in places.iter_mut().zip(names) {
            self.require(name)?;
            *place = self.fields.iter().position(|field| field.name == name).unwrap_or_default();
        }
        let shape = &self.manifest.shape;
        let mut tensors = places.map(|place| {
            let field = self.fields[place];
            let heads = field.heads(shape).map_or(1, usize::from);
            Array3::zeros((heads, window.len(), field.width(shape)))
        });
        for at in self.shards[seq.idx()].clone() {
            let shard = &self.manifest.shards[at];
            let overlap = shard.start.max(window.start)..shard.end.min(window.end);
            if !overlap.is_empty() {
                self.read_shard(at, layer, &places, (window.start, overlap), &mut tensors)?;
            }
        }
        Ok(tensors)
    }

    /// Copies positions `overlap` of the tensors `places` of one shard into `tensors`, whose first position is `first`.
    fn read_shard(
        &self,
        at: usize,
        layer: LayerIdx,
        places: &[usize],
        (first, overlap): (u32, Range<u32>),
        tensors: &mut [Array3<f32>],
    ) -> Result<(), TraceError> {
        let shard = &self.manifest.shards[at];
        let (file, path) = open_inside(&self.root, &shard.path)?;
        let bytes = map(&file, &path)?;
        let layout = self.layout(at, &bytes, &path)?;
        let positions = (overlap.start - first) as usize..(overlap.end - first) as usize;
        let skipped = (overlap.start - shard.start) as usize;
        for (&place, tensor) in places.iter().zip(tensors) {
            let field = self.fields[place];
            let stored = stored(&bytes, layout.range(layer.get(), place));
            let head_bytes = stored.len() / tensor.len_of(Axis(0)).max(1);
            let row_bytes = head_bytes / ((shard.end - shard.start) as usize).max(1);
            for (head, mut rows) in (0_u16..).zip(tensor.outer_iter_mut()) {
                let mut rows = rows.slice_mut(ndarray::s![positions.clone(), ..]);
                let Some(out) = rows.as_slice_mut() else {
                    continue;
                };
                let from = usize::from(head) * head_bytes + skipped * row_bytes;
                let to = from + overlap.len() * row_bytes;
                shard::decode_into(&stored[from..to], field.dtype, out);
                self.check_finite(out, field, (shard.seq, overlap.start), layer, head)?;
            }
        }
        Ok(())
    }

    /// A value that is no number never reaches a policy.
    fn check_finite(
        &self,
        values: &[f32],
        field: TensorField,
        (seq, start): (u32, u32),
        layer: LayerIdx,
        head: u16,
    ) -> Result<(), TraceError> {
        // Without a way out, many are looked at with one instruction; what is rare is looked for afterwards.
        let are_finite =
            |values: &[f32]| values.iter().fold(true, |all, value| all & (value.abs() < f32::INFINITY));
        if are_finite(values) {
            return Ok(());
        }
        let Some(at) = values.iter().position(|value| !value.is_finite()) else {
            return Ok(());
        };
        let row = u32::try_from(at / field.width(&self.manifest.shape)).unwrap_or(u32::MAX);
        Err(TraceError::NonFinite {
            field: field.name,
            seq,
            layer: layer.get(),
            head: field.heads(&self.manifest.shape).map(|_| head),
            pos: start.saturating_add(row),
            value: values[at],
        })
    }

    /// The checked header of shard `at`, whose content is `bytes`.
    fn layout(&self, at: usize, bytes: &[u8], path: &Path) -> Result<&Layout, TraceError> {
        let shard = &self.manifest.shards[at];
        let found = bytes.len() as u64;
        if found != shard.bytes {
            return Err(TraceError::Size { path: path.to_owned(), expected: shard.bytes, found });
        }
        if let Some(layout) = self.layouts[at].get() {
            return Ok(layout);
        }
        let Some((prefix, rest)) = bytes.split_first_chunk::<8>() else {
            return Err(TraceError::malformed(path, "file", format!("{found} bytes"), "at least 8"));
        };
        let length = shard::header_len(*prefix, found, path)?;
        let header = usize::try_from(length).ok().and_then(|length| rest.get(..length)).unwrap_or_default();
        let layout = shard::layout(header, found, &self.manifest, shard, path)?;
        Ok(self.layouts[at].get_or_init(|| layout))
    }

    /// Reads all of shard `at`: digest, header, and that every value is finite. Gives the number of values.
    pub(in crate::trace) fn check_shard(&self, at: usize) -> Result<u64, TraceError> {
        let shard = &self.manifest.shards[at];
        let (file, path) = open_inside(&self.root, &shard.path)?;
        let bytes = map(&file, &path)?;
        let found = folder::sha256(&bytes);
        if found != shard.sha256 {
            return Err(TraceError::Checksum { path, expected: shard.sha256.clone(), found });
        }
        let layout = self.layout(at, &bytes, &path)?;
        let positions = (shard.end - shard.start) as usize;
        let mut values = 0;
        for layer in self.manifest.shape.layer_ids() {
            for (place, &field) in self.fields.iter().enumerate() {
                let stored = stored(&bytes, layout.range(layer.get(), place));
                let heads = field.heads(&self.manifest.shape).unwrap_or(1);
                let mut out = vec![0.0; positions * field.width(&self.manifest.shape)];
                for (head, stored) in (0..heads).zip(stored.chunks_exact(stored.len() / usize::from(heads))) {
                    shard::decode_into(stored, field.dtype, &mut out);
                    self.check_finite(&out, field, (shard.seq, shard.start), layer, head)?;
                    values += out.len() as u64;
                }
            }
        }
        Ok(values)
    }
}

/// The bytes of a checked range. The layout lies within the size on record, which is that of the map.
fn stored(bytes: &[u8], range: Range<u64>) -> &[u8] {
    let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
    range.and_then(|(start, end)| bytes.get(start..end)).unwrap_or_default()
}
