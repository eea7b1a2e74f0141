//! Decoders that others exported as ONNX graphs.
//!
//! Responsible for reading such a graph: its weights, found by structure, and the numbers of the configuration that only
//! the graph has. The weights then run in kvlab's own graphs, layer by layer, so that every tap, early exits and evictions
//! with original positions work as with any other model. Not responsible for trusting that: [`Untouched`] runs the
//! exported graph, and loading compares both.

mod blocks;
mod file;
mod find;
mod genai;
mod untouched;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

pub(crate) use untouched::{Comparison, Untouched};

use crate::{
    family::{self, DecoderConfig, ModelError},
    gguf::DenseTensor,
    runtime::Runtime,
    weights::{Spelling, TensorFile},
};
use file::OnnxFile;
use find::{Found, Matrix, Piece, Widths};

/// An exported decoder: what it is and where its weights lie.
#[derive(Debug)]
pub(crate) struct OnnxModel {
    file: OnnxFile,
    pub(crate) config: DecoderConfig,
    /// By the names of a Hugging Face folder.
    pieces: BTreeMap<String, Piece>,
    /// The folder with `config.json` or `genai_config.json` and the tokenizer.
    pub(crate) folder: PathBuf,
    /// Why an evicted cache cannot run in the exported graph itself; nothing when it could.
    pub(crate) position_note: Option<&'static str>,
}

/// The graph of a folder as exporters lay it out, if there is one.
pub(crate) fn graph_of_folder(folder: &Path) -> Option<PathBuf> {
    ["model.onnx", "onnx/model.onnx"].into_iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

const ROTATES_BY_LENGTH: &str = "the graph has no position_ids and rotates at the length of the cache, so a cache with \
                                 gaps would get wrong positions in it; kvlab runs the weights in its own graphs, with original positions";

impl OnnxModel {
    /// Reads the graph at `path`. Its folder, or the one above when it lies in `onnx/`, says the rest.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let beside = path.parent().unwrap_or(Path::new("")).to_owned();
        let has_config = |folder: &Path| {
            ["config.json", "genai_config.json"].iter().any(|name| folder.join(name).is_file())
        };
        let above = beside.parent().filter(|_| beside.ends_with("onnx")).map(Path::to_owned);
        let folder = std::iter::once(beside.clone()).chain(above).find(|folder| has_config(folder));
        let file = OnnxFile::open(path)?;
        let folder = folder.ok_or_else(|| {
            file.wrong(
                "the folder",
                "without config.json or genai_config.json",
                "one of them beside the graph",
            )
        })?;
        let hugging_face = folder.join("config.json");
        let (found, config) = if hugging_face.is_file() {
            let (_, config) = family::from_hf(&hugging_face)?;
            let found = find::find(&file, Widths::of(&config))?;
            (found, config)
        } else {
            genai::read(&file, &folder.join("genai_config.json"))?
        };
        genai::check_attention(&file, &config)?;
        let sizes = [
            ("vocabulary", found.vocab, config.vocab),
            ("hidden size", found.hidden, config.hidden),
            ("feed-forward width", found.ffn, config.ffn),
        ];
        for (what, found, expected) in sizes {
            if found != expected {
                return Err(file.wrong(
                    format!("the {what} of the graph"),
                    found.to_string(),
                    format!("{expected}, as its configuration says"),
                ));
            }
        }
        let takes_positions = file.graph.input.iter().any(|input| input.name == "position_ids");
        // Joined matrices are handed out in their parts.
        let config = DecoderConfig { fused: false, ..config };
        Ok(Self {
            pieces: named(found),
            config,
            folder,
            position_note: (!takes_positions).then_some(ROTATES_BY_LENGTH),
            file,
        })
    }

    /// Refuses a file of a revision that the runtime does not read.
    pub(crate) fn check_revision(&self, runtime: &Runtime) -> Result<(), ModelError> {
        let Some(highest) = runtime.highest_revision_below(self.file.revision) else { return Ok(()) };
        let version = &runtime.report().version;
        let accepted = format!(
            "at most {highest}, which this ONNX Runtime{} reads: export the model with an older `onnx` package, or give a newer runtime with --ort-lib",
            version.as_ref().map(|version| format!(" {version}")).unwrap_or_default()
        );
        Err(self.file.wrong(
            "the revision of the file format (ir_version)",
            self.file.revision.to_string(),
            accepted,
        ))
    }

    /// All files that decide what the graph computes.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>, ModelError> {
        let outside = self.file.external_files()?.into_iter().map(|(_, path)| path);
        Ok(std::iter::once(self.file.path().to_owned()).chain(outside).collect())
    }

    /// The graph itself, to be run as it is.
    pub(crate) fn untouched(&self) -> Result<Untouched, ModelError> {
        Untouched::new(&self.file, &self.config)
    }

    /// Element type, count of numbers and bytes of every constant.
    pub(crate) fn summaries(&self) -> impl Iterator<Item = (String, u64, u64)> {
        self.file.summaries()
    }

    fn piece(&self, piece: &Piece) -> Result<DenseTensor, ModelError> {
        match piece {
            Piece::Vector(name, range) => {
                let data = self.file.read(name)?.data;
                let part = data.get(range.clone()).map(<[f32]>::to_vec).unwrap_or_default();
                Ok(DenseTensor { shape: vec![part.len()], data: part })
            }
            Piece::Matrix(matrix, range) => {
                let (rows, columns, mut data) = self.matrix(matrix)?;
                if *range != (0..rows) {
                    data = data[range.start * columns..range.end * columns].to_vec();
                }
                Ok(DenseTensor { shape: vec![range.len(), columns], data })
            }
        }
    }

    /// Outputs, inputs, and the matrix `[out, in]`.
    fn matrix(&self, matrix: &Matrix) -> Result<(usize, usize, Vec<f32>), ModelError> {
        let dense = |name: &str| -> Result<([usize; 2], Vec<f32>), ModelError> {
            let tensor = self.file.read(name)?;
            let found = format!("{:?}", tensor.shape);
            let shape = <[usize; 2]>::try_from(tensor.shape)
                .map_err(|_| self.file.wrong(format!("the shape of {name:?}"), found, "two sizes"))?;
            Ok((shape, tensor.data))
        };
        match matrix {
            Matrix::Rows(name) => dense(name).map(|([rows, columns], data)| (rows, columns, data)),
            Matrix::Columns(name) => {
                let ([columns, rows], data) = dense(name)?;
                Ok((rows, columns, file::transpose(&data, rows)))
            }
            Matrix::Blocks(blocks) => {
                let [rows, columns] = blocks.shape;
                Ok((rows, columns, blocks.read(&self.file)?))
            }
        }
    }
}

impl Widths {
    fn of(config: &DecoderConfig) -> Self {
        Self {
            layers: config.layers,
            queries: config.q_width(),
            keys: config.kv_width(),
            head_dim: config.head_dim,
        }
    }
}

/// Everything under the names of a Hugging Face folder.
fn named(found: Found) -> BTreeMap<String, Piece> {
    let layers = found.layers.into_iter().enumerate().flat_map(|(layer, parts)| {
        parts.into_iter().map(move |(name, piece)| (format!("model.layers.{layer}.{name}"), piece))
    });
    let outer = [
        ("model.embed_tokens.weight", found.embedding),
        ("model.norm.weight", found.final_norm),
        ("lm_head.weight", found.head),
    ];
    layers.chain(outer.map(|(name, piece)| (name.to_owned(), piece))).collect()
}

impl TensorFile for OnnxModel {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn spelling(&self) -> Spelling {
        Spelling::HuggingFace
    }

    fn read(&self, name: &str) -> Result<Option<DenseTensor>, ModelError> {
        self.pieces.get(name).map(|piece| self.piece(piece)).transpose()
    }
}
