//! Checks of a loaded model against a second implementation and against itself.
//!
//! Responsible for what is compared and how near it must be. Not responsible for printing.

use std::{num::NonZeroUsize, path::PathBuf};

use ndarray::Axis;
use safetensors::SafeTensors;
use serde::Serialize;

use crate::{
    decode::Taps,
    error::ExecutorError,
    family::{DecoderConfig, ModelError},
    model::Model,
    onnx::Comparison,
    reference,
    text::ChatMessage,
};

/// Largest difference of logits to another implementation.
pub const LOGIT_TOLERANCE: f64 = 1e-3;
/// Largest difference of logits to the same weights run in another way.
pub const SELF_TOLERANCE: f64 = 1e-4;
/// Largest difference of states to another implementation, as a share of the largest number among them.
pub const STATE_TOLERANCE: f64 = 1e-5;

/// What is compared.
#[derive(Debug, Clone)]
pub struct CheckPlan {
    /// Length of the probe, in tokens; at least 8.
    pub tokens: NonZeroUsize,
    /// Run the naive pass in plain Rust. It takes about a second a token for a billion parameters.
    pub naive: bool,
    /// A safetensors file with what another implementation gave: `input_ids` (integers, `[pos]`), `logits` (f32,
    /// `[pos, vocab]`) and, if it has them, `hidden_states` (f32, `[layer + 1, pos, hidden]`, the embedding first).
    pub expected: Option<PathBuf>,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Within the tolerance.
    Ok,
    /// Outside.
    Failed,
    /// Not done; the note says why.
    Skipped,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckRow {
    /// What was compared with what.
    pub what: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// The largest difference found.
    pub largest: Option<f64>,
    /// The largest that is accepted.
    pub tolerance: Option<f64>,
    /// More to know.
    pub note: Option<String>,
}

impl CheckRow {
    fn within(what: &'static str, largest: f64, tolerance: f64) -> Self {
        // A NaN is within nothing.
        let verdict = if largest <= tolerance { Verdict::Ok } else { Verdict::Failed };
        Self { what, verdict, largest: Some(largest), tolerance: Some(tolerance), note: None }
    }

    fn truth(what: &'static str, is_true: bool, note: Option<String>) -> Self {
        let verdict = if is_true { Verdict::Ok } else { Verdict::Failed };
        Self { what, verdict, largest: None, tolerance: None, note }
    }

    fn skipped(what: &'static str, note: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Skipped, largest: None, tolerance: None, note: Some(note.into()) }
    }
}

/// Runs every check that the plan and the model's files allow.
///
/// # Errors
/// The model cannot run, or the file of expected results cannot be read. A difference is no error: it is a row.
pub fn check_model(model: &mut Model, plan: &CheckPlan) -> Result<Vec<CheckRow>, ExecutorError> {
    let probe = probe(model.config(), plan.tokens.get().max(8));
    let mut rows = texts(model);
    rows.extend(naive(model, &probe, plan.naive)?);
    if let Some(Comparison { largest, accepted }) = model.compare_with_origin()? {
        rows.push(CheckRow::within("logits, the exported graph", largest, accepted));
    }
    rows.extend(itself(model, &probe)?);
    if let Some(path) = &plan.expected {
        rows.extend(expected(model, path)?);
    }
    Ok(rows)
}

/// Tokens spread over the vocabulary, as many as the context allows.
pub(crate) fn probe(config: &DecoderConfig, count: usize) -> Vec<u32> {
    let vocab = config.vocab as u64;
    (0..count.min(config.context) as u64)
        .map(|i| u32::try_from((i * 2_654_435_761 + 12_345) % vocab).unwrap_or(0))
        .collect()
}

const ROUND_TRIP: &str = "text to tokens and back";
const TEMPLATE: &str = "chat template renders";

/// What tokenizers put where a vocabulary has no word.
const UNKNOWN: [&str; 2] = ["<unk>", "[UNK]"];

fn texts(model: &Model) -> Vec<CheckRow> {
    let text = "Anna has 3 boxes of 12 pencils. How many pencils?";
    let round_trip = match model.codec().map(|codec| codec.encode(text).and_then(|ids| codec.decode(&ids))) {
        Err(reason) => CheckRow::skipped(ROUND_TRIP, reason.to_string()),
        Ok(Err(reason)) => CheckRow::truth(ROUND_TRIP, false, Some(reason.to_string())),
        // A vocabulary of words cannot hold every text; the model of `kvlab demo` has one.
        Ok(Ok(back))
            if back != text
                && (back.len() < text.len() || UNKNOWN.iter().any(|word| back.contains(word))) =>
        {
            CheckRow::skipped(ROUND_TRIP, format!("the vocabulary does not cover {text:?}"))
        }
        Ok(Ok(back)) => {
            let note = (back.trim_start() != text).then(|| format!("{text:?} became {back:?}"));
            CheckRow::truth(ROUND_TRIP, note.is_none(), note)
        }
    };
    let message = ChatMessage { role: "user".to_owned(), content: text.to_owned() };
    let template = match model.chat_template().map(|template| template.format(&[message])) {
        Err(reason) => CheckRow::skipped(TEMPLATE, reason.to_string()),
        Ok(Err(reason)) => CheckRow::truth(TEMPLATE, false, Some(reason.to_string())),
        Ok(Ok(chat)) => CheckRow::truth(TEMPLATE, chat.contains(text), None),
    };
    vec![round_trip, template]
}

const NAIVE_STATES: &str = "states, naive pass in plain Rust";
const NAIVE_LOGITS: &str = "logits, naive pass in plain Rust";

fn naive(model: &mut Model, probe: &[u32], wanted: bool) -> Result<Vec<CheckRow>, ExecutorError> {
    if !wanted {
        let note = "left out on request";
        return Ok(vec![CheckRow::skipped(NAIVE_STATES, note), CheckRow::skipped(NAIVE_LOGITS, note)]);
    }
    let config = model.config().clone();
    let slow =
        model.with_weights(|weights| Ok(reference::forward(&config, weights, probe, &|_, _, _, _| true)?))?;
    let mut decoder = model.decoder()?;
    let pass = decoder.forward(probe, Taps::STATES)?;
    let logits = decoder.logits(&pass)?;
    let mut states = 0.0_f64;
    if let Some(hidden) = &pass.hidden {
        for (own, other) in hidden.axis_iter(Axis(0)).zip(&slow.hidden) {
            let scale = other.iter().flatten().fold(1.0_f64, |most, value| most.max(value.abs()));
            states = states.max(apart(own.iter(), other.iter().flatten().copied()) / scale);
        }
    }
    let logits = apart(logits.iter(), slow.logits.iter().flatten().copied());
    Ok(vec![
        CheckRow::within(NAIVE_STATES, states, STATE_TOLERANCE),
        CheckRow::within(NAIVE_LOGITS, logits, LOGIT_TOLERANCE),
    ])
}

/// The same weights run in other ways.
fn itself(model: &mut Model, probe: &[u32]) -> Result<Vec<CheckRow>, ExecutorError> {
    let layers = model.config().layers;
    let mut decoder = model.decoder()?;
    let whole = decoder.forward(probe, Taps::STATES)?;
    let expected = decoder.last_logits(&whole)?;
    let mut rows = Vec::new();

    let mut decoder = model.decoder()?;
    let three = NonZeroUsize::MIN.saturating_add(2);
    let pass = decoder.feed(probe, three, Taps::NONE)?;
    let logits = decoder.last_logits(&pass)?;
    rows.push(CheckRow::within(
        "logits, in chunks of 3 tokens",
        difference(&logits, &expected),
        SELF_TOLERANCE,
    ));

    let middle = layers / 2;
    let mut decoder = model.decoder()?;
    let pass = decoder.forward_until(probe, middle, Taps::NONE)?;
    let stopped = whole.hidden.as_ref().map_or(f64::NAN, |hidden| {
        let whole = hidden.index_axis(Axis(0), middle);
        let scale = whole.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
        apart(pass.last_hidden.iter(), whole.iter().copied().map(f64::from)) / f64::from(scale)
    });
    rows.push(CheckRow::within("states, stopped at half depth", stopped, STATE_TOLERANCE));

    let (before, last) = probe.split_at(probe.len() - 1);
    let all = |_: usize, _: u32| true;
    let kept_all = after_retaining(model, before, last, &all, Keep::Remove)?;
    let untouched = after_retaining(model, before, last, &all, Keep::Leave)?;
    rows.push(CheckRow::within("logits, an eviction that keeps all", difference(&kept_all, &untouched), 0.0));
    let some = |head: usize, pos: u32| pos == 0 || !(pos as usize + head).is_multiple_of(3);
    let removed = after_retaining(model, before, last, &some, Keep::Remove)?;
    let hidden = after_retaining(model, before, last, &some, Keep::Hide)?;
    rows.push(CheckRow::within(
        "logits, removed from the cache and hidden in it",
        difference(&removed, &hidden),
        SELF_TOLERANCE,
    ));
    Ok(rows)
}

#[derive(Clone, Copy)]
enum Keep {
    Leave,
    Remove,
    Hide,
}

/// Logits of `last` after an eviction from every layer that keeps what `is_kept(kv_head, pos)` says.
fn after_retaining(
    model: &mut Model,
    before: &[u32],
    last: &[u32],
    is_kept: &dyn Fn(usize, u32) -> bool,
    keep: Keep,
) -> Result<Vec<f32>, ExecutorError> {
    let (layers, heads) = (model.config().layers, model.config().kv_heads);
    let mut decoder = model.decoder()?;
    decoder.forward(before, Taps::NONE)?;
    let end = decoder.next_position();
    let sets: Vec<Vec<u32>> =
        (0..heads).map(|head| (0..end).filter(|pos| is_kept(head, *pos)).collect()).collect();
    for layer in 0..layers {
        match keep {
            Keep::Leave => {}
            Keep::Remove => decoder.retain(layer, &sets)?,
            Keep::Hide => decoder.mask(layer, &sets)?,
        }
    }
    let pass = decoder.forward(last, Taps::NONE)?;
    Ok(decoder.last_logits(&pass)?)
}

fn expected(model: &mut Model, path: &std::path::Path) -> Result<Vec<CheckRow>, ExecutorError> {
    let bytes = std::fs::read(path).map_err(ModelError::io("read", path))?;
    let wrong = |what: &str, found: String, accepted: String| ModelError::Safetensors {
        path: path.to_owned(),
        what: what.to_owned(),
        found,
        accepted,
    };
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| wrong("the file", error.to_string(), "a safetensors file".to_owned()))?;
    let get = |name: &str, accepted: &str| {
        file.tensor(name).map_err(|_| wrong(name, "missing".to_owned(), accepted.to_owned()))
    };
    let ids = get("input_ids", "integers, [pos]")?;
    let vocab = model.config().vocab;
    let tokens: Option<Vec<u32>> = match ids.dtype() {
        safetensors::Dtype::I64 => {
            ids.data().as_chunks().0.iter().map(|b| u32::try_from(i64::from_le_bytes(*b)).ok()).collect()
        }
        safetensors::Dtype::I32 => {
            ids.data().as_chunks().0.iter().map(|b| u32::try_from(i32::from_le_bytes(*b)).ok()).collect()
        }
        _ => None,
    };
    let found = || format!("{:?} of shape {:?}", ids.dtype(), ids.shape());
    let tokens = tokens
        .filter(|tokens| !tokens.is_empty() && tokens.iter().all(|token| (*token as usize) < vocab))
        .ok_or_else(|| wrong("input_ids", found(), format!("i32 or i64 token ids below {vocab}")))?;
    let floats = |name: &str, shape: &[usize]| -> Result<Vec<f32>, ModelError> {
        let tensor = get(name, "f32")?;
        if tensor.dtype() != safetensors::Dtype::F32 || tensor.shape() != shape {
            let found = format!("{:?} of shape {:?}", tensor.dtype(), tensor.shape());
            return Err(wrong(name, found, format!("F32 of shape {shape:?}")));
        }
        Ok(tensor.data().as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect())
    };
    let (layers, hidden) = (model.config().layers, model.config().hidden);
    let logits = floats("logits", &[tokens.len(), vocab])?;
    let mut decoder = model.decoder()?;
    let pass = decoder.forward(&tokens, Taps::STATES)?;
    let own = decoder.logits(&pass)?;
    let mut rows =
        vec![CheckRow::within("logits, expected file", difference(&own, &logits), LOGIT_TOLERANCE)];
    if let (Ok(_), Some(own)) = (file.tensor("hidden_states"), &pass.hidden) {
        let states = floats("hidden_states", &[layers + 1, tokens.len(), hidden])?;
        let mut largest = 0.0_f64;
        for (own, other) in own.axis_iter(Axis(0)).zip(states.chunks(tokens.len() * hidden).skip(1)) {
            let scale = other.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
            let apart = apart(own.iter(), other.iter().copied().map(f64::from));
            largest = largest.max(apart / f64::from(scale));
        }
        // States of another implementation went through its own order of sums.
        rows.push(CheckRow::within("states, expected file", largest, 10.0 * STATE_TOLERANCE));
    }
    Ok(rows)
}

/// The largest difference of two lists of one length; NaN if one is in it.
pub(crate) fn difference(own: &[f32], other: &[f32]) -> f64 {
    apart(own.iter(), other.iter().copied().map(f64::from))
}

/// The largest difference; NaN if one is in it.
fn apart<'a>(own: impl Iterator<Item = &'a f32>, other: impl Iterator<Item = f64>) -> f64 {
    let differences = own.zip(other).map(|(own, other)| (f64::from(*own) - other).abs());
    differences.fold(0.0, |most, value| if value.is_nan() || value > most { value } else { most })
}
