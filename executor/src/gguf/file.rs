//! Opening a file: header, metadata, tensor table; and reading single tensors.
//!
//! Tensors are read by position when they are asked for. The file is not memory-mapped: a mapped file that somebody
//! shortens kills the process, a read gives an error.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::{
    dequant::dequantise,
    error::{GgufError, GgufErrorKind},
    reader::Reader,
    tensor_type::{self, TensorType},
    value::{Array, Value},
};

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MOST_ELEMENTS: u64 = 1 << 40;

/// Where a tensor is and how it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    /// Dimensions, outermost first (rows before columns), as ndarray counts them.
    pub(crate) shape: Vec<usize>,
    /// Element format.
    pub(crate) format: TensorType,
    /// First byte in the file.
    begin: u64,
    /// Size in bytes.
    pub(crate) bytes: u64,
}

/// A tensor as `f32`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DenseTensor {
    /// Outermost first.
    pub(crate) shape: Vec<usize>,
    /// Row-major.
    pub(crate) data: Vec<f32>,
}

/// An open GGUF file.
#[derive(Debug)]
pub(crate) struct GgufFile {
    path: PathBuf,
    file: File,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl GgufFile {
    /// Opens a file and reads its metadata and tensor table.
    pub(crate) fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_inner(path).map_err(|kind| GgufError { file: path.to_owned(), kind })
    }

    fn open_inner(path: &Path) -> Result<Self, GgufErrorKind> {
        let mut reader = Reader::new(File::open(path)?)?;
        let found = reader.bytes::<4>("the magic")?;
        if found != MAGIC {
            return Err(GgufErrorKind::NotGguf { found });
        }
        match reader.u32("the version")? {
            2 | 3 => {}
            found if matches!(found.swap_bytes(), 1..=3) => return Err(GgufErrorKind::BigEndian),
            found => return Err(GgufErrorKind::Version { found }),
        }
        let tensor_count = reader.u64("the tensor count")?;
        let key_count = reader.u64("the metadata count")?;
        // A key needs its length, its type and a byte; a tensor its length, dimensions, type and offset.
        reader.check_count("the metadata", key_count, 8 + 4 + 1)?;
        reader.check_count("the tensor table", tensor_count, 8 + 4 + 8 + 4 + 8)?;
        let metadata = read_metadata(&mut reader, key_count)?;
        let alignment = read_alignment(&metadata)?;
        let mut tensors = read_tensor_table(&mut reader, tensor_count)?;
        let data = reader.offset().next_multiple_of(alignment);
        for (name, info) in &mut tensors {
            place(name, info, data, reader.length())?;
        }
        Ok(Self { path: path.to_owned(), file: File::open(path)?, metadata, tensors })
    }

    /// The path it was opened from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors by name.
    pub(crate) fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// A metadata value.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// Reads a tensor as `f32`, row-major, or gives nothing when there is no tensor of that name.
    pub(crate) fn read(&self, name: &str) -> Result<Option<DenseTensor>, GgufError> {
        let Some(info) = self.tensors.get(name) else { return Ok(None) };
        let size = usize::try_from(info.bytes).map_err(|_| {
            self.error(GgufErrorKind::AbsurdCount {
                place: name.to_owned(),
                count: info.bytes,
                available: info.bytes,
            })
        })?;
        let mut bytes = vec![0; size];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(info.begin))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|error| self.error(error.into()))?;
        Ok(Some(DenseTensor { shape: info.shape.clone(), data: dequantise(info.format, &bytes) }))
    }

    /// A needed whole number of at least one.
    pub(crate) fn count(&self, key: &str) -> Result<usize, GgufError> {
        self.optional_count(key)?.ok_or_else(|| self.missing(key))
    }

    /// A whole number of at least one, if the key is there.
    pub(crate) fn optional_count(&self, key: &str) -> Result<Option<usize>, GgufError> {
        let accepted = "a whole number from 1 to 2^31 - 1";
        self.optional(key, accepted, |value| match value {
            Value::Integer(value) if (1..=i128::from(i32::MAX)).contains(value) => {
                usize::try_from(*value).ok()
            }
            _ => None,
        })
    }

    /// A token id, if the key is there.
    pub(crate) fn optional_id(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.optional(key, "a whole number from 0 to 2^31 - 1", |value| match value {
            Value::Integer(value) if (0..=i128::from(i32::MAX)).contains(value) => u32::try_from(*value).ok(),
            _ => None,
        })
    }

    /// A finite number, if the key is there.
    pub(crate) fn optional_number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.optional(key, "a finite number", |value| match value {
            Value::Float(value) if value.is_finite() => Some(*value),
            _ => None,
        })
    }

    /// A boolean, if the key is there.
    pub(crate) fn optional_flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.optional(key, "a boolean", |value| match value {
            Value::Boolean(value) => Some(*value),
            _ => None,
        })
    }

    /// A text, if the key is there.
    pub(crate) fn optional_text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.optional(key, "a text", |value| match value {
            Value::Text(value) => Some(value.as_str()),
            _ => None,
        })
    }

    /// A needed list of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<&[String], GgufError> {
        let found = self.optional(key, "a list of texts", |value| match value {
            Value::Array(Array::Texts(values)) => Some(values.as_slice()),
            _ => None,
        })?;
        found.ok_or_else(|| self.missing(key))
    }

    /// A list of integers, if the key is there.
    pub(crate) fn optional_integers(&self, key: &str) -> Result<Option<&[i128]>, GgufError> {
        self.optional(key, "a list of integers", |value| match value {
            Value::Array(Array::Integers(values)) => Some(values.as_slice()),
            _ => None,
        })
    }

    fn optional<'a, T>(
        &'a self,
        key: &str,
        accepted: &'static str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        match take(value) {
            Some(taken) => Ok(Some(taken)),
            None => {
                let found = value.describe();
                Err(self.error(GgufErrorKind::WrongValue { key: key.to_owned(), found, accepted }))
            }
        }
    }

    pub(crate) fn missing(&self, key: &str) -> GgufError {
        self.error(GgufErrorKind::MissingKey { key: key.to_owned() })
    }

    pub(crate) fn error(&self, kind: GgufErrorKind) -> GgufError {
        GgufError { file: self.path.clone(), kind }
    }
}

fn read_metadata(reader: &mut Reader, count: u64) -> Result<BTreeMap<String, Value>, GgufErrorKind> {
    let mut metadata = BTreeMap::new();
    for index in 0..count {
        let key = reader.text(&format!("metadata key {index}"))?;
        let value = Value::read(reader, &key)?;
        if metadata.contains_key(&key) {
            return Err(GgufErrorKind::Duplicate { what: "metadata key", name: key });
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn read_alignment(metadata: &BTreeMap<String, Value>) -> Result<u64, GgufErrorKind> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Integer(value)) => {
            let found = u64::try_from(*value).unwrap_or(0);
            let good = found.is_power_of_two() && (8..=65_536).contains(&found);
            if good { Ok(found) } else { Err(GgufErrorKind::Alignment { found }) }
        }
        Some(other) => Err(GgufErrorKind::WrongValue {
            key: "general.alignment".to_owned(),
            found: other.describe(),
            accepted: "a power of two",
        }),
    }
}

/// The table as written: `begin` is still relative to the data section and `bytes` not yet known.
fn read_tensor_table(reader: &mut Reader, count: u64) -> Result<BTreeMap<String, TensorInfo>, GgufErrorKind> {
    let mut tensors = BTreeMap::new();
    for index in 0..count {
        let place = format!("tensor {index}");
        let name = reader.text(&place)?;
        let dimension_count = reader.u32(&place)?;
        if !(1..=4).contains(&dimension_count) {
            return Err(GgufErrorKind::Dimensions { tensor: name, found: vec![u64::from(dimension_count)] });
        }
        let inner_first = (0..dimension_count).map(|_| reader.u64(&place)).collect::<Result<Vec<_>, _>>()?;
        let elements = inner_first.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
        let shape =
            inner_first.iter().rev().map(|size| usize::try_from(*size)).collect::<Result<Vec<_>, _>>();
        let (Some(1..=MOST_ELEMENTS), Ok(shape)) = (elements, shape) else {
            return Err(GgufErrorKind::Dimensions { tensor: name, found: inner_first });
        };
        let number = reader.u32(&place)?;
        let Some(format) = TensorType::from_number(number) else {
            let found = tensor_type::describe(number);
            return Err(GgufErrorKind::TensorType { tensor: name, found, accepted: tensor_type::accepted() });
        };
        let begin = reader.u64(&place)?;
        if tensors.contains_key(&name) {
            return Err(GgufErrorKind::Duplicate { what: "tensor", name });
        }
        tensors.insert(name, TensorInfo { shape, format, begin, bytes: 0 });
    }
    Ok(tensors)
}

/// Turns the offset into a place in the file, and checks that the tensor is inside.
fn place(name: &str, info: &mut TensorInfo, data: u64, length: u64) -> Result<(), GgufErrorKind> {
    let block = info.format.block_elements() as u64;
    let row = info.shape.last().map_or(0, |size| *size as u64);
    if !row.is_multiple_of(block) {
        return Err(GgufErrorKind::PartialBlock { tensor: name.to_owned(), row, block });
    }
    let elements: u64 = info.shape.iter().map(|size| *size as u64).product();
    // At most 2^40 elements of at most 4 bytes: no overflow.
    let bytes = elements / block * info.format.block_bytes() as u64;
    let begin = data.saturating_add(info.begin);
    let end = begin.saturating_add(bytes);
    if end > length {
        return Err(GgufErrorKind::OutsideFile { tensor: name.to_owned(), begin, end, length });
    }
    (info.begin, info.bytes) = (begin, bytes);
    Ok(())
}
