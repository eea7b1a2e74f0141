//! The decoder: passes over tokens, layer by layer.

use std::num::NonZeroUsize;

use ndarray::{Array2, ArrayView2};

use super::{
    ask::{Ask, Attending},
    cache::{Appended, KvCache, Rewrite},
    error::DecodeError,
    head::{Head, LensFacts, LensOptions},
    pass::{Pass, Taps},
    walk::Walk,
};
use crate::{
    device::{Memory, Value},
    engine::Engine,
    family::DecoderConfig,
    runtime::Crossed,
};

/// Whether a pass goes on to the next layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Run the next layer.
    Continue,
    /// Leave the rest out. Deeper layers get no keys and values for these tokens.
    Stop,
}

/// A layer that has just run, as a gate sees it.
#[derive(Debug)]
pub struct LayerDone<'a> {
    /// The layer.
    pub layer: usize,
    /// The residual stream after it, before the final norm, `[q_pos, hidden]`.
    pub hidden: ArrayView2<'a, f32>,
    /// The head, for a look through the lens.
    pub head: &'a mut Head,
}

/// Decides after each layer whether the pass goes on.
pub(super) type Gate<'g> = &'g mut dyn FnMut(LayerDone<'_>) -> Result<Flow, DecodeError>;

/// Says what one token attends to in a layer, for every KV head; nothing for everything that is stored.
pub type Select<'s, E> = &'s mut dyn FnMut(Ask<'_>) -> Result<Option<Attending>, E>;

/// A model with one sequence on it.
#[derive(Debug)]
pub struct Decoder<'m> {
    engine: &'m mut Engine,
    cache: KvCache,
}

impl<'m> Decoder<'m> {
    pub(crate) fn new(engine: &'m mut Engine, cache: KvCache) -> Self {
        Self { engine, cache }
    }

    /// The shape of the model.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.engine.config
    }

    /// The output head.
    pub fn head(&mut self) -> &mut Head {
        &mut self.engine.head
    }

    /// The embedding of a token, `[hidden]`; the token must be one of the vocabulary.
    pub(crate) fn embedding(&self, token: u32) -> Vec<f32> {
        self.engine.embed(&[token])
    }

    /// Keys and values so far. A clone is a fork: it shares what it can.
    #[must_use]
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Goes on with another sequence and gives the present one away.
    pub fn swap_cache(&mut self, other: KvCache) -> KvCache {
        std::mem::replace(&mut self.cache, other)
    }

    /// Bytes that crossed between the host and the sessions of the model since it was loaded.
    #[must_use]
    pub fn crossed(&self) -> Crossed {
        self.engine.crossed()
    }

    /// The position of the next token.
    #[must_use]
    pub fn next_position(&self) -> u32 {
        self.cache.next_position()
    }

    /// Continues at another position.
    ///
    /// # Errors
    /// A position that is not above every resident one.
    pub fn set_next_position(&mut self, position: u32) -> Result<(), DecodeError> {
        self.cache.set_next_position(position)
    }

    /// Keeps, in one layer, the positions given per key-value head, and removes all others. Heads may keep different
    /// numbers of positions, and none.
    ///
    /// # Errors
    /// A position that is not resident or is named twice, or a wrong number of heads. Nothing is removed then.
    pub fn retain(&mut self, layer: usize, kept_per_head: &[Vec<u32>]) -> Result<(), DecodeError> {
        self.cache.retain(layer, kept_per_head)
    }

    /// Hides from attention what [`Decoder::retain`] would remove, and leaves it in memory. This is for checking that
    /// removing and hiding are the same.
    ///
    /// # Errors
    /// As [`Decoder::retain`].
    pub fn mask(&mut self, layer: usize, kept_per_head: &[Vec<u32>]) -> Result<(), DecodeError> {
        self.cache.mask(layer, kept_per_head)
    }

    /// Replaces vectors of one layer in place: `change` gets KV head, position, key and value of every resident row.
    ///
    /// # Errors
    /// A layer that the model does not have, or the runtime.
    pub fn rewrite(&mut self, layer: usize, change: Rewrite<'_>) -> Result<(), DecodeError> {
        self.cache.rewrite(layer, change)
    }

    /// Feeds one token, rotated as if it stood at `place` where that is given. In each layer, `select` says what the token
    /// attends to: it sees the queries and all keys first. A layer in which it attends to a part runs twice, since its
    /// queries come out of the same graph as its attention.
    ///
    /// # Errors
    /// Whatever `select` returns, and as [`Decoder::forward`].
    pub fn forward_selecting<E: From<DecodeError>>(
        &mut self,
        token: u32,
        place: Option<u32>,
        taps: Taps,
        select: Option<Select<'_, E>>,
    ) -> Result<Pass, E> {
        let positions = self.positions_of(&[token])?;
        let places = place.map_or_else(|| positions.clone(), |place| vec![place]);
        let layers = self.engine.config.layers;
        let walk = Walk::new(self.engine, &self.cache, &[token], positions, &places, taps)?;
        let mut walk = walk.unseen_before(layers.saturating_sub(1));
        match select {
            Some(select) => {
                for layer in 0..layers {
                    walk.run_layer_selecting(layer, select)?;
                }
            }
            None => (0..layers).try_for_each(|layer| walk.run_layer(layer))?,
        }
        let done = walk.finish()?;
        Ok(self.take(done)?)
    }

    /// Feeds tokens through every layer.
    ///
    /// # Errors
    /// No token, an unknown token, a number that is not finite, or the runtime. The cache is unchanged then.
    pub fn forward(&mut self, tokens: &[u32], taps: Taps) -> Result<Pass, DecodeError> {
        let layers = self.engine.config.layers;
        self.forward_until(tokens, layers.saturating_sub(1), taps)
    }

    /// Feeds tokens through the layers up to and with `last_layer`; the others really do not run.
    ///
    /// # Errors
    /// A layer that the model does not have, and as [`Decoder::forward`].
    pub fn forward_until(
        &mut self,
        tokens: &[u32],
        last_layer: usize,
        taps: Taps,
    ) -> Result<Pass, DecodeError> {
        let layers = self.engine.config.layers;
        if last_layer >= layers {
            return Err(DecodeError::NoSuchLayer { layer: last_layer, layers });
        }
        let mut walk = self.walk(tokens, taps)?.unseen_before(last_layer);
        (0..=last_layer).try_for_each(|layer| walk.run_layer(layer))?;
        let done = walk.finish()?;
        self.take(done)
    }

    fn walk(&mut self, tokens: &[u32], taps: Taps) -> Result<Walk<'_>, DecodeError> {
        let positions = self.positions_of(tokens)?;
        if taps.attention && !self.engine.gives_attention {
            return Err(DecodeError::NoAttentionOutput);
        }
        let places = positions.clone();
        Walk::new(self.engine, &self.cache, tokens, positions, &places, taps)
    }

    /// Feeds tokens through the layers until `gate` says stop.
    ///
    /// # Errors
    /// Whatever the gate returns, and as [`Decoder::forward`].
    pub fn forward_gated(&mut self, tokens: &[u32], taps: Taps, gate: Gate<'_>) -> Result<Pass, DecodeError> {
        let layers = self.engine.config.layers;
        let mut walk = self.walk(tokens, taps)?;
        for layer in 0..layers {
            walk.run_layer(layer)?;
            if walk.ask(layer, gate)? == Flow::Stop {
                break;
            }
        }
        let done = walk.finish()?;
        self.take(done)
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.engine.memory
    }

    /// A pass of checked `tokens` over another cache, with what they see of it in every layer.
    pub(super) fn walk_shown(
        &mut self,
        cache: &KvCache,
        tokens: &[u32],
        positions: Vec<u32>,
        shown: Value,
        taps: Taps,
    ) -> Result<(Pass, Vec<Appended>), DecodeError> {
        let layers = self.engine.config.layers;
        let places = positions.clone();
        let walk = Walk::new(self.engine, cache, tokens, positions, &places, taps)?;
        let mut walk = walk.unseen_before(layers.saturating_sub(1)).showing(shown);
        (0..layers).try_for_each(|layer| walk.run_layer(layer))?;
        walk.finish()
    }

    /// Stores what a finished pass gave.
    fn take(&mut self, (pass, appended): (Pass, Vec<Appended>)) -> Result<Pass, DecodeError> {
        for (layer, appended) in appended.into_iter().enumerate() {
            self.cache.layer_mut(layer)?.append(appended, &pass.positions);
        }
        let last = pass.positions[pass.positions.len() - 1];
        self.cache.advance_to(last + 1);
        Ok(pass)
    }

    /// Feeds a prompt in chunks of at most `chunk` tokens, and hands over each pass. Gives the last pass back.
    ///
    /// # Errors
    /// Whatever `each` returns, and as [`Decoder::forward`].
    pub fn prefill<E: From<DecodeError>>(
        &mut self,
        tokens: &[u32],
        chunk: NonZeroUsize,
        taps: Taps,
        mut each: impl FnMut(&mut Self, &Pass) -> Result<(), E>,
    ) -> Result<Pass, E> {
        let mut last = None;
        for part in tokens.chunks(chunk.get()) {
            let pass = self.forward(part, taps)?;
            each(self, &pass)?;
            last = Some(pass);
        }
        last.ok_or(E::from(DecodeError::NoTokens))
    }

    /// Feeds tokens in chunks of at most `chunk`. Gives the last pass back.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub(crate) fn feed(
        &mut self,
        tokens: &[u32],
        chunk: NonZeroUsize,
        taps: Taps,
    ) -> Result<Pass, DecodeError> {
        self.prefill(tokens, chunk, taps, |_, _| Ok(()))
    }

    /// Logits of the last token of a pass, `[vocab]`: of its last layer that ran, through the final norm.
    ///
    /// # Errors
    /// The runtime.
    pub fn last_logits(&mut self, pass: &Pass) -> Result<Vec<f32>, DecodeError> {
        self.engine.head.logits(pass.last_row())
    }

    /// Logits of every token of a pass, `[q_pos * vocab]`.
    ///
    /// # Errors
    /// The runtime.
    pub fn logits(&mut self, pass: &Pass) -> Result<Vec<f32>, DecodeError> {
        self.engine.head.logits(pass.last_hidden.view())
    }

    /// Looks at chosen tokens of a pass through the lens, at every layer that ran: `[layer][row]`, rows as in `rows`
    /// (indices into the pass). The pass must have been made with hidden states; without them only the last layer is seen.
    ///
    /// # Errors
    /// Logits that are no distribution, or the runtime.
    pub fn lens(
        &mut self,
        pass: &Pass,
        rows: &[usize],
        options: LensOptions,
    ) -> Result<Vec<Vec<LensFacts>>, DecodeError> {
        let width = pass.last_hidden.ncols();
        let mut stacked = Vec::with_capacity(pass.layers_run * rows.len() * width);
        match &pass.hidden {
            Some(hidden) => {
                for layer in hidden.outer_iter() {
                    rows.iter().for_each(|row| stacked.extend(layer.row(*row)));
                }
            }
            None => rows.iter().for_each(|row| stacked.extend(pass.last_hidden.row(*row))),
        }
        let stacked =
            Array2::from_shape_vec((stacked.len() / width, width), stacked).expect("whole rows were stacked");
        let facts = self.engine.head.lens(stacked.view(), options)?;
        Ok(facts.chunks(rows.len().max(1)).map(<[LensFacts]>::to_vec).collect())
    }

    /// Decodes greedily from a prompt until `count` tokens are made or `is_end` says so; ties go to the lower token.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn generate(
        &mut self,
        prompt: &[u32],
        chunk: NonZeroUsize,
        count: usize,
        is_end: &dyn Fn(u32) -> bool,
    ) -> Result<Vec<u32>, DecodeError> {
        let mut pass = self.prefill(prompt, chunk, Taps::NONE, |_, _| Ok::<_, DecodeError>(()))?;
        let mut made = Vec::with_capacity(count);
        while made.len() < count {
            let token = greedy(&self.last_logits(&pass)?);
            made.push(token);
            if is_end(token) || made.len() == count {
                break;
            }
            pass = self.forward(&[token], Taps::NONE)?;
        }
        Ok(made)
    }

    pub(super) fn check_tokens(&self, tokens: &[u32]) -> Result<(), DecodeError> {
        if tokens.is_empty() {
            return Err(DecodeError::NoTokens);
        }
        let vocab = self.engine.config.vocab;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => Err(DecodeError::UnknownToken { token: *token, vocab }),
            None => Ok(()),
        }
    }

    fn positions_of(&self, tokens: &[u32]) -> Result<Vec<u32>, DecodeError> {
        self.check_tokens(tokens)?;
        let begin = self.cache.next_position();
        let count = u32::try_from(tokens.len()).ok();
        // One is left over, so that the next position can be said.
        let end = count.and_then(|count| begin.checked_add(count)).ok_or(DecodeError::PositionsExhausted)?;
        Ok((begin..end).collect())
    }
}

/// The token with the largest logit, the lowest of equal ones.
#[must_use]
pub(crate) fn greedy(logits: &[f32]) -> u32 {
    let mut best = (0_u32, f32::NEG_INFINITY);
    for (token, logit) in (0_u32..).zip(logits) {
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    best.0
}
