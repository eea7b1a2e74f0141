//! Model weights that policies and proxies need beside the recorded tensors: one matrix a file, read when asked for.

use super::folder::{hex, open_inside, sha256};
use super::manifest::{Manifest, NormInfo, WeightInfo};
use super::map::map;
use super::reader::Trace;
use super::{Dtype, TraceError, shard};
use crate::types::{LayerIdx, ModelShape};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Values encoded in one go.
const BATCH: usize = 1 << 16;
/// Largest finite half float.
const HALF_MAX: f32 = 65504.0;

/// A weight that a trace may hold, in the order of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The attention's output matrix of a layer, `[hidden, q_head, head_dim]`.
    WO(LayerIdx),
    /// Gain of the norm in front of the unembedding, `[hidden]`.
    FinalNorm,
    /// The unembedding, `[vocab, hidden]`.
    Unembedding,
}

impl Weight {
    /// The name of its field.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::WO(_) => "weights.w_o",
            Self::FinalNorm => "weights.final_norm",
            Self::Unembedding => "weights.unembedding",
        }
    }

    /// The name of the tensor in its file.
    #[must_use]
    pub fn tensor(self) -> String {
        match self {
            Self::WO(layer) => shard::tensor_name(layer.get(), "w_o"),
            Self::FinalNorm => "final_norm".to_owned(),
            Self::Unembedding => "unembedding".to_owned(),
        }
    }

    /// The path of its file in a trace.
    #[must_use]
    pub fn path(self) -> String {
        format!("weights/{}.safetensors", self.tensor())
    }

    /// The length of each axis.
    #[must_use]
    pub fn dims(self, shape: &ModelShape) -> Vec<u64> {
        match self {
            Self::WO(_) => vec![shape.hidden.into(), shape.q_heads.into(), shape.head_dim.into()],
            Self::FinalNorm => vec![shape.hidden.into()],
            Self::Unembedding => vec![shape.vocab.into(), shape.hidden.into()],
        }
    }

    /// The weights in a trace with this manifest, in file order.
    pub(crate) fn of(manifest: &Manifest) -> Vec<Self> {
        list(&manifest.shape, |field| manifest.holds(field))
    }
}

fn list(shape: &ModelShape, holds: impl Fn(&str) -> bool) -> Vec<Weight> {
    shape
        .layer_ids()
        .map(Weight::WO)
        .chain([Weight::FinalNorm, Weight::Unembedding])
        .filter(|weight| holds(weight.field()))
        .collect()
}

/// The weights that a recording stores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredWeights {
    /// Storage type of the attention's output matrices, `F32` or `F16`; absent to store none.
    pub w_o: Option<Dtype>,
    /// The norm in front of the unembedding, when its gain is stored.
    pub final_norm: Option<NormInfo>,
    /// Storage type of the unembedding, `F32` or `F16`; absent to store none.
    pub unembedding: Option<Dtype>,
}

impl StoredWeights {
    /// The storage type of the field called `name`, with or without `weights.`.
    pub(super) fn dtype(&self, name: &str) -> Option<Dtype> {
        match name.strip_prefix("weights.").unwrap_or(name) {
            "w_o" => self.w_o,
            "final_norm" => self.final_norm.as_ref().map(|_| Dtype::F32),
            _ => self.unembedding,
        }
    }

    /// The weights, in file order.
    #[must_use]
    pub fn list(&self, shape: &ModelShape) -> Vec<Weight> {
        list(shape, |field| self.dtype(field).is_some())
    }
}

/// Writes and syncs the file of a weight.
pub(super) fn write(
    root: &Path,
    weight: Weight,
    dtype: Dtype,
    shape: &ModelShape,
    values: &[f32],
) -> Result<WeightInfo, TraceError> {
    let dims = weight.dims(shape);
    let expected = dims.iter().product::<u64>();
    if values.len() as u64 != expected {
        let found = format!("{} values", values.len());
        return Err(TraceError::chunk(weight.path(), found, format!("{expected}: {dims:?}")));
    }
    let most = if dtype == Dtype::F16 { HALF_MAX } else { f32::MAX };
    if let Some(element) = values.iter().position(|value| !(value.abs() <= most)) {
        let value = values[element];
        if value.is_finite() {
            let accepted = "a half float, at most 65504";
            return Err(TraceError::chunk(format!("{}: element {element}", weight.path()), value, accepted));
        }
        return Err(TraceError::NonFiniteWeight { weight: weight.tensor(), element, value });
    }
    let inside = weight.path();
    let path = root.join(&inside);
    let io = |error| TraceError::io(&path, error);
    let mut file = BufWriter::new(File::create(&path).map_err(io)?);
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut put = |part: &[u8]| {
        hash.update(part);
        bytes += part.len() as u64;
        file.write_all(part)
    };
    put(&shard::single_header(&weight.tensor(), dtype, &dims)).map_err(io)?;
    for values in values.chunks(BATCH) {
        put(&shard::encode(values.iter().copied(), dtype)).map_err(io)?;
    }
    file.into_inner().map_err(|error| io(error.into_error()))?.sync_all().map_err(io)?;
    Ok(WeightInfo { path: inside, bytes, sha256: hex(hash.finalize()) })
}

/// Reads a weight, row-major.
pub(super) fn read(trace: &Trace, weight: Weight) -> Result<Vec<f32>, TraceError> {
    trace.require(weight.field())?;
    decoded(trace, weight, &with_file(trace, weight)?)
}

/// Reads a weight in full: digest, header, and that every value is finite. Gives the number of values.
pub(super) fn check(trace: &Trace, weight: Weight) -> Result<u64, TraceError> {
    let bytes = with_file(trace, weight)?;
    let (info, found) = (info(trace, weight)?, sha256(&bytes));
    if found != info.sha256 {
        let path = trace.path().join(&info.path);
        return Err(TraceError::Checksum { path, expected: info.sha256.clone(), found });
    }
    Ok(decoded(trace, weight, &bytes)?.len() as u64)
}

fn info(trace: &Trace, weight: Weight) -> Result<&WeightInfo, TraceError> {
    let path = weight.path();
    let manifest = trace.manifest();
    manifest
        .weights
        .iter()
        .find(|info| info.path == path)
        .ok_or_else(|| TraceError::MissingField { field: weight.field(), held: manifest.field_names() })
}

fn with_file(trace: &Trace, weight: Weight) -> Result<memmap2::Mmap, TraceError> {
    let info = info(trace, weight)?;
    let (file, path) = open_inside(trace.path(), &info.path)?;
    let bytes = map(&file, &path)?;
    let found = bytes.len() as u64;
    if found != info.bytes {
        return Err(TraceError::Size { path, expected: info.bytes, found });
    }
    Ok(bytes)
}

fn decoded(trace: &Trace, weight: Weight, bytes: &[u8]) -> Result<Vec<f32>, TraceError> {
    let path = trace.path().join(weight.path());
    let manifest = trace.manifest();
    let found = bytes.len() as u64;
    let Some((prefix, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(TraceError::malformed(&path, "file", format!("{found} bytes"), "at least 8"));
    };
    let length = shard::header_len(*prefix, found, &path)?;
    let header = usize::try_from(length).ok().and_then(|length| rest.get(..length)).unwrap_or_default();
    let half = manifest.dtype(weight.field()) == Some(Dtype::F16.word());
    let dtype = if half { Dtype::F16 } else { Dtype::F32 };
    let name = weight.tensor();
    let range = shard::single_range(header, found, (&name, dtype, &weight.dims(&manifest.shape)), &path)?;
    let start = usize::try_from(range.start).unwrap_or(usize::MAX);
    let stored = bytes.get(start..).unwrap_or_default();
    let mut values = vec![0.0; stored.len() / if half { 2 } else { 4 }];
    shard::decode_into(stored, dtype, &mut values);
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(element) => Err(TraceError::NonFiniteWeight { weight: name, element, value: values[element] }),
    }
}
