//! A loaded model: what it is, its texts, and the sessions that run it.

use std::{
    collections::BTreeSet,
    io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    decode::{Decoder, Head, KvCache, NewHead},
    error::ExecutorError,
    family::{self, DecoderConfig, Family, ModelError, RowOrder, TinySpec},
    gguf::GgufFile,
    graph::{AttentionOutput, head_graph, layer_graph},
    progress::Progress,
    rope::Rope,
    runtime::{ProviderChoice, Runtime, RuntimeReport, Session},
    setup::{LibraryFile, sha256_of_bytes, sha256_of_file},
    text::{ChatTemplate, TextCodec, TextError},
    weights::{FileWeights, GgufTensors, SafetensorsTensors, TensorFile, WeightSource},
};

const SUPPORTED_INPUTS: &str =
    "a .gguf file, or a folder with config.json, model.safetensors and tokenizer.json";

/// How a model is loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The ONNX Runtime library: see [`crate::setup::ensure_library`].
    pub library: LibraryFile,
    /// Threads within an operator. The first model of a process decides.
    pub threads: NonZeroUsize,
    /// The execution provider wanted.
    pub provider: ProviderChoice,
    /// Whether attention probabilities can be tapped.
    pub attention: bool,
}

impl LoadOptions {
    /// With every core, a provider chosen by trying, and without attention.
    #[must_use]
    pub fn new(library: LibraryFile) -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { library, threads, provider: ProviderChoice::Auto, attention: false }
    }
}

/// What exactly ran: goes into the manifest of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelIdentity {
    /// The model's own name, or that of its file.
    pub name: String,
    /// Family id.
    pub family: String,
    /// SHA-256 of the weights file; of several files, of the list of their digests.
    pub weights_sha256: String,
    /// SHA-256 of the tokenizer's JSON form.
    pub tokenizer_sha256: Option<String>,
    /// SHA-256 over the digests of the layer graph and the head graph.
    pub graph_sha256: String,
}

/// The sessions and tables that run a model.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: DecoderConfig,
    pub(crate) rope: Rope,
    pub(crate) layers: Vec<Session>,
    pub(crate) head: Head,
    pub(crate) gives_attention: bool,
    /// `[vocab, hidden]`
    embedding: Vec<f32>,
    graph_sha256: String,
}

impl Engine {
    fn build(
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        runtime: &Runtime,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Self, ExecutorError> {
        progress.start("loading the model", Some(config.layers as u64 + 1));
        let attention = if options.attention { AttentionOutput::Given } else { AttentionOutput::Hidden };
        let mut layers = Vec::with_capacity(config.layers);
        let mut layer_graph_sha256 = String::new();
        for layer in 0..config.layers {
            let graph = layer_graph(config, &weights.layer(layer)?, attention);
            if layer == 0 {
                layer_graph_sha256 = sha256_of_bytes(&graph.model);
            }
            layers.push(runtime.session(graph)?);
            progress.advance(1);
        }
        let embedding = weights.embedding()?;
        let own_head = weights.head()?;
        let graph = head_graph(config, own_head.as_ref().unwrap_or(&embedding));
        let digests = layer_graph_sha256 + &sha256_of_bytes(&graph.model);
        let graph_sha256 = sha256_of_bytes(digests.as_bytes());
        let head = Head::new(NewHead {
            session: runtime.session(graph)?,
            final_norm: weights.final_norm()?,
            rms_eps: config.rms_eps,
            vocab: config.vocab,
            threads: options.threads,
        });
        progress.advance(1);
        progress.finish();
        let (config, rope, gives_attention) = (config.clone(), Rope::new(config), options.attention);
        Ok(Self { config, rope, layers, head, gives_attention, embedding, graph_sha256 })
    }

    /// Rows of the embedding, `[q_pos, hidden]`. Tokens were checked before.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let width = self.config.hidden;
        tokens.iter().flat_map(|token| &self.embedding[*token as usize * width..][..width]).copied().collect()
    }
}

/// A model ready to run.
#[derive(Debug)]
pub struct Model {
    engine: Engine,
    report: RuntimeReport,
    codec: Option<TextCodec>,
    template: Option<ChatTemplate>,
    name: String,
    weight_files: Vec<PathBuf>,
}

impl Model {
    /// Loads a GGUF file or a Hugging Face folder.
    ///
    /// # Errors
    /// An input of another kind, a damaged one, an unknown family, or the runtime.
    pub fn load(path: &Path, options: &LoadOptions, progress: &dyn Progress) -> Result<Self, ExecutorError> {
        let meta = path.metadata().map_err(ModelError::io("open", path))?;
        if meta.is_dir() {
            return Self::load_folder(path, options, progress);
        }
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("gguf") => Self::load_gguf(path, options, progress),
            other => Err(ModelError::UnsupportedInput {
                path: path.to_owned(),
                found: other
                    .map_or("a file without extension".to_owned(), |other| format!("a .{other} file")),
                supported: SUPPORTED_INPUTS,
            }
            .into()),
        }
    }

    /// Makes a small random model in code. It has no tokenizer.
    ///
    /// # Errors
    /// The runtime.
    pub fn tiny(spec: TinySpec, options: &LoadOptions) -> Result<Self, ExecutorError> {
        let runtime = Runtime::start(&options.library, options.threads, options.provider)?;
        let config = spec.config();
        let engine = Engine::build(&config, &spec.weights(), &runtime, options, &crate::progress::Quiet)?;
        let name = config.name.clone().unwrap_or_default();
        let report = runtime.report().clone();
        Ok(Self { engine, report, codec: None, template: None, name, weight_files: Vec::new() })
    }

    fn load_gguf(path: &Path, options: &LoadOptions, progress: &dyn Progress) -> Result<Self, ExecutorError> {
        let file = GgufFile::open(path).map_err(ModelError::from)?;
        let (family, config) = family::from_gguf(&file)?;
        let codec = TextCodec::from_gguf(&file)?;
        let source = file.optional_text("tokenizer.chat_template").map_err(TextError::from)?;
        let id_text = |key: &str| -> Result<String, TextError> {
            let id = file.optional_id(key)?;
            Ok(id.and_then(|id| codec.token_text(id)).unwrap_or_default())
        };
        let template = source
            .map(|source| {
                let (begin, end) =
                    (id_text("tokenizer.ggml.bos_token_id")?, id_text("tokenizer.ggml.eos_token_id")?);
                ChatTemplate::new(source.to_owned(), begin, end)
            })
            .transpose()?;
        let tensors = GgufTensors(&file);
        let row_order = family.gguf_row_order();
        Self::assemble(
            &tensors,
            row_order,
            config,
            options,
            progress,
            Texts { codec: Some(codec), template },
            vec![path.to_owned()],
        )
    }

    fn load_folder(
        path: &Path,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Self, ExecutorError> {
        let config_path = path.join("config.json");
        if !config_path.is_file() {
            let found = "a folder without config.json".to_owned();
            return Err(ModelError::UnsupportedInput {
                path: path.to_owned(),
                found,
                supported: SUPPORTED_INPUTS,
            }
            .into());
        }
        let (_family, config): (&dyn Family, _) = family::from_hf(&config_path)?;
        let tensors = SafetensorsTensors::open(path)?;
        let texts = folder_texts(path)?;
        let files = tensors.files().map(Path::to_owned).collect();
        Self::assemble(&tensors, RowOrder::HalfSplit, config, options, progress, texts, files)
    }

    fn assemble(
        file: &dyn TensorFile,
        row_order: RowOrder,
        config: DecoderConfig,
        options: &LoadOptions,
        progress: &dyn Progress,
        texts: Texts,
        weight_files: Vec<PathBuf>,
    ) -> Result<Self, ExecutorError> {
        let vocab = texts.codec.as_ref().map_or(0, TextCodec::vocab);
        if vocab > config.vocab {
            let found = format!("{} for a tokenizer of {vocab}", config.vocab);
            return Err(ModelError::shape("vocabulary", found, "at least the tokenizer's").into());
        }
        let runtime = Runtime::start(&options.library, options.threads, options.provider)?;
        let weights = FileWeights { file, config: &config, row_order };
        let engine = Engine::build(&config, &weights, &runtime, options, progress)?;
        let stem = || file.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = config.name.clone().or_else(stem).unwrap_or_else(|| "unnamed".to_owned());
        let report = runtime.report().clone();
        Ok(Self { engine, report, codec: texts.codec, template: texts.template, name, weight_files })
    }

    /// The shape of the model.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.engine.config
    }

    /// The model's own name, or that of its file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it runs on.
    #[must_use]
    pub fn runtime(&self) -> &RuntimeReport {
        &self.report
    }

    /// Texts to tokens and back.
    ///
    /// # Errors
    /// The model has no tokenizer.
    pub fn codec(&self) -> Result<&TextCodec, TextError> {
        self.codec.as_ref().ok_or_else(|| TextError::NoTokenizer { model: self.name.clone() })
    }

    /// The chat template.
    ///
    /// # Errors
    /// The model has none.
    pub fn chat_template(&self) -> Result<&ChatTemplate, TextError> {
        self.template.as_ref().ok_or_else(|| TextError::NoTemplate { model: self.name.clone() })
    }

    /// Digests of everything that decides what the model computes. Reads the weights once.
    ///
    /// # Errors
    /// The weights cannot be read any more.
    pub fn identity(&self) -> Result<ModelIdentity, ModelError> {
        let digest = |path: &PathBuf| sha256_of_file(path).map_err(ModelError::io("read", path));
        let weights_sha256 = match self.weight_files.as_slice() {
            [] => sha256_of_bytes(self.name.as_bytes()),
            [single] => digest(single)?,
            several => {
                let digests = several.iter().map(digest).collect::<Result<Vec<_>, _>>()?;
                sha256_of_bytes(digests.concat().as_bytes())
            }
        };
        Ok(ModelIdentity {
            name: self.name.clone(),
            family: self.engine.config.family.to_owned(),
            weights_sha256,
            tokenizer_sha256: self.codec.as_ref().map(|codec| codec.digest().to_owned()),
            graph_sha256: self.engine.graph_sha256.clone(),
        })
    }

    /// An empty cache for a sequence on this model.
    ///
    /// # Errors
    /// The runtime.
    pub fn new_cache(&self) -> Result<KvCache, ExecutorError> {
        let config = &self.engine.config;
        Ok(KvCache::empty(config.layers, config.kv_heads, config.head_dim)?)
    }

    /// A decoder with an empty cache.
    ///
    /// # Errors
    /// The runtime.
    pub fn decoder(&mut self) -> Result<Decoder<'_>, ExecutorError> {
        let cache = self.new_cache()?;
        Ok(Decoder::new(&mut self.engine, cache))
    }

    /// A decoder with an empty cache, and the tokenizer beside it, if there is one.
    pub(crate) fn decoder_and_codec(&mut self) -> Result<(Decoder<'_>, Option<&TextCodec>), ExecutorError> {
        let cache = self.new_cache()?;
        Ok((Decoder::new(&mut self.engine, cache), self.codec.as_ref()))
    }

    /// Name of the first weights file, without its folder.
    pub(crate) fn source_file(&self) -> Option<String> {
        let name = self.weight_files.first()?.file_name()?;
        Some(name.to_string_lossy().into_owned())
    }

    /// A decoder that goes on with a cache of this model.
    pub fn decoder_with(&mut self, cache: KvCache) -> Decoder<'_> {
        Decoder::new(&mut self.engine, cache)
    }
}

/// What belongs to texts.
struct Texts {
    codec: Option<TextCodec>,
    template: Option<ChatTemplate>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Debug, Default, Deserialize)]
struct RawEnds {
    eos_token_id: Option<OneOrMany>,
}

#[derive(Debug, Default, Deserialize)]
struct RawTokenizerConfig {
    chat_template: Option<serde_json::Value>,
    bos_token: Option<serde_json::Value>,
    eos_token: Option<serde_json::Value>,
}

/// Reads a JSON file that may be absent.
fn optional_json<T: Default + serde::de::DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(ModelError::io("read", path)(error)),
    }
}

fn folder_texts(path: &Path) -> Result<Texts, ExecutorError> {
    let mut ends = BTreeSet::new();
    for name in ["config.json", "generation_config.json"] {
        match optional_json::<RawEnds>(&path.join(name))?.eos_token_id {
            Some(OneOrMany::One(end)) => ends.extend([end]),
            Some(OneOrMany::Many(several)) => ends.extend(several),
            None => {}
        }
    }
    let tokenizer = path.join("tokenizer.json");
    let codec = tokenizer.is_file().then(|| TextCodec::from_json(&tokenizer, ends)).transpose()?;
    let raw: RawTokenizerConfig = optional_json(&path.join("tokenizer_config.json"))?;
    // A token is written as a text, or as an object with its text in "content".
    let text = |value: Option<serde_json::Value>| {
        let value = value.unwrap_or_default();
        value.as_str().or_else(|| value.get("content")?.as_str()).unwrap_or_default().to_owned()
    };
    let (begin, end) = (text(raw.bos_token), text(raw.eos_token));
    let source = raw.chat_template.as_ref().and_then(serde_json::Value::as_str);
    let template = source.map(|source| ChatTemplate::new(source.to_owned(), begin, end)).transpose()?;
    Ok(Texts { codec, template })
}
