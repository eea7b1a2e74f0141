//! Recording: a model and prompts become a trace directory.
//!
//! Responsible for the header of the trace and for continuing an interrupted recording. The passes are run by
//! [`OpenLoop`], the files are written by `kvlab_sim::trace`.

mod error;

pub use error::RecordError;

use std::path::Path;

use kvlab_sim::{
    trace::{
        DecodingInfo, Dtype, FinishedTrace, KeyState, Leftover, ModelInfo, NormInfo, RopeInfo, RuntimeInfo,
        SequenceEnd, SequenceInfo, StoredBranches, StoredFields, StoredWeights, ToolInfo, TraceHeader,
        TraceWriter, Weight, WorkloadInfo,
    },
    types::ModelShape,
};

use crate::{
    error::ExecutorError,
    family::{DecoderConfig, ModelError, RopeScaling},
    forecast::Footprint,
    model::{Model, ModelIdentity},
    open_loop::{OpenLoop, Prompt},
    progress::Progress,
    runtime::{Provider, ProviderChoice, RuntimeReport},
    text::{ChatMessage, TextError},
    times::measure_times,
};

/// What is put before the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptForm {
    /// A plain text, to be continued.
    Text(String),
    /// A chat, formatted by the model's template.
    Chat(Vec<ChatMessage>),
    /// Tokens.
    Tokens(Vec<u32>),
}

/// One sequence to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordItem {
    /// Id of the problem.
    pub item: String,
    /// What is put before the model.
    pub prompt: PromptForm,
    /// Texts that end the continuation when they appear in it.
    pub stops: Vec<String>,
    /// The right answer, where there is one.
    pub expected_answer: Option<String>,
}

/// Finds the answer in a continuation and says whether it is the expected one: `(continuation, expected)`.
pub type Grader = fn(&str, &str) -> Graded;

/// What a grader found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graded {
    /// The answer, if one was found.
    pub answer: Option<String>,
    /// Whether it is the expected one.
    pub correct: bool,
}

/// Everything about a recording but the prompts.
#[derive(Debug, Clone)]
pub struct RecordPlan {
    /// How sequences are run and what is kept of them.
    pub open_loop: OpenLoop,
    /// The program that records.
    pub tool: ToolInfo,
    /// Where the prompts come from.
    pub workload: WorkloadInfo,
    /// The seed of the recording. Greedy decoding draws nothing; it is written down.
    pub seed: u64,
    /// How answers are graded.
    pub grader: Option<Grader>,
    /// Which weights of the model go into the trace.
    pub weights: PlannedWeights,
    /// Whether times of the parts of a pass are measured and kept. They differ from one recording to the next.
    pub times: bool,
    /// Most bytes that the trace may take: problems that may not fit any more are left out, the last ones first.
    pub max_bytes: Option<u64>,
}

/// Weights of the model that go into a trace, with their storage type, `F32` or `F16`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlannedWeights {
    /// The output matrix of every attention.
    pub w_o: Option<Dtype>,
    /// The final norm and the unembedding.
    pub head: Option<Dtype>,
}

/// Records prompts into a trace at `target`. Sequences that an interrupted recording finished are not run again. With
/// `max_bytes` the trace may hold fewer sequences than there are prompts.
///
/// # Errors
/// The model, the tokenizer, the trace, or prompts that are not those of the recording that is continued.
pub fn record(
    model: &mut Model,
    items: &[RecordItem],
    plan: &RecordPlan,
    target: &Path,
    leftover: Leftover,
    progress: &dyn Progress,
) -> Result<FinishedTrace, ExecutorError> {
    if items.is_empty() {
        return Err(RecordError::NoPrompts.into());
    }
    let prompts = items.iter().map(|item| prompt(model, item)).collect::<Result<Vec<_>, _>>()?;
    for prompt in &prompts {
        check_context(model, &prompt.item, prompt.tokens.len(), plan.open_loop.max_new_tokens)?;
    }
    if let (Some(max), Some(first)) = (plan.max_bytes, prompts.first()) {
        let footprint = Footprint::of(model.config(), plan);
        let needed = footprint.empty() + footprint.at_most(&plan.open_loop, first);
        if needed > max {
            return Err(RecordError::TooLarge { item: first.item.clone(), needed, max }.into());
        }
    }
    let header = header(model, items, plan)?;
    let mut writer = TraceWriter::create(target, header, leftover)?;
    let done = writer.finished().len();
    check_items(
        writer.finished().map(|sequence| sequence.item.as_str()),
        items.iter().map(|item| item.item.as_str()),
    )?;
    if let Some(max) = plan.max_bytes.filter(|_| done > 0) {
        let held = held_bytes(model, &writer, plan);
        if held > max {
            return Err(RecordError::HoldsMore { held, problems: done, max }.into());
        }
    }
    write_weights(model, &mut writer)?;
    let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    write_times(model, &mut writer, longest + plan.open_loop.max_new_tokens as usize, progress)?;
    for (item, prompt) in items.iter().zip(&prompts).skip(done) {
        if !has_room(model, &writer, plan, prompt) {
            break;
        }
        let judge = |text: Option<&str>| graded(item, plan.grader, text);
        let (mut decoder, codec) = model.decoder_and_codec()?;
        plan.open_loop.run(&mut decoder, codec, prompt, &judge, &mut writer, progress)?;
    }
    Ok(writer.finish()?)
}

/// Refuses to continue a recording of the problems `held` with others than those, in that order, and maybe more.
pub(crate) fn check_items<'a>(
    held: impl Iterator<Item = &'a str>,
    asked: impl ExactSizeIterator<Item = &'a str>,
) -> Result<(), RecordError> {
    let (held, count): (Vec<&str>, usize) = (held.collect(), asked.len());
    if held.len() > count {
        return Err(RecordError::FewerPrompts { held: held.len(), asked: count });
    }
    match held.iter().zip(asked).enumerate().find(|(_, (found, expected))| *found != expected) {
        None => Ok(()),
        Some((seq, (found, expected))) => {
            let (found, expected) = ((*found).to_owned(), expected.to_owned());
            Err(RecordError::OtherPrompts { seq, found, expected })
        }
    }
}

/// Whether one more prompt fits into the bytes allowed, whatever follows it.
fn has_room(model: &Model, writer: &TraceWriter, plan: &RecordPlan, prompt: &Prompt) -> bool {
    let Some(max) = plan.max_bytes else { return true };
    let footprint = Footprint::of(model.config(), plan);
    held_bytes(model, writer, plan) + footprint.at_most(&plan.open_loop, prompt) <= max
}

/// Bytes of a trace of what is recorded so far.
fn held_bytes(model: &Model, writer: &TraceWriter, plan: &RecordPlan) -> u64 {
    let footprint = Footprint::of(model.config(), plan);
    let taken = |sequence: &SequenceInfo| {
        let texts = [&sequence.prompt_text, &sequence.generated_text];
        let text: usize = texts.into_iter().flatten().map(String::len).sum();
        footprint.sequence(u64::from(sequence.len), u64::from(sequence.lens_positions), text as u64)
    };
    footprint.empty() + writer.finished().map(taken).sum::<u64>()
}

/// Measures what the trace is to hold of times, for sequences of up to `longest` tokens.
pub(crate) fn write_times(
    model: &mut Model,
    writer: &mut TraceWriter,
    longest: usize,
    progress: &dyn Progress,
) -> Result<(), ExecutorError> {
    if writer.misses_times() {
        writer.put_times(&measure_times(model, longest, progress)?)?;
    }
    Ok(())
}

/// Copies the weights that the trace is to hold, a matrix at a time.
fn write_weights(model: &Model, writer: &mut TraceWriter) -> Result<(), ExecutorError> {
    let missing = writer.missing_weights();
    if missing.is_empty() {
        return Ok(());
    }
    model.with_weights(|weights| {
        for weight in missing {
            let values = match weight {
                Weight::WO(layer) => weights.layer(layer.idx())?.output,
                Weight::FinalNorm => weights.final_norm()?,
                Weight::Unembedding => match weights.head()? {
                    Some(head) => head,
                    None => weights.embedding()?,
                },
            };
            writer.put_weight(weight, &values)?;
        }
        Ok(())
    })
}

/// Refuses a prompt that leaves no room for its continuation in the model's context, or in the window of its layers.
pub(crate) fn check_context(model: &Model, item: &str, prompt: usize, new: u32) -> Result<(), RecordError> {
    let context = model.config().context;
    if prompt == 0 {
        return Err(RecordError::EmptyPrompt { item: item.to_owned() });
    }
    if prompt.saturating_add(new as usize) > context {
        return Err(RecordError::TooLong { item: item.to_owned(), prompt, new, context });
    }
    if let Some(sliding) = model.config().sliding_window
        && prompt.saturating_add(new as usize) > sliding.tokens
    {
        let (window, layer) = (sliding.tokens, sliding.first_layer);
        return Err(RecordError::BeyondWindow { item: item.to_owned(), prompt, new, window, layer });
    }
    Ok(())
}

pub(crate) fn prompt(model: &Model, item: &RecordItem) -> Result<Prompt, TextError> {
    let (tokens, text) = match &item.prompt {
        PromptForm::Text(text) => (model.codec()?.encode(text)?, Some(text.clone())),
        PromptForm::Chat(messages) => {
            let text = model.chat_template()?.format(messages)?;
            (model.codec()?.encode_formatted(&text)?, Some(text))
        }
        PromptForm::Tokens(tokens) => (tokens.clone(), None),
    };
    Ok(Prompt { item: item.item.clone(), tokens, text, stops: item.stops.clone() })
}

pub(crate) fn graded(item: &RecordItem, grader: Option<Grader>, text: Option<&str>) -> SequenceEnd {
    let expected = item.expected_answer.clone();
    let found = match (grader, text, &expected) {
        (Some(grader), Some(text), Some(expected)) => Some(grader(text, expected)),
        _ => None,
    };
    SequenceEnd {
        expected_answer: expected,
        correct: found.as_ref().map(|found| found.correct),
        answer: found.and_then(|found| found.answer),
        ..SequenceEnd::default()
    }
}

fn header(model: &Model, items: &[RecordItem], plan: &RecordPlan) -> Result<TraceHeader, ExecutorError> {
    let eps = model.config().rms_eps;
    let parts = HeaderParts {
        tool: plan.tool.clone(),
        workload: plan.workload.clone(),
        seed: plan.seed,
        decoding: DecodingInfo {
            mode: "greedy".to_owned(),
            max_new_tokens: plan.open_loop.max_new_tokens,
            chat_template: items.iter().any(|item| matches!(item.prompt, PromptForm::Chat(_))),
            batch: None,
            protocol: None,
        },
        fields: plan.open_loop.fields,
        weights: StoredWeights {
            w_o: plan.weights.w_o,
            final_norm: plan.weights.head.map(|_| NormInfo { kind: "rms".to_owned(), eps }),
            unembedding: plan.weights.head,
        },
        branches: None,
        times: plan.times,
    };
    header_of(model, parts)
}

/// What differs between the kinds of recordings.
pub(crate) struct HeaderParts {
    pub(crate) tool: ToolInfo,
    pub(crate) workload: WorkloadInfo,
    pub(crate) seed: u64,
    pub(crate) decoding: DecodingInfo,
    pub(crate) fields: StoredFields,
    pub(crate) weights: StoredWeights,
    pub(crate) branches: Option<StoredBranches>,
    pub(crate) times: bool,
}

/// The header of a recording on `model`.
pub(crate) fn header_of(model: &Model, parts: HeaderParts) -> Result<TraceHeader, ExecutorError> {
    let config = model.config();
    let identity = model.identity()?;
    let HeaderParts { tool, workload, seed, decoding, fields, weights, branches, times } = parts;
    Ok(TraceHeader {
        synthetic: None,
        tool,
        shape: shape(config)?,
        rope: Some(rope_info(model)),
        runtime: Some(runtime_info(model.runtime())),
        model: model_info(config, identity, model.source_file()),
        decoding,
        workload,
        seed,
        shard_tokens: TraceHeader::SHARD_TOKENS,
        fields,
        weights,
        branches,
        requests: None,
        derived_from: Vec::new(),
        times,
    })
}

pub(crate) fn shape(config: &DecoderConfig) -> Result<ModelShape, ModelError> {
    let half = |what: &'static str, value: usize| {
        u16::try_from(value).map_err(|_| ModelError::shape(what, value, "at most 65535, to be recorded"))
    };
    let whole = |what: &'static str, value: usize| {
        u32::try_from(value).map_err(|_| ModelError::shape(what, value, "below 2^32, to be recorded"))
    };
    Ok(ModelShape {
        layers: half("layers", config.layers)?,
        q_heads: half("query heads", config.q_heads)?,
        kv_heads: half("key-value heads", config.kv_heads)?,
        head_dim: half("head width", config.head_dim)?,
        hidden: whole("hidden", config.hidden)?,
        vocab: whole("vocabulary", config.vocab)?,
    })
}

/// How the model rotates queries and keys.
pub(crate) fn rope_info(model: &Model) -> RopeInfo {
    let config = model.config();
    let scaling = match &config.rope_scaling {
        RopeScaling::None => None,
        other => Some(json(other)),
    };
    RopeInfo {
        style: "rotate-half".to_owned(),
        theta: config.rope_theta,
        scaling,
        keys: KeyState::PostRope,
        inv_freq: Some(model.rope_frequencies().iter().copied().map(f64::from).collect()),
        attention_scaling: Some(f64::from(model.rope_scaling())),
    }
}

fn model_info(config: &DecoderConfig, identity: ModelIdentity, source_file: Option<String>) -> ModelInfo {
    ModelInfo {
        name: identity.name,
        family: identity.family,
        source_file,
        weights_sha256: Some(identity.weights_sha256),
        tokenizer_sha256: identity.tokenizer_sha256,
        graph_sha256: Some(identity.graph_sha256),
        precision: "f32".to_owned(),
        config: json(config),
    }
}

pub(crate) fn runtime_info(report: &RuntimeReport) -> RuntimeInfo {
    let requested = match report.asked {
        ProviderChoice::Auto => "auto",
        ProviderChoice::Cuda => "cuda",
        ProviderChoice::Cpu => "cpu",
    };
    let provider = match report.provider {
        Provider::Cuda => "cuda",
        Provider::Cpu => "cpu",
    };
    RuntimeInfo {
        library: "onnxruntime".to_owned(),
        version: report.version.clone().unwrap_or_else(|| report.build.clone()),
        provider: provider.to_owned(),
        requested_provider: requested.to_owned(),
        fallback_reason: report.fallback_reason.clone(),
        threads: u32::try_from(report.threads).unwrap_or(u32::MAX),
        optimization_level: "all".to_owned(),
    }
}

fn json(value: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(value).expect("plain structs of numbers and texts have a JSON form")
}
