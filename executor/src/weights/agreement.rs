//! Whether a configuration and the tensors beside it are of one model. Only names and shapes are read, but for a head that is stored
//! although the configuration says that the embedding serves.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    gguf::GgufTensors,
    names::{Outer, Part, Spelling},
    safetensors::SafetensorsTensors,
    source::TensorFile,
};
use crate::{
    family::{DecoderConfig, ModelError},
    gguf::GgufFile,
    text::TextCodec,
};

/// Where a configuration says what must agree with the tensors.
#[derive(Debug, Clone)]
pub(crate) struct ConfigKeys {
    /// The file.
    pub(crate) path: PathBuf,
    /// The key of the number of layers.
    pub(crate) layers: String,
    /// The key of the size of the vocabulary.
    pub(crate) vocab: String,
    /// The key of the width of the residual stream.
    pub(crate) hidden: String,
}

impl ConfigKeys {
    /// Those of the `config.json` of `folder`, or of the `genai_config.json` of an exported graph.
    pub(crate) fn of_folder(folder: &Path) -> Self {
        let key = str::to_owned;
        let (layers, vocab, hidden) = (key("num_hidden_layers"), key("vocab_size"), key("hidden_size"));
        let own = folder.join("config.json");
        let path = if own.is_file() { own } else { folder.join("genai_config.json") };
        Self { path, layers, vocab, hidden }
    }

    /// Those of a GGUF file of this architecture.
    pub(crate) fn of_gguf(path: &Path, architecture: &str) -> Self {
        let key = |name: &str| format!("{architecture}.{name}");
        let (layers, vocab, hidden) = (key("block_count"), key("vocab_size"), key("embedding_length"));
        Self { path: path.to_owned(), layers, vocab, hidden }
    }

    fn refuse(&self, key: &str, found: impl ToString, others: String) -> ModelError {
        ModelError::Contradiction {
            path: self.path.clone(),
            key: key.to_owned(),
            found: found.to_string(),
            others,
        }
    }
}

/// The key of a `config.json` that says whether the embedding serves as head.
const TIED: &str = "tie_word_embeddings";

/// Refuses a GGUF file whose metadata, tensors and tokenizer are not of one model.
pub(crate) fn check_gguf(
    file: &GgufFile,
    config: &DecoderConfig,
    codec: Option<&TextCodec>,
) -> Result<(), ModelError> {
    let tensors = GgufTensors(file);
    let architecture = file.optional_text("general.architecture")?.unwrap_or_default();
    let keys = ConfigKeys::of_gguf(file.path(), architecture);
    check_tensors(&tensors, &tensors.shapes(), config, &keys)?;
    check_tokenizer(codec, config, &keys)
}

/// Refuses a Hugging Face folder whose configuration, tensors and tokenizer are not of one model.
pub(crate) fn check_folder(
    folder: &Path,
    tensors: &SafetensorsTensors,
    config: &DecoderConfig,
    codec: Option<&TextCodec>,
) -> Result<(), ModelError> {
    let keys = ConfigKeys::of_folder(folder);
    check_tensors(tensors, &tensors.shapes(), config, &keys)?;
    check_tokenizer(codec, config, &keys)
}

/// The shapes of tensors by name, outermost axis first.
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// Refuses tensors of `shapes` in `file` that are not those of `config`.
fn check_tensors(
    file: &dyn TensorFile,
    shapes: &Shapes,
    config: &DecoderConfig,
    keys: &ConfigKeys,
) -> Result<(), ModelError> {
    let spelling = file.spelling();
    let stored = shapes.keys().filter_map(|name| spelling.layer_of(name)).max().map_or(0, |last| last + 1);
    if stored != config.layers {
        let others = format!("the tensors are of {stored} layers");
        return Err(keys.refuse(&keys.layers, config.layers, others));
    }
    let embedding = spelling.outer(Outer::Embedding);
    if let Some([rows, columns]) = shapes.get(&embedding).map(Vec::as_slice) {
        let of = |count: &usize, what: &str| format!("{embedding:?} has {count} {what}");
        if *rows != config.vocab {
            return Err(keys.refuse(&keys.vocab, config.vocab, of(rows, "rows")));
        }
        if *columns != config.hidden {
            return Err(keys.refuse(&keys.hidden, config.hidden, of(columns, "columns")));
        }
    }
    check_head(file, shapes, config, keys)?;
    let outer = [Outer::Embedding, Outer::FinalNorm].into_iter().chain((!config.tied).then_some(Outer::Head));
    let outer = outer.map(|part| (spelling.outer(part), part.shape(config)));
    let parts = Part::of(config);
    let layers = (0..config.layers)
        .flat_map(|layer| parts.iter().map(move |part| (spelling.layer(*part, layer), part.shape(config))));
    for (tensor, expected) in outer.chain(layers) {
        let path = file.path().to_owned();
        match shapes.get(&tensor) {
            None => return Err(ModelError::MissingTensor { path, tensor }),
            Some(found) if *found != expected => {
                return Err(ModelError::TensorShape { path, tensor, found: found.clone(), expected });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Refuses a head that is there or not there otherwise than `config` says. A copy of the embedding is no contradiction.
fn check_head(
    file: &dyn TensorFile,
    shapes: &Shapes,
    config: &DecoderConfig,
    keys: &ConfigKeys,
) -> Result<(), ModelError> {
    let spelling = file.spelling();
    // GGUF files say it by the tensor alone.
    if spelling == Spelling::Gguf {
        return Ok(());
    }
    let (head, embedding) = (spelling.outer(Outer::Head), spelling.outer(Outer::Embedding));
    match (config.tied, shapes.contains_key(&head)) {
        (false, false) => Err(keys.refuse(TIED, "false or absent", format!("{head:?} is not stored"))),
        (true, true) if file.read(&head)? != file.read(&embedding)? => {
            Err(keys.refuse(TIED, true, format!("{head:?} is stored and differs from {embedding:?}")))
        }
        _ => Ok(()),
    }
}

/// Refuses a tokenizer with more tokens than the model has.
pub(crate) fn check_tokenizer(
    codec: Option<&TextCodec>,
    config: &DecoderConfig,
    keys: &ConfigKeys,
) -> Result<(), ModelError> {
    match codec.map(TextCodec::vocab).filter(|vocab| *vocab > config.vocab) {
        None => Ok(()),
        Some(vocab) => {
            Err(keys.refuse(&keys.vocab, config.vocab, format!("its tokenizer has {vocab} tokens")))
        }
    }
}
