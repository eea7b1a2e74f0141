//! Tensors of a folder with one `model.safetensors`, or several with an index.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata};
use serde::Deserialize;

use super::{agreement::Shapes, names::Spelling, source::TensorFile};
use crate::{family::ModelError, gguf::DenseTensor};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The format's own limit for its header.
const MOST_HEADER_BYTES: u64 = 100_000_000;

#[derive(Debug, Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// One open file of the model.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    header: Metadata,
    data_begin: u64,
}

/// The tensors of a model folder.
#[derive(Debug)]
pub(crate) struct SafetensorsTensors {
    folder: PathBuf,
    shards: Vec<Shard>,
}

impl SafetensorsTensors {
    pub(crate) fn open(folder: &Path) -> Result<Self, ModelError> {
        let names = if folder.join(SINGLE).is_file() { vec![SINGLE.to_owned()] } else { indexed(folder)? };
        let shards = names.iter().map(|name| Shard::open(folder.join(name))).collect::<Result<_, _>>()?;
        Ok(Self { folder: folder.to_owned(), shards })
    }

    /// Storage type, count of numbers and bytes of every tensor.
    pub(crate) fn summaries(&self) -> impl Iterator<Item = (String, u64, u64)> {
        self.shards.iter().flat_map(|shard| shard.header.tensors().into_values()).map(|info| {
            let (begin, end) = info.data_offsets;
            let count: usize = info.shape.iter().product();
            (format!("{:?}", info.dtype), count as u64, (end - begin) as u64)
        })
    }

    /// The shapes of all tensors.
    pub(crate) fn shapes(&self) -> Shapes {
        let tensors = self.shards.iter().flat_map(|shard| shard.header.tensors());
        tensors.map(|(name, info)| (name, info.shape.clone())).collect()
    }

    /// The files, in the order of their names.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }
}

/// The shards that an index names. Names that leave the folder are refused.
fn indexed(folder: &Path) -> Result<Vec<String>, ModelError> {
    let path = folder.join(INDEX);
    let text = std::fs::read_to_string(&path).map_err(ModelError::io("read", &path))?;
    let index: Index =
        serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.clone(), source })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| Path::new(name).file_name().is_none_or(|plain| plain != name.as_str())) {
        None => Ok(names.into_iter().collect()),
        Some(name) => Err(ModelError::Safetensors {
            path,
            what: "a file name in \"weight_map\"".to_owned(),
            found: format!("{name:?}"),
            accepted: "a name inside the model's folder".to_owned(),
        }),
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self, ModelError> {
        let mut file = File::open(&path).map_err(ModelError::io("open", &path))?;
        let length = file.metadata().map_err(ModelError::io("read", &path))?.len();
        let damaged = |what: String, found: String, accepted: String| ModelError::Safetensors {
            path: path.clone(),
            what,
            found,
            accepted,
        };
        if length < 8 {
            let accepted = "8 bytes of the header's size, the header, and the tensors";
            return Err(damaged("the file".to_owned(), format!("{length} bytes long"), accepted.to_owned()));
        }
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(ModelError::io("read", &path))?;
        let size = u64::from_le_bytes(size);
        let most = MOST_HEADER_BYTES.min(length - 8);
        let Some(capacity) = usize::try_from(size).ok().filter(|_| size <= most) else {
            return Err(damaged(
                "the size of the header".to_owned(),
                size.to_string(),
                format!("at most {most}"),
            ));
        };
        let mut text = vec![0; capacity];
        file.read_exact(&mut text).map_err(ModelError::io("read", &path))?;
        let header: Metadata = serde_json::from_slice(&text)
            .map_err(|source| ModelError::Json { path: path.clone(), source })?;
        let data_begin = 8 + size;
        let data = length - data_begin;
        let beyond = header.tensors().into_iter().find(|(_, info)| info.data_offsets.1 as u64 > data);
        if let Some((name, info)) = beyond {
            let (found, accepted) = (info.data_offsets.1.to_string(), format!("at most {data}"));
            return Err(damaged(format!("the end of tensor {name:?}"), found, accepted));
        }
        Ok(Self { path, file, header, data_begin })
    }

    fn read(&self, name: &str) -> Result<Option<DenseTensor>, ModelError> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let (begin, end) = info.data_offsets;
        let mut bytes = vec![0; end - begin];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.data_begin + begin as u64))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(ModelError::io("read", &self.path))?;
        let data = match info.dtype {
            Dtype::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Dtype::F16 => bytes.as_chunks().0.iter().map(|two| f16::from_le_bytes(*two).to_f32()).collect(),
            Dtype::BF16 => bytes.as_chunks().0.iter().map(|two| bf16::from_le_bytes(*two).to_f32()).collect(),
            other => {
                return Err(ModelError::Safetensors {
                    path: self.path.clone(),
                    what: format!("the type of tensor {name:?}"),
                    found: format!("{other:?}"),
                    accepted: "F32, F16 or BF16".to_owned(),
                });
            }
        };
        Ok(Some(DenseTensor { shape: info.shape.clone(), data }))
    }
}

impl TensorFile for SafetensorsTensors {
    fn path(&self) -> &Path {
        &self.folder
    }

    fn spelling(&self) -> Spelling {
        Spelling::HuggingFace
    }

    fn read(&self, name: &str) -> Result<Option<DenseTensor>, ModelError> {
        for shard in &self.shards {
            if let Some(matrix) = shard.read(name)? {
                return Ok(Some(matrix));
            }
        }
        Ok(None)
    }
}
