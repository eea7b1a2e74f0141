//! What a model is, read from its files: nothing is run and no weight is loaded.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use crate::{
    error::ExecutorError,
    family::{self, DecoderConfig, ModelError},
    gguf::GgufFile,
    model::{InputKind, input_kind},
    onnx::OnnxModel,
    text::{Texts, folder_texts, gguf_texts},
    weights::{ConfigKeys, SafetensorsTensors, check_folder, check_gguf, check_tokenizer},
};

/// What a model is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelCard {
    /// `gguf`, `hugging-face` or `onnx`.
    pub input: &'static str,
    /// Family, shape, rotation, windows.
    pub config: DecoderConfig,
    /// Numbers in all tensors of the files.
    pub parameters: u64,
    /// Bytes of all tensors of the files.
    pub weight_bytes: u64,
    /// Tensors by storage type.
    pub storage: BTreeMap<String, u64>,
    /// Bytes that a token takes in the cache as it is run here, in f32.
    pub kv_bytes_per_token_f32: u64,
    /// Bytes that a token takes in a cache of half precision.
    pub kv_bytes_per_token_f16: u64,
    /// Size of the tokenizer's vocabulary; nothing when there is no tokenizer.
    pub tokenizer_vocab: Option<usize>,
    /// There is a chat template.
    pub has_chat_template: bool,
    /// What can be recorded.
    pub taps: &'static [&'static str],
    /// What an exported graph cannot do by itself.
    pub note: Option<&'static str>,
    /// Longest sequence that can be recorded or run under a policy, in tokens.
    pub longest_sequence: usize,
}

/// What passes over any supported model can record. Attention probabilities are an output on request.
const TAPS: &[&str] = &["hidden", "q", "k", "v", "attention", "lens", "w_o", "head"];

impl ModelCard {
    /// Reads the files of a model: a GGUF file, a Hugging Face folder or an exported ONNX decoder.
    ///
    /// # Errors
    /// Whatever would stop loading before the weights are read.
    pub fn read(path: &Path) -> Result<Self, ExecutorError> {
        match input_kind(path)? {
            InputKind::Gguf => {
                let file = GgufFile::open(path).map_err(ModelError::from)?;
                let (_, config) = family::from_gguf(&file)?;
                let tensors = file.tensors().values().map(|tensor| {
                    let count: usize = tensor.shape.iter().product();
                    (format!("{:?}", tensor.format), count as u64, tensor.bytes)
                });
                let texts = gguf_texts(&file)?;
                check_gguf(&file, &config, texts.codec.as_ref())?;
                Ok(Self::new("gguf", config, tensors, &texts))
            }
            InputKind::Folder => {
                let (_, config) = family::from_hf(&path.join("config.json"))?;
                let files = SafetensorsTensors::open(path)?;
                let texts = folder_texts(path)?;
                check_folder(path, &files, &config, texts.codec.as_ref())?;
                Ok(Self::new("hugging-face", config, files.summaries(), &texts))
            }
            InputKind::Onnx(graph) => {
                let exported = OnnxModel::open(&graph)?;
                let texts = folder_texts(&exported.folder)?;
                let keys = ConfigKeys::of_folder(&exported.folder);
                check_tokenizer(texts.codec.as_ref(), &exported.config, &keys)?;
                let card = Self::new("onnx", exported.config.clone(), exported.summaries(), &texts);
                Ok(Self { note: exported.position_note, ..card })
            }
        }
    }

    fn new(
        input: &'static str,
        config: DecoderConfig,
        tensors: impl Iterator<Item = (String, u64, u64)>,
        texts: &Texts,
    ) -> Self {
        let (mut parameters, mut weight_bytes, mut storage) = (0, 0, BTreeMap::new());
        for (kind, count, bytes) in tensors {
            parameters += count;
            weight_bytes += bytes;
            *storage.entry(kind).or_insert(0) += 1;
        }
        let scalars = 2 * (config.layers * config.kv_width()) as u64;
        let window = config.sliding_window.map_or(usize::MAX, |window| window.tokens);
        Self {
            input,
            longest_sequence: config.context.min(window),
            config,
            parameters,
            weight_bytes,
            storage,
            kv_bytes_per_token_f32: 4 * scalars,
            kv_bytes_per_token_f16: 2 * scalars,
            tokenizer_vocab: texts.codec.as_ref().map(crate::text::TextCodec::vocab),
            has_chat_template: texts.template.is_some(),
            taps: TAPS,
            note: None,
        }
    }
}
