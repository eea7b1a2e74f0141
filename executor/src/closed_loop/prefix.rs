//! A prompt, prefilled once: every cell of a study forks from here.

use std::{num::NonZeroUsize, sync::Arc};

use kvlab_sim::{
    policy::{
        Needs,
        compose::{Stack, accumulate},
    },
    types::Pos,
};

use super::{
    known::Known,
    live::{LiveHead, QueryRing},
};
use crate::{
    decode::{DecodeError, Decoder, KvCache, Pass, Taps, greedy},
    error::ExecutorError,
    model::Model,
};

/// Cache and recent queries after a prompt, nothing evicted.
#[derive(Debug)]
pub struct Prefix {
    pub(super) cache: KvCache,
    pub(super) queries: QueryRing,
    /// Attention that each prompt token received, `[layer][kv_head][kv_pos]`; empty unless it was asked for.
    pub(super) mass: Vec<Vec<Vec<f32>>>,
    /// What is known of the model beside the cache.
    pub(super) known: Arc<Known>,
    pub(super) len: u32,
    pub(super) next: u32,
    /// What the passes over the prompt gave; nothing unless the prefix was [recorded](Prefix::recorded).
    pub(super) passes: Vec<Pass>,
}

impl Prefix {
    /// Prefills `prompt` in chunks of at most `chunk` tokens and remembers the last `window` queries: at least as many as
    /// any stack that forks from here looks at.
    ///
    /// # Errors
    /// An empty prompt, and as [`Decoder::forward`].
    pub fn new(
        model: &mut Model,
        prompt: &[u32],
        chunk: NonZeroUsize,
        window: u32,
    ) -> Result<Self, ExecutorError> {
        let wanted = Wanted { window, ..Wanted::default() };
        Self::made(model, prompt, chunk, wanted)
    }

    /// As [`Prefix::new`], with what every stack of `stacks` looks at: queries of the longest window and, where one
    /// accumulates attention, that of the prompt.
    ///
    /// # Errors
    /// As [`Prefix::new`].
    pub fn for_stacks<'a>(
        model: &mut Model,
        prompt: &[u32],
        chunk: NonZeroUsize,
        stacks: impl IntoIterator<Item = &'a Stack>,
    ) -> Result<Self, ExecutorError> {
        Self::made(model, prompt, chunk, Wanted::of(stacks))
    }

    /// As [`Prefix::for_stacks`], and the states of every layer at every prompt token are kept.
    ///
    /// # Errors
    /// As [`Prefix::new`].
    pub fn recorded<'a>(
        model: &mut Model,
        prompt: &[u32],
        chunk: NonZeroUsize,
        stacks: impl IntoIterator<Item = &'a Stack>,
    ) -> Result<Self, ExecutorError> {
        Self::made(model, prompt, chunk, Wanted { is_recorded: true, ..Wanted::of(stacks) })
    }

    fn made(
        model: &mut Model,
        prompt: &[u32],
        chunk: NonZeroUsize,
        Wanted { window, accumulates, needs, is_recorded }: Wanted,
    ) -> Result<Self, ExecutorError> {
        // Whoever accumulates looks at every query once: those of a chunk must be at hand after it.
        let chunk_len = u32::try_from(chunk.get().min(prompt.len())).unwrap_or(u32::MAX);
        let window = if accumulates { window.max(chunk_len) } else { window };
        let known = Arc::new(Known::of(model, needs)?);
        let len = u32::try_from(prompt.len()).map_err(|_| DecodeError::PositionsExhausted)?;
        let mut queries = QueryRing::new(model.config(), window);
        let mut decoder = model.decoder()?;
        let taps = if is_recorded { Taps::STATES } else { Taps { queries: window > 0, ..Taps::NONE } };
        let mut passes = Vec::new();
        let mut mass: Vec<Vec<Vec<f32>>> = Vec::new();
        let remember = |decoder: &mut Decoder<'_>, pass: &Pass| {
            queries.take(pass);
            if is_recorded {
                passes.push(pass.clone());
            }
            if accumulates {
                accumulate_pass(decoder, &queries, pass, &mut mass)?;
            }
            Ok::<_, DecodeError>(())
        };
        let last = decoder.prefill(prompt, chunk, taps, remember)?;
        let next = greedy(&decoder.last_logits(&last)?);
        Ok(Self { cache: decoder.cache().clone(), queries, mass, known, len, next, passes })
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// What the passes over the prompt gave; nothing unless it was [recorded](Prefix::recorded).
    pub(crate) fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Whether there are none; never, since an empty prompt is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most probable token after the prompt.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }
}

/// What is kept of a prompt.
#[derive(Default)]
struct Wanted {
    window: u32,
    accumulates: bool,
    needs: Needs,
    is_recorded: bool,
}

impl Wanted {
    fn of<'a>(stacks: impl IntoIterator<Item = &'a Stack>) -> Self {
        let mut wanted = Self::default();
        for stack in stacks {
            wanted.window = stack.window().max(wanted.window);
            wanted.accumulates |= stack.accumulates();
            wanted.needs = wanted.needs.and(stack.needs());
        }
        wanted
    }
}

/// Adds the attention of the queries of a pass to `mass`, `[layer][kv_head][kv_pos]`, as the replay does.
fn accumulate_pass(
    decoder: &Decoder<'_>,
    queries: &QueryRing,
    pass: &Pass,
    mass: &mut Vec<Vec<Vec<f32>>>,
) -> Result<(), DecodeError> {
    let layers = decoder.cache().layers();
    mass.resize_with(layers.len(), Vec::new);
    for (layer, (cache, heads)) in layers.iter().zip(mass).enumerate() {
        heads.resize_with(cache.kv_heads(), Vec::new);
        for (kv_head, mass) in heads.iter_mut().enumerate() {
            let live = LiveHead::looking(cache, queries, layer, kv_head, Needs::QK)?;
            for pos in &pass.positions {
                let seen: Vec<Pos> = (0..=*pos).map(Pos::new).collect();
                mass.resize(seen.len(), 0.0);
                accumulate(&live, Pos::new(*pos), &seen, mass);
            }
        }
    }
    Ok(())
}
