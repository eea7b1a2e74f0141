//! What a recording takes, said before it runs: bytes at most, and time by trying.

use std::time::{Duration, Instant};

use kvlab_sim::trace::{Chunk, Dtype, LensForms, SequenceEnd, SequenceStart, TraceError};

use crate::{
    error::ExecutorError,
    family::DecoderConfig,
    model::Model,
    open_loop::{OpenLoop, Prompt, PromptLens, RecordSink},
    progress::Quiet,
    record::{self, RecordItem, RecordPlan},
};

/// What every trace has beside its sequences: manifest, schema of the tables.
const FIXED_BYTES: u64 = 64 * 1024;
/// What every sequence has beside its positions: its entry in the manifest, headers of its files. Texts come on top.
const SEQUENCE_BYTES: u64 = 4 * 1024;
/// Prompt tokens of the trial run.
const TRIAL_PROMPT: usize = 24;
/// New tokens of the trial run.
const TRIAL_NEW: u32 = 3;

/// Bytes that the parts of a recording take at most. Tables are counted uncompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Once a trace.
    fixed: u64,
    /// A position.
    position: u64,
    /// A position that the lens looks at, on top.
    looked_at: u64,
}

impl Footprint {
    pub(crate) fn of(config: &DecoderConfig, plan: &RecordPlan) -> Self {
        let fields = plan.open_loop.fields;
        let (layers, width) = (config.layers as u64, config.hidden as u64);
        let states = fields
            .attention
            .map_or(0, |dtype| (config.q_width() + 2 * config.kv_width()) as u64 * bytes_of(dtype));
        let hidden = if fields.hidden { 4 * width } else { 0 };
        // An entropy and a sum for each form, then a token and a logit for each of the largest, with their coordinates.
        let forms = |forms| if forms == LensForms::Both { 24 } else { 16 };
        let fact = fields.lens.map_or(0, |lens| forms(lens) + 12 * u64::from(fields.lens_top));
        let weight = |count: u64, dtype: Option<Dtype>| dtype.map_or(0, |dtype| count * bytes_of(dtype));
        let w_o = layers * width * config.q_width() as u64;
        let head = width * (config.vocab as u64 + 1);
        Self {
            fixed: FIXED_BYTES + weight(w_o, plan.weights.w_o) + weight(head, plan.weights.head),
            position: layers * (states + hidden) + 16,
            looked_at: layers * fact,
        }
    }

    /// Of a trace without sequences.
    pub(crate) fn empty(&self) -> u64 {
        self.fixed
    }

    /// Of a sequence of `len` positions, the lens looking at `looked_at` of them, with `text` bytes of text.
    pub(crate) fn sequence(&self, len: u64, looked_at: u64, text: u64) -> u64 {
        SEQUENCE_BYTES + len * self.position + looked_at * self.looked_at + 2 * text
    }

    /// Of a prompt and everything that may follow.
    pub(crate) fn at_most(&self, open_loop: &OpenLoop, prompt: &Prompt) -> u64 {
        let (len, new) = (prompt.tokens.len() as u64, u64::from(open_loop.max_new_tokens));
        let prompt_looks = match open_loop.prompt_lens {
            PromptLens::Last => 1,
            PromptLens::Every(step) => len.div_ceil(step.get() as u64) + 1,
        };
        // Few tokens are longer than 16 bytes of text.
        let text = prompt.text.as_ref().map_or(0, String::len) as u64 + 16 * new;
        self.sequence(len + new, prompt_looks + new, text)
    }
}

/// Bytes of a number in tensors.
fn bytes_of(dtype: Dtype) -> u64 {
    if dtype == Dtype::F16 { 2 } else { 4 }
}

/// What a recording is expected to take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Problems.
    pub sequences: usize,
    /// Bytes, if every problem generates as many tokens as it may.
    pub most_bytes: u64,
    /// Time, if every problem generates as many tokens as it may: from a short trial run, with taps and lens, on an empty cache.
    pub most_time: Duration,
}

impl Forecast {
    /// Measures a short run of the first prompt and adds up the rest.
    ///
    /// # Errors
    /// A prompt cannot be made, or the model cannot run.
    pub fn of(model: &mut Model, items: &[RecordItem], plan: &RecordPlan) -> Result<Self, ExecutorError> {
        let prompts = items.iter().map(|item| record::prompt(model, item)).collect::<Result<Vec<_>, _>>()?;
        let footprint = Footprint::of(model.config(), plan);
        let sequences: u64 = prompts.iter().map(|prompt| footprint.at_most(&plan.open_loop, prompt)).sum();
        let new =
            u32::try_from(prompts.len()).unwrap_or(u32::MAX).saturating_mul(plan.open_loop.max_new_tokens);
        let given: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let most_time = match prompts.first() {
            Some(first) => {
                let (prefill, decode) = trial(model, first, plan)?;
                prefill.mul_f64(given as f64) + decode.mul_f64(f64::from(new))
            }
            None => Duration::ZERO,
        };
        Ok(Self { sequences: items.len(), most_bytes: footprint.empty() + sequences, most_time })
    }
}

/// Time a prompt token and a new token take, from the beginning of a prompt.
fn trial(
    model: &mut Model,
    prompt: &Prompt,
    plan: &RecordPlan,
) -> Result<(Duration, Duration), ExecutorError> {
    let tokens: Vec<u32> = prompt.tokens.iter().copied().take(TRIAL_PROMPT).collect();
    let mut time = |new: u32| -> Result<Duration, ExecutorError> {
        let open_loop = OpenLoop { max_new_tokens: new, ..plan.open_loop };
        let prompt = Prompt { tokens: tokens.clone(), stops: Vec::new(), ..prompt.clone() };
        let (mut decoder, _) = model.decoder_and_codec()?;
        let begin = Instant::now();
        open_loop.run(&mut decoder, None, &prompt, &|_| SequenceEnd::default(), &mut Nowhere, &Quiet)?;
        Ok(begin.elapsed())
    };
    // The first run of a session is slower than all others.
    time(1)?;
    let prefill = time(0)?;
    let both = time(TRIAL_NEW)?;
    Ok((prefill / u32::try_from(tokens.len()).unwrap_or(1).max(1), both.saturating_sub(prefill) / TRIAL_NEW))
}

/// Takes a recording and keeps nothing.
struct Nowhere;

impl RecordSink for Nowhere {
    fn begin_sequence(&mut self, _start: SequenceStart) -> Result<(), TraceError> {
        Ok(())
    }

    fn chunk(&mut self, _chunk: &Chunk<'_>) -> Result<(), TraceError> {
        Ok(())
    }

    fn end_sequence(&mut self, _end: SequenceEnd) -> Result<(), TraceError> {
        Ok(())
    }
}
