//! The open loop: run, hand over what was seen, evict nothing.
//!
//! Responsible for the order of passes and for which positions the lens looks at. Not responsible for where things go: that is
//! a [`RecordSink`].

use std::num::NonZeroUsize;

use kvlab_sim::{
    trace::{
        Chunk, LayerChunk, LensFact, LensPosition, SequenceEnd, SequenceStart, StoredFields, TraceError,
        TraceWriter,
    },
    types::{Pos, TokenId},
};
use ndarray::{Array4, ArrayView3, Axis};

use crate::{
    decode::{Decoder, LensFacts, LensOptions, Pass, RawLens, Taps, greedy},
    error::ExecutorError,
    progress::Progress,
    text::{TextCodec, TextError},
};

/// Takes what a recording gives, sequence by sequence, in order of positions.
pub trait RecordSink {
    /// A sequence begins.
    ///
    /// # Errors
    /// The sink refuses.
    fn begin_sequence(&mut self, start: SequenceStart) -> Result<(), TraceError>;

    /// The next positions of the sequence.
    ///
    /// # Errors
    /// The sink refuses.
    fn chunk(&mut self, chunk: &Chunk<'_>) -> Result<(), TraceError>;

    /// The sequence is complete.
    ///
    /// # Errors
    /// The sink refuses.
    fn end_sequence(&mut self, end: SequenceEnd) -> Result<(), TraceError>;
}

impl RecordSink for TraceWriter {
    fn begin_sequence(&mut self, start: SequenceStart) -> Result<(), TraceError> {
        Self::begin_sequence(self, start).map(|_index| ())
    }

    fn chunk(&mut self, chunk: &Chunk<'_>) -> Result<(), TraceError> {
        self.push(chunk)
    }

    fn end_sequence(&mut self, end: SequenceEnd) -> Result<(), TraceError> {
        Self::end_sequence(self, end)
    }
}

/// At which prompt positions the lens looks. The last one, which predicts the first generated token, is always among
/// them; so is every generated position. A prompt position costs about as much as decoding a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptLens {
    /// The last position only.
    Last,
    /// Every so many positions, counted from the first.
    Every(NonZeroUsize),
}

impl PromptLens {
    fn looks_at(self, pos: u32, prompt_len: u32) -> bool {
        let sampled = match self {
            Self::Last => false,
            Self::Every(step) => (pos as usize).is_multiple_of(step.get()),
        };
        sampled || pos + 1 >= prompt_len
    }
}

/// How sequences are run and what is kept of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenLoop {
    /// Prompt tokens per pass.
    pub chunk: NonZeroUsize,
    /// Most tokens that are generated.
    pub max_new_tokens: u32,
    /// What is kept.
    pub fields: StoredFields,
    /// At which prompt positions the lens looks.
    pub prompt_lens: PromptLens,
}

/// A prompt, ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Id of the problem.
    pub item: String,
    /// The tokens, at least one.
    pub tokens: Vec<u32>,
    /// The text they came from.
    pub text: Option<String>,
    /// Texts that end the continuation when they appear in it.
    pub stops: Vec<String>,
}

/// Says what to write about a continuation: its text is `None` without a tokenizer. The reason is filled in.
pub type Judge<'a> = &'a dyn Fn(Option<&str>) -> SequenceEnd;

impl OpenLoop {
    /// Runs one prompt and its greedy continuation. Every generated token is fed, an end token included, so the trace
    /// holds all of them.
    ///
    /// # Errors
    /// The decoder, the tokenizer or the sink.
    pub fn run(
        &self,
        decoder: &mut Decoder<'_>,
        codec: Option<&TextCodec>,
        prompt: &Prompt,
        judge: Judge<'_>,
        sink: &mut dyn RecordSink,
        progress: &dyn Progress,
    ) -> Result<(), ExecutorError> {
        let prompt_len =
            u32::try_from(prompt.tokens.len()).map_err(|_| crate::decode::DecodeError::PositionsExhausted)?;
        let total = u64::from(prompt_len) + u64::from(self.max_new_tokens);
        progress.start(&format!("recording {}", prompt.item), Some(total));
        sink.begin_sequence(SequenceStart {
            item: prompt.item.clone(),
            prompt_len,
            bos_len: codec.map_or(0, |codec| u32::from(codec.begins_with_marker(&prompt.tokens))),
            prompt_text: prompt.text.clone(),
        })?;
        let mut next = None;
        for tokens in prompt.tokens.chunks(self.chunk.get()) {
            next = Some(self.feed(decoder, tokens, prompt_len, sink, progress)?);
        }
        let mut made = Vec::new();
        let mut reason = "length";
        while let Some(token) = next.filter(|_| made.len() < self.max_new_tokens as usize) {
            made.push(token);
            next = Some(self.feed(decoder, &[token], prompt_len, sink, progress)?);
            if let Some(codec) = codec {
                if codec.is_end(token) {
                    reason = "eos";
                    break;
                }
                if says_any(codec, &made, &prompt.stops)? {
                    reason = "stop";
                    break;
                }
            }
        }
        let text = codec.map(|codec| codec.decode(&made)).transpose()?;
        let end = judge(text.as_deref());
        sink.end_sequence(SequenceEnd { finish_reason: reason.to_owned(), generated_text: text, ..end })?;
        progress.finish();
        Ok(())
    }

    /// Feeds tokens, hands over what was seen, and gives the greedy next token.
    fn feed(
        &self,
        decoder: &mut Decoder<'_>,
        tokens: &[u32],
        prompt_len: u32,
        sink: &mut dyn RecordSink,
        progress: &dyn Progress,
    ) -> Result<u32, ExecutorError> {
        let fields = self.fields;
        let states = fields.attention.is_some();
        let taps = Taps {
            hidden: fields.hidden || fields.lens,
            queries: states,
            keys: states,
            values: states,
            attention: false,
        };
        let pass = decoder.forward(tokens, taps)?;
        let rows: Vec<usize> = (0..tokens.len())
            .filter(|row| fields.lens && self.prompt_lens.looks_at(pass.positions[*row], prompt_len))
            .collect();
        let lens = if rows.is_empty() { Vec::new() } else { self.look(decoder, &pass, &rows)? };
        let ids: Vec<TokenId> = tokens.iter().copied().map(TokenId::new).collect();
        sink.chunk(&Chunk { tokens: &ids, layers: layer_chunks(&pass, fields), lens: &lens })?;
        progress.advance(tokens.len() as u64);
        let last = pass.positions[tokens.len() - 1];
        let seen = lens.last().filter(|position| position.pos.get() == last);
        match seen.and_then(|position| position.layers.last()).and_then(|fact| fact.top.first()) {
            Some((token, _)) => Ok(token.get()),
            None => Ok(greedy(&decoder.last_logits(&pass)?)),
        }
    }

    fn look(
        &self,
        decoder: &mut Decoder<'_>,
        pass: &Pass,
        rows: &[usize],
    ) -> Result<Vec<LensPosition>, ExecutorError> {
        let options = LensOptions { top: usize::from(self.fields.lens_top.max(1)), raw: RawLens::Included };
        let by_layer = decoder.lens(pass, rows, options)?;
        let position = |(index, row): (usize, &usize)| LensPosition {
            pos: Pos::new(pass.positions[*row]),
            layers: by_layer.iter().map(|layer| fact(&layer[index])).collect(),
        };
        Ok(rows.iter().enumerate().map(position).collect())
    }
}

fn fact(facts: &LensFacts) -> LensFact {
    let raw = facts.raw.as_ref().unwrap_or(&facts.normed);
    LensFact {
        entropy_nats: narrow(facts.normed.entropy_nats),
        raw_entropy_nats: narrow(raw.entropy_nats),
        logsumexp: narrow(facts.normed.log_sum_exp),
        raw_logsumexp: narrow(raw.log_sum_exp),
        top: facts.normed.top.iter().map(|top| (TokenId::new(top.token), top.logit)).collect(),
    }
}

/// Views of each layer's states, of the fields that are kept.
fn layer_chunks(pass: &Pass, fields: StoredFields) -> Vec<LayerChunk<'_>> {
    if !fields.hidden && fields.attention.is_none() {
        return Vec::new();
    }
    (0..pass.layers_run)
        .map(|layer| LayerChunk {
            hidden: pass
                .hidden
                .as_ref()
                .filter(|_| fields.hidden)
                .map(|hidden| hidden.index_axis(Axis(0), layer)),
            q: layer_view(&pass.queries, layer),
            k: layer_view(&pass.keys, layer),
            v: layer_view(&pass.values, layer),
        })
        .collect()
}

fn layer_view(tap: &Option<Array4<f32>>, layer: usize) -> Option<ArrayView3<'_, f32>> {
    tap.as_ref().map(|tap| tap.index_axis(Axis(0), layer))
}

pub(crate) fn says_any(codec: &TextCodec, made: &[u32], stops: &[String]) -> Result<bool, TextError> {
    if stops.is_empty() {
        return Ok(false);
    }
    let text = codec.decode(made)?;
    Ok(stops.iter().any(|stop| text.contains(stop.as_str())))
}

#[expect(clippy::cast_possible_truncation, reason = "facts are recorded as f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lens_looks_at_the_sample_the_last_prompt_position_and_every_generated_one() {
        let looked = |lens: PromptLens| (0..9).filter(|pos| lens.looks_at(*pos, 6)).collect::<Vec<u32>>();
        assert_eq!(looked(PromptLens::Last), [5, 6, 7, 8]);
        assert_eq!(looked(PromptLens::Every(NonZeroUsize::new(4).unwrap())), [0, 4, 5, 6, 7, 8]);
    }
}
