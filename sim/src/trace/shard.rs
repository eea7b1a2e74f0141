//! One tensor file: a safetensors file with the positions `start..end` of one sequence, all layers and fields.
//!
//! The layout is fixed by the manifest, so both directions are strict: the writer lays tensors out by layer, then by
//! field name, without gaps; the reader accepts exactly the tensors expected, wherever they lie, and nothing that
//! overlaps, leaves a gap, or has another type or shape.

use super::manifest::{Manifest, ShardInfo};
use super::{Dtype, FIELDS, TraceError};
use crate::types::ModelShape;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Bytes of the length in front of the header.
const PREFIX: u64 = 8;
/// Headers beyond this are refused unread: 10,000 tensors need a hundredth of it.
const MAX_HEADER_BYTES: u64 = 1 << 26;
const METADATA: &str = "__metadata__";

/// A tensor field as it lies in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorField {
    /// Name in [`FIELDS`].
    pub(crate) name: &'static str,
    /// Storage type.
    pub(crate) dtype: Dtype,
}

impl TensorField {
    /// Heads, where the field has them.
    pub(crate) fn heads(self, shape: &ModelShape) -> Option<u16> {
        match self.name {
            "q" => Some(shape.q_heads),
            "k" | "v" => Some(shape.kv_heads),
            _ => None,
        }
    }

    /// Scalars of one head at one position.
    pub(crate) fn width(self, shape: &ModelShape) -> usize {
        if self.name == "hidden" { shape.hidden as usize } else { usize::from(shape.head_dim) }
    }

    /// Bytes of one scalar.
    pub(crate) fn scalar_bytes(self) -> u64 {
        if self.dtype == Dtype::F16 { 2 } else { 4 }
    }

    fn dims(self, shape: &ModelShape, positions: u32) -> Vec<u64> {
        let inner = [u64::from(positions), self.width(shape) as u64];
        self.heads(shape).map(u64::from).into_iter().chain(inner).collect()
    }
}

/// The tensor fields that this build knows in a trace, in file order.
pub(crate) fn tensor_fields(manifest: &Manifest) -> Vec<TensorField> {
    let dtypes = [Dtype::F32, Dtype::F16];
    FIELDS
        .iter()
        .filter(|field| field.is_tensor())
        .filter_map(|field| {
            let stored = manifest.dtype(field.name)?;
            let dtype = dtypes.into_iter().find(|dtype| dtype.word() == stored)?;
            Some(TensorField { name: field.name, dtype })
        })
        .collect()
}

/// The name of a tensor in its shard.
pub(crate) fn tensor_name(layer: u16, field: &str) -> String {
    format!("layer{layer:03}.{field}")
}

/// The first bytes of a shard: length and header, padded with spaces so that the data starts at a multiple of 8.
pub(crate) fn header(fields: &[TensorField], shape: &ModelShape, seq: u32, positions: Range<u32>) -> Vec<u8> {
    let mut text = format!(
        "{{\"{METADATA}\":{{\"seq\":\"{seq}\",\"start\":\"{}\",\"end\":\"{}\"}}",
        positions.start, positions.end
    );
    let mut offset = 0;
    for layer in 0..shape.layers {
        for field in fields {
            let dims = field.dims(shape, positions.end - positions.start);
            let bytes = dims.iter().product::<u64>() * field.scalar_bytes();
            let entry = serde_json::json!({
                "dtype": field.dtype.word(), "shape": dims, "data_offsets": [offset, offset + bytes],
            });
            text.push_str(&format!(",\"{}\":{entry}", tensor_name(layer, field.name)));
            offset += bytes;
        }
    }
    text.push('}');
    with_length(text)
}

/// The header as it is in the file: its length in front, spaces behind up to a multiple of 8.
fn with_length(mut text: String) -> Vec<u8> {
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Where each known tensor of a shard lies in the file: `[layer][field]`, in the order of [`tensor_fields`].
#[derive(Debug)]
pub(crate) struct Layout {
    ranges: Vec<Vec<Range<u64>>>,
}

impl Layout {
    /// The bytes of a tensor in the file.
    pub(crate) fn range(&self, layer: u16, field: usize) -> Range<u64> {
        self.ranges[usize::from(layer)][field].clone()
    }
}

/// Bytes of the header that follows the eight bytes `prefix` of a file with `file_bytes` bytes.
///
/// # Errors
/// When the length is larger than any header, or than the file.
pub(crate) fn header_len(prefix: [u8; 8], file_bytes: u64, path: &Path) -> Result<u64, TraceError> {
    let length = u64::from_le_bytes(prefix);
    let most = MAX_HEADER_BYTES.min(file_bytes.saturating_sub(PREFIX));
    if length > most {
        return Err(TraceError::malformed(path, "header length", length, format!("at most {most}")));
    }
    Ok(length)
}

/// Checks the header of a shard against what the manifest promises.
///
/// # Errors
/// When a tensor is missing, unexpected, twice there, of another type or shape, outside the file, overlapping another,
/// or when bytes belong to no tensor.
pub(crate) fn layout(
    header: &[u8],
    file_bytes: u64,
    manifest: &Manifest,
    shard: &ShardInfo,
    path: &Path,
) -> Result<Layout, TraceError> {
    let bad =
        |place: &str, found: String, accepted: String| TraceError::malformed(path, place, found, accepted);
    let entries: Entries = serde_json::from_slice(header)
        .map_err(|error| bad("header", error.to_string(), "a safetensors header".to_owned()))?;
    check_metadata(&entries, shard, path)?;
    let data_start = PREFIX + header.len() as u64;
    let data_bytes = file_bytes.saturating_sub(data_start);
    check_tiling(&entries, data_bytes, path)?;

    let shape = &manifest.shape;
    let fields = tensor_fields(manifest);
    let mut left: BTreeMap<&str, &Entry> =
        entries.tensors.iter().map(|(name, entry)| (name.as_str(), entry)).collect();
    let mut ranges = Vec::with_capacity(usize::from(shape.layers));
    for layer in 0..shape.layers {
        let mut row = Vec::with_capacity(fields.len());
        for field in &fields {
            let name = tensor_name(layer, field.name);
            let Some(entry) = left.remove(name.as_str()) else {
                return Err(bad(
                    &name,
                    "no such tensor".to_owned(),
                    "one tensor for each layer and field".to_owned(),
                ));
            };
            let dims = field.dims(shape, shard.end - shard.start);
            if entry.dtype != field.dtype.word() || entry.shape != dims {
                let found = format!("{} {:?}", entry.dtype, entry.shape);
                return Err(bad(&name, found, format!("{} {dims:?}", field.dtype.word())));
            }
            let bytes = dims.iter().try_fold(field.scalar_bytes(), |bytes, &dim| bytes.checked_mul(dim));
            let [start, end] = entry.data_offsets;
            if bytes != Some(end - start) {
                return Err(bad(
                    &name,
                    format!("{} bytes", end - start),
                    format!("{} {dims:?}", entry.dtype),
                ));
            }
            row.push(data_start + start..data_start + end);
        }
        ranges.push(row);
    }
    // What is left must belong to an optional field of a newer minor version.
    for name in left.keys() {
        let field = name.split_once('.').map_or("", |(_, field)| field);
        if !manifest.holds(field) || FIELDS.iter().any(|known| known.name == field) {
            return Err(bad(
                name,
                "an unexpected tensor".to_owned(),
                "the fields of the manifest".to_owned(),
            ));
        }
    }
    Ok(Layout { ranges })
}

/// The first bytes of a file with one tensor, without metadata; see [`header`].
pub(crate) fn single_header(name: &str, dtype: Dtype, dims: &[u64]) -> Vec<u8> {
    let scalar = if dtype == Dtype::F16 { 2 } else { 4 };
    let bytes = dims.iter().product::<u64>() * scalar;
    let entry = serde_json::json!({ "dtype": dtype.word(), "shape": dims, "data_offsets": [0, bytes] });
    with_length(format!("{{\"{name}\":{entry}}}"))
}

/// Where the one tensor of a file lies: exactly `name`, of this type and shape, over all of the data.
///
/// # Errors
/// When the file holds anything else.
pub(crate) fn single_range(
    header: &[u8],
    file_bytes: u64,
    (name, dtype, dims): (&str, Dtype, &[u64]),
    path: &Path,
) -> Result<Range<u64>, TraceError> {
    let entries: Entries = serde_json::from_slice(header)
        .map_err(|error| TraceError::malformed(path, "header", error, "a safetensors header"))?;
    let data_start = PREFIX + header.len() as u64;
    check_tiling(&entries, file_bytes.saturating_sub(data_start), path)?;
    let scalar = if dtype == Dtype::F16 { 2_u64 } else { 4 };
    let bytes = dims.iter().try_fold(scalar, |bytes, &dim| bytes.checked_mul(dim));
    match entries.tensors.as_slice() {
        [(found, entry)]
            if found == name
                && entries.metadata.is_empty()
                && entry.dtype == dtype.word()
                && entry.shape == dims
                && bytes == Some(entry.data_offsets[1]) =>
        {
            Ok(data_start..file_bytes)
        }
        other => {
            let found = match other {
                [(found, entry)] => format!("`{found}` {} {:?}", entry.dtype, entry.shape),
                several => format!("{} tensors", several.len()),
            };
            Err(TraceError::malformed(
                path,
                "header",
                found,
                format!("`{name}` {} {dims:?} alone", dtype.word()),
            ))
        }
    }
}

fn check_metadata(entries: &Entries, shard: &ShardInfo, path: &Path) -> Result<(), TraceError> {
    for (key, expected) in [("seq", shard.seq), ("start", shard.start), ("end", shard.end)] {
        let found = entries.metadata.get(key).map_or("nothing", String::as_str);
        if found != expected.to_string() {
            return Err(TraceError::malformed(
                path,
                format!("{METADATA}.{key}"),
                found,
                expected.to_string(),
            ));
        }
    }
    Ok(())
}

/// The tensors lie one after the other, from the first byte of the data to the last.
fn check_tiling(entries: &Entries, data_bytes: u64, path: &Path) -> Result<(), TraceError> {
    let mut by_offset: Vec<_> = entries.tensors.iter().collect();
    by_offset.sort_by_key(|(name, entry)| (entry.data_offsets, name.as_str()));
    let mut covered = 0;
    for (name, entry) in by_offset {
        let [start, end] = entry.data_offsets;
        if start != covered || end < start || end > data_bytes {
            let accepted = format!("a range from {covered} within {data_bytes} bytes of data");
            return Err(TraceError::malformed(path, name, format!("{start}..{end}"), accepted));
        }
        covered = end;
    }
    if covered == data_bytes {
        Ok(())
    } else {
        Err(TraceError::malformed(path, "data", format!("{data_bytes} bytes"), covered.to_string()))
    }
}

/// Little-endian scalars of checked values.
pub(crate) fn encode(values: impl Iterator<Item = f32>, dtype: Dtype) -> Vec<u8> {
    if dtype == Dtype::F16 {
        values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect()
    } else {
        values.flat_map(f32::to_le_bytes).collect()
    }
}

/// Decodes little-endian scalars into `out`, as many as there are.
pub(crate) fn decode_into(bytes: &[u8], dtype: Dtype, out: &mut [f32]) {
    if dtype == Dtype::F16 {
        for (value, &scalar) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *value = half::f16::from_le_bytes(scalar).to_f32();
        }
    } else {
        for (value, &scalar) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(scalar);
        }
    }
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A header as it is, names in file order. A name that occurs twice is an error.
#[derive(Debug, Default)]
struct Entries {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, Entry)>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Entries;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map from tensor names to tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Entries::default();
                let mut names = std::collections::BTreeSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("`{name}` occurs twice")));
                    }
                    if name == METADATA {
                        entries.metadata = map.next_value()?;
                    } else {
                        entries.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}
