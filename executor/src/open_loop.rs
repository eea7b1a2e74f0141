//! The open loop: run, hand over what was seen, evict nothing.
//!
//! Responsible for the order of passes and for which positions the lens looks at. Not responsible for where things go: that is
//! a [`RecordSink`].

use std::num::NonZeroUsize;

use kvlab_sim::{
    trace::{
        Chunk, LayerChunk, LensFact, LensForms, LensPosition, RawLensFact, SequenceEnd, SequenceStart,
        StoredFields, TraceError, TraceWriter,
    },
    types::{Pos, TokenId},
};
use ndarray::{Array4, ArrayView2, ArrayView3, Axis};

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

/// Decoding steps that the lens looks at together, where that pays.
const HELD_STEPS: usize = 16;
/// Elements of an unembedding that stays in a cache of the processor: 4 MB.
const SMALL_HEAD: usize = 1 << 20;

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
        let mut held = Held { prompt_len, most: self.most_held(decoder), passes: Vec::new() };
        for tokens in prompt.tokens.chunks(self.chunk.get()) {
            next = Some(self.feed(decoder, tokens, &mut held, sink)?);
            progress.advance(tokens.len() as u64);
        }
        let mut made = Vec::new();
        let mut reason = "length";
        while let Some(token) = next.filter(|_| made.len() < self.max_new_tokens as usize) {
            made.push(token);
            next = Some(self.feed(decoder, &[token], &mut held, sink)?);
            progress.advance(1);
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
        self.hand_over(decoder, &mut held, sink)?;
        let text = codec.map(|codec| codec.decode(&made)).transpose()?;
        let end = judge(text.as_deref());
        sink.end_sequence(SequenceEnd { finish_reason: reason.to_owned(), generated_text: text, ..end })?;
        progress.finish();
        Ok(())
    }

    /// Steps that wait for the lens to look at all of them at once. With a small unembedding a product costs little and every call much; with a large one
    /// the look at a step gives its next token too.
    fn most_held(&self, decoder: &Decoder<'_>) -> usize {
        let size = decoder.config().vocab * decoder.config().hidden;
        if self.fields.lens.is_some() && size <= SMALL_HEAD { HELD_STEPS } else { 1 }
    }

    /// Feeds tokens and gives the greedy next token. What was seen is handed over when enough has come together.
    fn feed(
        &self,
        decoder: &mut Decoder<'_>,
        tokens: &[u32],
        held: &mut Held,
        sink: &mut dyn RecordSink,
    ) -> Result<u32, ExecutorError> {
        let fields = self.fields;
        let states = fields.attention.is_some();
        let taps = Taps {
            hidden: fields.hidden || fields.lens.is_some(),
            queries: states,
            keys: states,
            values: states,
            attention: false,
        };
        let pass = decoder.forward(tokens, taps)?;
        if held.most > 1 {
            let next = greedy(&decoder.last_logits(&pass)?);
            held.passes.push(pass);
            if tokens.len() > 1 || held.passes.len() >= held.most {
                self.hand_over(decoder, held, sink)?;
            }
            return Ok(next);
        }
        let last = pass.positions[tokens.len() - 1];
        held.passes.push(pass);
        let (lens, pass) = self.hand_over(decoder, held, sink)?;
        let seen = lens.last().filter(|position| position.pos.get() == last);
        match (seen.and_then(|position| position.layers.last()).and_then(|fact| fact.top.first()), pass) {
            (Some((token, _)), _) => Ok(token.get()),
            (None, Some(pass)) => Ok(greedy(&decoder.last_logits(&pass)?)),
            (None, None) => Err(crate::decode::DecodeError::NoTokens.into()),
        }
    }

    /// Looks at the passes held and hands them over; gives the facts and the last of them.
    fn hand_over(
        &self,
        decoder: &mut Decoder<'_>,
        held: &mut Held,
        sink: &mut dyn RecordSink,
    ) -> Result<(Vec<LensPosition>, Option<Pass>), ExecutorError> {
        let lens = match self.fields.lens {
            Some(forms) => self.look(decoder, held, forms)?,
            None => Vec::new(),
        };
        for pass in &held.passes {
            let ids: Vec<TokenId> = pass.tokens.iter().copied().map(TokenId::new).collect();
            let (first, last) = (pass.positions[0], pass.positions[pass.positions.len() - 1]);
            let own = lens.partition_point(|seen| seen.pos.get() < first)
                ..lens.partition_point(|seen| seen.pos.get() <= last);
            let layers = layer_chunks(pass, self.fields);
            sink.chunk(&Chunk { tokens: &ids, layers, lens: &lens[own] })?;
        }
        Ok((lens, held.passes.drain(..).next_back()))
    }

    /// The facts of all positions of the passes held that the lens looks at, from one look.
    fn look(
        &self,
        decoder: &mut Decoder<'_>,
        held: &Held,
        forms: LensForms,
    ) -> Result<Vec<LensPosition>, ExecutorError> {
        let (mut rows, mut positions, mut layers) = (Vec::new(), Vec::new(), 0);
        for pass in &held.passes {
            let Some(hidden) = &pass.hidden else { continue };
            layers = pass.layers_run;
            let looked_at = |pos: &u32| self.prompt_lens.looks_at(*pos, held.prompt_len);
            for (row, pos) in pass.positions.iter().enumerate().filter(|(_, pos)| looked_at(pos)) {
                hidden.outer_iter().for_each(|layer| rows.extend(layer.row(row)));
                positions.push(*pos);
            }
        }
        if positions.is_empty() {
            return Ok(Vec::new());
        }
        let width = decoder.config().hidden;
        let rows =
            ArrayView2::from_shape((rows.len() / width, width), &rows).expect("whole rows were stacked");
        let raw = match forms {
            LensForms::Both => RawLens::Included,
            LensForms::Normed => RawLens::Skipped,
        };
        let options = LensOptions { top: usize::from(self.fields.lens_top.max(1)), raw };
        let facts = decoder.head().lens(rows, options)?;
        let position = |(pos, facts): (&u32, &[LensFacts])| LensPosition {
            pos: Pos::new(*pos),
            layers: facts.iter().map(fact).collect(),
        };
        Ok(positions.iter().zip(facts.chunks(layers)).map(position).collect())
    }
}

/// Passes whose facts nobody has looked at yet.
struct Held {
    prompt_len: u32,
    most: usize,
    passes: Vec<Pass>,
}

fn fact(facts: &LensFacts) -> LensFact {
    LensFact {
        entropy_nats: narrow(facts.normed.entropy_nats),
        logsumexp: narrow(facts.normed.log_sum_exp),
        raw: facts.raw.as_ref().map(|raw| RawLensFact {
            entropy_nats: narrow(raw.entropy_nats),
            logsumexp: narrow(raw.log_sum_exp),
        }),
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
