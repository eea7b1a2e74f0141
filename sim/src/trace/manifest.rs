//! `manifest.json`: what the recording is, what it holds, and the digest of every other file.
//!
//! Types only; `check.rs` says which manifests are accepted, `folder.rs` reads and writes the file.

use super::{Dtype, FIELDS, TraceVersion};
use crate::types::ModelShape;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the manifest inside a trace.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Name of the file with the manifest's own digest, in the form that `sha256sum --check` reads.
pub(crate) const MANIFEST_DIGEST: &str = "manifest.sha256";

/// What a trace without sequences requires of its reader: since 1.1 there may be none.
pub(crate) const NO_SEQUENCES: &str = "no-sequences";

/// What a trace with lens facts of one form requires of its reader: none of them is without the final norm.
pub(crate) const NO_RAW_LENS: &str = "no-raw-lens";

/// The whole manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub format: TraceVersion,
    /// Whether the recording came to its end. Readers refuse `false`.
    pub complete: bool,
    /// What a reader must know beyond its major version; readers refuse words they do not know. None in
    /// 1.0; 1.1 knows `no-sequences` and `no-raw-lens`.
    pub requires: Vec<String>,
    /// Present when the content was generated and not recorded.
    pub synthetic: Option<SyntheticInfo>,
    /// The program that wrote the trace.
    pub tool: ToolInfo,
    /// The model.
    pub model: ModelInfo,
    /// Its shape.
    pub shape: ModelShape,
    /// Position encoding; absent for models without rotation and for generated traces.
    pub rope: Option<RopeInfo>,
    /// The norm in front of the unembedding, when its gain is in the trace. Since 1.1.
    #[serde(default)]
    pub final_norm: Option<NormInfo>,
    /// What ran the model; absent for generated traces.
    pub runtime: Option<RuntimeInfo>,
    /// How tokens were chosen.
    pub decoding: DecodingInfo,
    /// Where the prompts came from.
    pub workload: WorkloadInfo,
    /// The recording's seed.
    pub seed: u64,
    /// Positions a shard holds; the last shard of a sequence may hold fewer.
    pub shard_tokens: u32,
    /// Ranks stored for each lens fact; 0 when `lens_top` is not recorded.
    pub lens_top: u16,
    /// The fields present, sorted by name.
    pub fields: Vec<FieldInfo>,
    /// The sequences, in index order.
    pub sequences: Vec<SequenceInfo>,
    /// The branch trees, when there are any. Since 1.1.
    #[serde(default)]
    pub branches: Option<BranchesInfo>,
    /// The requests, when there are any. Since 1.1.
    #[serde(default)]
    pub requests: Option<RequestsInfo>,
    /// The traces that this one was made from, when it was not recorded. Since 1.1.
    #[serde(default)]
    pub derived_from: Vec<DerivedFrom>,
    /// The tensor files, by sequence, then by position.
    pub shards: Vec<ShardInfo>,
    /// The facts tables, sorted by path.
    pub tables: Vec<TableInfo>,
    /// The files of model weights, in the order of [`super::Weight`]. Since 1.1.
    #[serde(default)]
    pub weights: Vec<WeightInfo>,
    /// The measured times, when there are any: the only key that is left out when there are none. Since 1.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<TableInfo>,
}

/// How tokens may have been chosen.
pub(super) const DECODING_MODES: &[&str] = &["greedy", "sampled", "given", "synthetic"];
/// Why a sequence may have ended.
pub(super) const FINISH_REASONS: &[&str] = &["eos", "length", "stop", "given"];

/// The generator of a synthetic trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyntheticInfo {
    /// Id of the workload generator.
    pub generator: String,
    /// Its seed.
    pub seed: u64,
}

/// The program that wrote a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The source revision it was built from, where known.
    pub revision: Option<String>,
}

/// The recorded model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its name, e.g. `SmolLM2-135M-Instruct`.
    pub name: String,
    /// Its architecture family, e.g. `llama`.
    pub family: String,
    /// Name of the file the weights came from, without folders.
    pub source_file: Option<String>,
    /// SHA-256 (hex) of the weights file. Present in every recorded trace.
    pub weights_sha256: Option<String>,
    /// SHA-256 (hex) of the tokenizer definition.
    pub tokenizer_sha256: Option<String>,
    /// SHA-256 (hex) of the graphs that were run.
    pub graph_sha256: Option<String>,
    /// Precision of the arithmetic, e.g. `f32`.
    pub precision: String,
    /// The model's own configuration, as it is.
    pub config: Value,
}

/// State of the keys with respect to position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyState {
    /// Queries and keys are stored rotated at their original positions.
    PostRope,
}

/// Rotary position encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeInfo {
    /// `rotate-half` or `interleaved`.
    pub style: String,
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies, as the model's configuration has it.
    pub scaling: Option<Value>,
    /// State of the stored queries and keys.
    pub keys: KeyState,
    /// Radians by which one position turns each pair of channels, `[pair]`, at most `head_dim / 2` of them; binary32
    /// values. Scaling is applied already. Absent in format 1.0.
    #[serde(default)]
    pub inv_freq: Option<Vec<f64>>,
    /// Factor on cosines and sines (YaRN); 1 without it. Given together with `inv_freq`.
    #[serde(default)]
    pub attention_scaling: Option<f64>,
}

/// The norm in front of the unembedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormInfo {
    /// `rms`: `x / sqrt(mean(x²) + eps) * gain`.
    pub kind: String,
    /// What is added to the mean square.
    pub eps: f64,
}

/// One file of model weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightInfo {
    /// Path inside the trace.
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 (hex) of the file.
    pub sha256: String,
}

/// What ran the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuntimeInfo {
    /// Name of the library.
    pub library: String,
    /// Its version.
    pub version: String,
    /// The execution provider that ran.
    pub provider: String,
    /// The execution provider that was asked for.
    pub requested_provider: String,
    /// Why another provider ran than the one asked for.
    pub fallback_reason: Option<String>,
    /// Threads inside an operator.
    pub threads: u32,
    /// Level of graph optimisation.
    pub optimization_level: String,
}

/// How tokens were chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodingInfo {
    /// `greedy`, `sampled`, `given` (the continuation was fed, not chosen) or `synthetic`.
    pub mode: String,
    /// Upper limit of generated tokens.
    pub max_new_tokens: u32,
    /// Whether the prompt was wrapped in the model's chat template.
    pub chat_template: bool,
    /// Most sequences that were decoded in one pass; absent for one. Since 1.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// What was done otherwise than this program does by itself, in words; absent for nothing. Since 1.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Where the prompts came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// Its name.
    pub name: String,
    /// The seed that chose or generated the prompts.
    pub seed: u64,
    /// SHA-256 (hex) of the file of prompts, when they came from a file.
    pub file_sha256: Option<String>,
}

/// One field that is present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FieldInfo {
    /// Its name.
    pub name: String,
    /// Its axes, outermost first.
    pub axes: Vec<String>,
    /// Its storage type.
    pub dtype: String,
    /// Its unit; empty for pure numbers.
    pub unit: String,
    /// Whether a reader that does not know the field must refuse.
    pub required: bool,
}

/// One recorded sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SequenceInfo {
    /// Its index.
    pub seq: u32,
    /// Id of the problem it came from.
    pub item: String,
    /// Tokens given; the border between prompt and continuation.
    pub prompt_len: u32,
    /// Tokens fed to the model, prompt included.
    pub len: u32,
    /// Begin-of-sequence tokens at the start, inside the prompt.
    pub bos_len: u32,
    /// Padding tokens. Always 0: sequences are stored without padding.
    pub padding_len: u32,
    /// Positions that have lens facts.
    pub lens_positions: u32,
    /// Why generation stopped: `eos`, `length`, `stop` or `given`.
    pub finish_reason: String,
    /// The prompt as text.
    pub prompt_text: Option<String>,
    /// The continuation as text.
    pub generated_text: Option<String>,
    /// The right answer, where there is one.
    pub expected_answer: Option<String>,
    /// The answer found in the continuation.
    pub answer: Option<String>,
    /// Whether the two agree.
    pub correct: Option<bool>,
}

/// The branch trees of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BranchesInfo {
    /// Vocabulary id of the verifier's yes, where there is a verifier.
    pub yes_token: Option<u32>,
    /// Vocabulary id of the verifier's no.
    pub no_token: Option<u32>,
    /// The problems, in order.
    pub problems: Vec<ProblemInfo>,
}

/// One problem, and its share of the branch tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProblemInfo {
    /// Its index.
    pub problem: u32,
    /// Its id.
    pub item: String,
    /// The right answer, where there is one.
    pub expected_answer: Option<String>,
    /// Rows of `branches`.
    pub branches: u32,
    /// Rows of `branch_tokens`.
    pub tokens: u64,
    /// Rows of `branch_outcomes`.
    pub outcomes: u32,
    /// Rows of `branch_steps`.
    pub steps: u64,
    /// Outcomes with a verdict: rows of `branch_verdicts`, divided by the layers.
    pub verdicts: u32,
}

/// Requests known by the blocks of their prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestsInfo {
    /// How many there are.
    pub count: u64,
    /// Blocks over all of them.
    pub blocks: u64,
    /// Tokens of a block; the last block of a prompt may hold fewer.
    pub block_tokens: u32,
}

/// A trace that another one was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DerivedFrom {
    /// SHA-256 (hex) of its manifest, or of the imported file.
    pub digest: String,
    /// What was done, as a command.
    pub how: String,
}

/// One tensor file: positions `start..end` of one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardInfo {
    /// Path inside the trace.
    pub path: String,
    /// The sequence.
    pub seq: u32,
    /// First position.
    pub start: u32,
    /// Position after the last.
    pub end: u32,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 (hex) of the file.
    pub sha256: String,
}

/// One facts table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableInfo {
    /// Path inside the trace.
    pub path: String,
    /// Number of rows.
    pub rows: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 (hex) of the file.
    pub sha256: String,
}

impl FieldInfo {
    /// The manifest entry of a known field, stored as `dtype`.
    ///
    /// # Panics
    /// When `name` is not in [`FIELDS`]: names come from code.
    #[must_use]
    pub(crate) fn known(name: &str, dtype: Dtype) -> Self {
        let field =
            FIELDS.iter().find(|field| field.name == name).expect("field names come from the registry");
        Self {
            name: field.name.to_owned(),
            axes: field.axes.iter().map(|&axis| axis.to_owned()).collect(),
            dtype: dtype.word().to_owned(),
            unit: field.unit.to_owned(),
            required: field.required,
        }
    }
}

impl Manifest {
    /// The storage type of the field called `name`, if it is present.
    #[must_use]
    pub fn dtype(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|field| field.name == name).map(|field| field.dtype.as_str())
    }

    /// Whether the field called `name` is present.
    #[must_use]
    pub fn holds(&self, name: &str) -> bool {
        self.dtype(name).is_some()
    }

    /// Names of the fields present.
    #[must_use]
    pub fn field_names(&self) -> Vec<String> {
        self.fields.iter().map(|field| field.name.clone()).collect()
    }

    /// Names of the tensor fields in every shard, unknown optional ones included.
    pub(crate) fn tensor_fields(&self) -> impl Iterator<Item = &FieldInfo> {
        self.fields.iter().filter(|field| !field.name.contains('.'))
    }

    /// The table at `path`, if it is present.
    #[must_use]
    pub fn table(&self, path: &str) -> Option<&TableInfo> {
        self.tables.iter().find(|table| table.path == path)
    }
}
