//! A loaded model: what it is, its texts, and the engine that runs it.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use kvlab_sim::types::ModelShape;
use serde::Serialize;

use crate::{
    decode::{Decoder, KvCache},
    device::CacheMemory,
    engine::Engine,
    error::ExecutorError,
    family::{self, DecoderConfig, Family, ModelError, RowOrder, TinySpec},
    gguf::GgufFile,
    onnx::{self, Comparison, OnnxModel},
    parity,
    progress::Progress,
    record::shape,
    runtime::{Crossed, ProviderChoice, Runtime, RuntimeReport},
    setup::{LibraryFile, sha256_of_bytes, sha256_of_file},
    text::{ChatTemplate, TextCodec, TextError, Texts, folder_texts, gguf_texts},
    weights::{
        ConfigKeys, FileWeights, GgufTensors, SafetensorsTensors, TensorFile, WeightSource, check_folder,
        check_gguf, check_tokenizer,
    },
};

const SUPPORTED_INPUTS: &str = "a .gguf file, a folder with config.json, model.safetensors and tokenizer.json, or a decoder \
                                exported as model.onnx beside config.json or genai_config.json";

/// Tokens of the comparison with an exported graph: enough positions for a rotation that is slightly off to show.
const GRAPH_PROBE: usize = 32;

/// A kind of model files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputKind {
    /// One GGUF file.
    Gguf,
    /// A folder as the Hugging Face hub has them.
    Folder,
    /// An exported graph, at this path.
    Onnx(PathBuf),
}

/// What kind of model is at `path`; anything else is refused with what it seems to be.
pub(crate) fn input_kind(path: &Path) -> Result<InputKind, ModelError> {
    let refuse = |found: String| {
        Err(ModelError::UnsupportedInput { path: path.to_owned(), found, supported: SUPPORTED_INPUTS })
    };
    let meta = path.metadata().map_err(ModelError::io("open", path))?;
    if !meta.is_dir() {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        return match extension.as_deref() {
            Some("gguf") => Ok(InputKind::Gguf),
            Some("onnx") => Ok(InputKind::Onnx(path.to_owned())),
            Some(other) => refuse(format!("a .{other} file")),
            None => refuse("a file without extension".to_owned()),
        };
    }
    if path.join("config.json").is_file()
        && ["model.safetensors", "model.safetensors.index.json"].iter().any(|name| path.join(name).is_file())
    {
        return Ok(InputKind::Folder);
    }
    if let Some(graph) = onnx::graph_of_folder(path) {
        return Ok(InputKind::Onnx(graph));
    }
    // People have such folders from exporters and older hubs; each deserves its own word.
    if let Some(name) = ["decoder_model_merged.onnx", "onnx/decoder_model_merged.onnx"]
        .into_iter()
        .find(|name| path.join(name).is_file())
    {
        return refuse(format!("a folder with {name}, two graphs behind a switch"));
    }
    if !path.join("config.json").is_file() {
        return refuse("a folder without config.json".to_owned());
    }
    if path.join("pytorch_model.bin").is_file() || path.join("pytorch_model.bin.index.json").is_file() {
        return refuse(
            "a folder with pickled PyTorch weights, which can run code when they are read".to_owned(),
        );
    }
    Ok(InputKind::Folder)
}

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
    /// Where keys and values lie between runs.
    pub cache: CacheMemory,
}

impl LoadOptions {
    /// With every core, a provider chosen by trying and its memory, and without attention.
    #[must_use]
    pub fn new(library: LibraryFile) -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self {
            library,
            threads,
            provider: ProviderChoice::Auto,
            attention: false,
            cache: CacheMemory::Provider,
        }
    }
}

/// What exactly ran: goes into the manifest of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelIdentity {
    /// The name of its file or folder.
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

/// A model ready to run.
#[derive(Debug)]
pub struct Model {
    engine: Engine,
    report: RuntimeReport,
    codec: Option<TextCodec>,
    template: Option<ChatTemplate>,
    name: String,
    weight_files: Vec<PathBuf>,
    origin: Origin,
}

/// Where the weights can be read again.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A GGUF file.
    Gguf(PathBuf),
    /// A Hugging Face folder.
    Folder(PathBuf),
    /// An exported graph.
    Onnx(PathBuf),
    /// They are made in code.
    Tiny(TinySpec),
}

impl Model {
    /// Loads a GGUF file, a Hugging Face folder or an exported ONNX decoder.
    ///
    /// The weights of an exported graph run in our own graphs, as those of any file do. The exported graph is run too, on a
    /// few tokens, and a model whose logits differ from its graph's is refused.
    ///
    /// # Errors
    /// An input of another kind, a damaged one, an unknown family, an exported graph that computes something else, or
    /// the runtime.
    pub fn load(path: &Path, options: &LoadOptions, progress: &dyn Progress) -> Result<Self, ExecutorError> {
        match input_kind(path)? {
            InputKind::Folder => Self::load_folder(path, options, progress),
            InputKind::Gguf => Self::load_gguf(path, options, progress),
            InputKind::Onnx(graph) => Self::load_onnx(path, &graph, options, progress),
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
        let origin = Origin::Tiny(spec);
        Ok(Self { engine, report, codec: None, template: None, name, weight_files: Vec::new(), origin })
    }

    fn load_gguf(path: &Path, options: &LoadOptions, progress: &dyn Progress) -> Result<Self, ExecutorError> {
        let file = GgufFile::open(path).map_err(ModelError::from)?;
        let (family, config) = family::from_gguf(&file)?;
        let texts = gguf_texts(&file)?;
        let tensors = GgufTensors(&file);
        check_gguf(&file, &config, texts.codec.as_ref())?;
        let row_order = family.gguf_row_order();
        let origin = Origin::Gguf(path.to_owned());
        Self::assemble(&tensors, row_order, config, options, progress, texts, vec![path.to_owned()], origin)
    }

    fn load_onnx(
        path: &Path,
        graph: &Path,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Self, ExecutorError> {
        let exported = OnnxModel::open(graph)?;
        let runtime = Runtime::start(&options.library, options.threads, options.provider)?;
        exported.check_revision(&runtime)?;
        let texts = folder_texts(&exported.folder)?;
        check_tokenizer(texts.codec.as_ref(), &exported.config, &ConfigKeys::of_folder(&exported.folder))?;
        let (config, files) = (exported.config.clone(), exported.files()?);
        let origin = Origin::Onnx(graph.to_owned());
        let row_order = RowOrder::HalfSplit;
        let mut model =
            Self::assemble(&exported, row_order, config, options, progress, texts, files, origin)?;
        // People know the folder; the graph in it has the same name everywhere.
        let folder = if path.is_dir() { path } else { exported.folder.as_path() };
        if let Some(name) = folder.file_name() {
            model.name = name.to_string_lossy().into_owned();
        }
        let comparison = model.compare_with_graph(&exported)?;
        // A NaN is no smaller than anything.
        if comparison.largest <= comparison.accepted {
            return Ok(model);
        }
        let Comparison { largest, accepted } = comparison;
        Err(ModelError::Onnx {
            path: graph.to_owned(),
            what: "the largest difference between logits of the graph and of its weights run by kvlab"
                .to_owned(),
            found: format!("{largest:.2e}"),
            accepted: format!(
                "{accepted:.2e}: the graph computes something that its configuration does not say"
            ),
        }
        .into())
    }

    /// Logits of an exported graph against ours.
    fn compare_with_graph(&mut self, exported: &OnnxModel) -> Result<Comparison, ExecutorError> {
        let runtime = Runtime::again(&self.report)?;
        let probe = parity::probe(&self.engine.config, GRAPH_PROBE);
        let untouched = exported.untouched()?;
        let theirs = untouched.logits(&runtime, &probe)?;
        let mut decoder = self.decoder()?;
        let pass = decoder.forward(&probe, crate::decode::Taps::NONE)?;
        let ours = decoder.logits(&pass)?;
        Ok(untouched.compare(&theirs, &ours))
    }

    /// The comparison of an exported graph with its weights as they run here; nothing for other models.
    pub(crate) fn compare_with_origin(&mut self) -> Result<Option<Comparison>, ExecutorError> {
        let Origin::Onnx(graph) = &self.origin else { return Ok(None) };
        let exported = OnnxModel::open(graph)?;
        self.compare_with_graph(&exported).map(Some)
    }

    fn load_folder(
        path: &Path,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Self, ExecutorError> {
        let (_family, config): (&dyn Family, _) = family::from_hf(&path.join("config.json"))?;
        let tensors = SafetensorsTensors::open(path)?;
        let texts = folder_texts(path)?;
        check_folder(path, &tensors, &config, texts.codec.as_ref())?;
        let files = tensors.files().map(Path::to_owned).collect();
        let origin = Origin::Folder(path.to_owned());
        Self::assemble(&tensors, RowOrder::HalfSplit, config, options, progress, texts, files, origin)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a model, each used once")]
    fn assemble(
        file: &dyn TensorFile,
        row_order: RowOrder,
        config: DecoderConfig,
        options: &LoadOptions,
        progress: &dyn Progress,
        texts: Texts,
        weight_files: Vec<PathBuf>,
        origin: Origin,
    ) -> Result<Self, ExecutorError> {
        let runtime = Runtime::start(&options.library, options.threads, options.provider)?;
        let weights = FileWeights { file, config: &config, row_order };
        let engine = Engine::build(&config, &weights, &runtime, options, progress)?;
        // The name inside a file is often that of a training run; people know the file.
        let own = if file.path().is_dir() { file.path().file_name() } else { file.path().file_stem() };
        let name = own.map_or_else(|| "unnamed".to_owned(), |own| own.to_string_lossy().into_owned());
        let report = runtime.report().clone();
        Ok(Self { engine, report, codec: texts.codec, template: texts.template, name, weight_files, origin })
    }

    /// The shape of the model.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.engine.config
    }

    /// The shape of the model, as traces and policies know it.
    ///
    /// # Errors
    /// A count that is too large for them.
    pub fn shape(&self) -> Result<ModelShape, ModelError> {
        shape(&self.engine.config)
    }

    /// The name of its file or folder, without extension.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it runs on.
    #[must_use]
    pub fn runtime(&self) -> &RuntimeReport {
        &self.report
    }

    /// Bytes that crossed between the host and the sessions of this model since it was loaded.
    #[must_use]
    pub fn crossed(&self) -> Crossed {
        self.engine.crossed()
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

    /// Opens the weights once more and hands them to `read`. The sessions keep their own copies.
    pub(crate) fn with_weights<T>(
        &self,
        read: impl FnOnce(&dyn WeightSource) -> Result<T, ExecutorError>,
    ) -> Result<T, ExecutorError> {
        let config = &self.engine.config;
        match &self.origin {
            Origin::Tiny(spec) => read(&spec.weights()),
            Origin::Folder(path) => {
                let file = SafetensorsTensors::open(path)?;
                read(&FileWeights { file: &file, config, row_order: RowOrder::HalfSplit })
            }
            Origin::Onnx(path) => {
                let file = OnnxModel::open(path)?;
                read(&FileWeights { file: &file, config, row_order: RowOrder::HalfSplit })
            }
            Origin::Gguf(path) => {
                let file = GgufFile::open(path).map_err(ModelError::from)?;
                let row_order = family::from_gguf(&file)?.0.gguf_row_order();
                read(&FileWeights { file: &GgufTensors(&file), config, row_order })
            }
        }
    }

    /// Radians by which one position turns each pair of channels, `[head_dim / 2]`, scaling applied.
    #[must_use]
    pub fn rope_frequencies(&self) -> &[f32] {
        self.engine.rope.frequencies()
    }

    /// What cosines and sines of the rotation are multiplied by.
    #[must_use]
    pub fn rope_scaling(&self) -> f32 {
        self.engine.rope.attention_factor()
    }

    /// An empty cache for a sequence on this model.
    ///
    /// # Errors
    /// The runtime.
    pub fn new_cache(&self) -> Result<KvCache, ExecutorError> {
        let config = &self.engine.config;
        Ok(KvCache::empty(&self.engine.memory, config.layers, config.kv_heads, config.head_dim)?)
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

    /// A decoder that goes on with a cache of this model, and the tokenizer beside it.
    ///
    /// # Errors
    /// The model has no tokenizer.
    pub(crate) fn decoder_and_codec_with(
        &mut self,
        cache: KvCache,
    ) -> Result<(Decoder<'_>, &TextCodec), TextError> {
        let Self { engine, codec, name, .. } = self;
        let codec = codec.as_ref().ok_or_else(|| TextError::NoTokenizer { model: name.clone() })?;
        Ok((Decoder::new(engine, cache), codec))
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
