//! The decoder: passes over tokens, layer by layer.

use std::ops::Range;

use ndarray::{Array2, Array3, Array4, ArrayView2, Axis};

use super::{
    cache::{Bias, KvCache},
    error::{DecodeError, Quantity},
    head::{Head, LensFacts, LensOptions},
    pass::{Pass, Taps},
};
use crate::{
    family::DecoderConfig,
    graph::io,
    model::Engine,
    runtime::{Feed, Tensor},
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

type Gate<'g> = &'g mut dyn FnMut(LayerDone<'_>) -> Result<Flow, DecodeError>;

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

    /// Keys and values so far. A clone is a fork: it shares what it can.
    #[must_use]
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Goes on with another sequence and gives the present one away.
    pub fn swap_cache(&mut self, other: KvCache) -> KvCache {
        std::mem::replace(&mut self.cache, other)
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

    /// Feeds tokens through every layer.
    ///
    /// # Errors
    /// No token, an unknown token, a number that is not finite, or the runtime. The cache is unchanged then.
    pub fn forward(&mut self, tokens: &[u32], taps: Taps) -> Result<Pass, DecodeError> {
        self.forward_gated(tokens, taps, &mut |_| Ok(Flow::Continue))
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
        let mut gate =
            |done: LayerDone<'_>| Ok(if done.layer == last_layer { Flow::Stop } else { Flow::Continue });
        self.forward_gated(tokens, taps, &mut gate)
    }

    /// Feeds tokens through the layers until `gate` says stop.
    ///
    /// # Errors
    /// Whatever the gate returns, and as [`Decoder::forward`].
    pub fn forward_gated(&mut self, tokens: &[u32], taps: Taps, gate: Gate<'_>) -> Result<Pass, DecodeError> {
        let positions = self.positions_of(tokens)?;
        if taps.attention && !self.engine.gives_attention {
            return Err(DecodeError::NoAttentionOutput);
        }
        let mut walk = Walk::new(self.engine, &self.cache, tokens, positions, taps)?;
        for layer in 0..walk.engine.config.layers {
            walk.run_layer(layer)?;
            if walk.ask(layer, gate)? == Flow::Stop {
                break;
            }
        }
        let (pass, appended) = walk.finish();
        for (layer, (keys, values)) in appended.into_iter().enumerate() {
            self.cache.layer_mut(layer)?.append(keys, values, &pass.positions);
        }
        let last = pass.positions[pass.positions.len() - 1];
        self.cache.set_next_position(last + 1)?;
        Ok(pass)
    }

    /// Feeds a prompt in chunks of at most `chunk` tokens, and hands over each pass. Gives the last pass back.
    ///
    /// # Errors
    /// Whatever `each` returns, and as [`Decoder::forward`].
    pub fn prefill<E: From<DecodeError>>(
        &mut self,
        tokens: &[u32],
        chunk: std::num::NonZeroUsize,
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
        chunk: std::num::NonZeroUsize,
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

    fn positions_of(&self, tokens: &[u32]) -> Result<Vec<u32>, DecodeError> {
        if tokens.is_empty() {
            return Err(DecodeError::NoTokens);
        }
        let vocab = self.engine.config.vocab;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(DecodeError::UnknownToken { token: *token, vocab });
        }
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

/// One pass in the making. Nothing of the cache is changed before it is complete.
struct Walk<'a> {
    engine: &'a mut Engine,
    cache: &'a KvCache,
    taps: Taps,
    hidden: Tensor,
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// The bias of the layer before, and the slots it was made for, if it may be used again.
    bias: Option<(usize, Bias)>,
    appended: Vec<(Tensor, Tensor)>,
    pass: Pass,
}

impl<'a> Walk<'a> {
    fn new(
        engine: &'a mut Engine,
        cache: &'a KvCache,
        tokens: &[u32],
        positions: Vec<u32>,
        taps: Taps,
    ) -> Result<Self, DecodeError> {
        let config = &engine.config;
        let (cos, sin) = engine.rope.angles(&positions);
        let hidden = Tensor::new(&[tokens.len(), config.hidden], engine.embed(tokens))?;
        let (layers, count) = (config.layers, tokens.len());
        let per_head = |wanted: bool, heads: usize| {
            wanted.then(|| Array4::zeros((layers, heads, count, config.head_dim)))
        };
        let pass = Pass {
            tokens: tokens.to_vec(),
            positions,
            layers_run: 0,
            last_hidden: Array2::zeros((0, config.hidden)),
            hidden: taps.hidden.then(|| Array3::zeros((layers, count, config.hidden))),
            queries: per_head(taps.queries, config.q_heads),
            keys: per_head(taps.keys, config.kv_heads),
            values: per_head(taps.values, config.kv_heads),
            attention: taps.attention.then(Vec::new),
        };
        Ok(Self { engine, cache, taps, hidden, cos, sin, bias: None, appended: Vec::new(), pass })
    }

    fn run_layer(&mut self, layer: usize) -> Result<(), DecodeError> {
        let config = &self.engine.config;
        let (count, group, width) = (self.pass.tokens.len(), config.group(), config.head_dim);
        let stored = &self.cache.layers()[layer];
        let slots = stored.slots();
        let reusable = stored.shares_bias();
        let bias = match self.bias.take() {
            Some((made_for, bias)) if reusable && made_for == slots => bias,
            _ => stored.bias(group, count),
        };
        let angles = [count, width];
        let inputs = [
            (io::HIDDEN_IN, Feed::Held(&self.hidden)),
            (io::COS, Feed::View { shape: &angles, data: &self.cos }),
            (io::SIN, Feed::View { shape: &angles, data: &self.sin }),
            (io::PAST_KEYS, Feed::Held(stored.key_tensor())),
            (io::PAST_VALUES, Feed::Held(stored.value_tensor())),
            (io::BIAS, Feed::View { shape: &bias.shape, data: &bias.data }),
        ];
        let states = [io::HIDDEN_OUT, io::PRESENT_KEYS, io::PRESENT_VALUES];
        let session = &mut self.engine.layers[layer];
        let (hidden, keys, values, queries, attention) = match (self.taps.queries, self.taps.attention) {
            (false, false) => {
                let [hidden, keys, values] = session.run(&inputs, states)?;
                (hidden, keys, values, None, None)
            }
            (true, false) => {
                let [hidden, keys, values, queries] =
                    session.run(&inputs, [states[0], states[1], states[2], io::QUERIES])?;
                (hidden, keys, values, Some(queries), None)
            }
            (_, true) => {
                let [hidden, keys, values, queries, attention] =
                    session.run(&inputs, [states[0], states[1], states[2], io::QUERIES, io::ATTENTION])?;
                (hidden, keys, values, Some(queries), Some(attention))
            }
        };
        if reusable {
            self.bias = Some((slots, bias));
        }
        self.take_states(layer, &keys, &values, queries.as_ref())?;
        self.take_hidden(layer, hidden)?;
        if let Some(attention) = attention {
            self.take_attention(layer, &attention, slots + count)?;
        }
        self.appended.push((keys, values));
        self.pass.layers_run = layer + 1;
        Ok(())
    }

    /// Checks the new keys, values and queries, and copies those that are tapped.
    fn take_states(
        &mut self,
        layer: usize,
        keys: &Tensor,
        values: &Tensor,
        queries: Option<&Tensor>,
    ) -> Result<(), DecodeError> {
        let count = self.pass.tokens.len();
        let newest = |tensor: &Tensor| tensor.shape()[1] - count..tensor.shape()[1];
        let (mut key_tap, mut value_tap, mut query_tap) =
            (self.pass.keys.take(), self.pass.values.take(), self.pass.queries.take());
        let result = (|| {
            self.take_rows(Quantity::Key, layer, keys, newest(keys), key_tap.as_mut())?;
            self.take_rows(Quantity::Value, layer, values, newest(values), value_tap.as_mut())?;
            match (queries, query_tap.as_mut()) {
                (Some(queries), Some(tap)) => {
                    self.take_rows(Quantity::Query, layer, queries, 0..count, Some(tap))
                }
                _ => Ok(()),
            }
        })();
        (self.pass.keys, self.pass.values, self.pass.queries) = (key_tap, value_tap, query_tap);
        result
    }

    /// Checks rows of `[head, row, head_dim]` and copies them into `[layer, head, q_pos, head_dim]`.
    fn take_rows(
        &self,
        quantity: Quantity,
        layer: usize,
        tensor: &Tensor,
        rows: Range<usize>,
        tap: Option<&mut Array4<f32>>,
    ) -> Result<(), DecodeError> {
        let (height, width) = (tensor.shape()[1], tensor.shape()[2]);
        let mut target = tap.map(|tap| tap.index_axis_mut(Axis(0), layer));
        for (head, all) in tensor.data().chunks_exact(height * width).enumerate() {
            let new = &all[rows.start * width..rows.end * width];
            self.check(quantity, layer, Some(head), new, width)?;
            if let Some(target) = &mut target {
                let mut target = target.index_axis_mut(Axis(0), head);
                target.iter_mut().zip(new).for_each(|(to, from)| *to = *from);
            }
        }
        Ok(())
    }

    fn take_hidden(&mut self, layer: usize, hidden: Tensor) -> Result<(), DecodeError> {
        self.check(Quantity::Hidden, layer, None, hidden.data(), self.engine.config.hidden)?;
        if let Some(tap) = &mut self.pass.hidden {
            let mut target = tap.index_axis_mut(Axis(0), layer);
            target.iter_mut().zip(hidden.data()).for_each(|(to, from)| *to = *from);
        }
        self.hidden = hidden;
        Ok(())
    }

    fn take_attention(&mut self, layer: usize, attention: &Tensor, slots: usize) -> Result<(), DecodeError> {
        let (heads, count) = (self.engine.config.q_heads, self.pass.tokens.len());
        for (head, rows) in attention.data().chunks_exact(count * slots).enumerate() {
            self.check(Quantity::Attention, layer, Some(head), rows, slots)?;
        }
        let array = Array3::from_shape_vec((heads, count, slots), attention.data().to_vec());
        let array = array.expect("stacked queries of all groups are the query heads");
        if let Some(kept) = &mut self.pass.attention {
            kept.push(array);
        }
        Ok(())
    }

    /// The first number in `rows` (one row of `width` per token) that is not finite is an error.
    fn check(
        &self,
        quantity: Quantity,
        layer: usize,
        head: Option<usize>,
        rows: &[f32],
        width: usize,
    ) -> Result<(), DecodeError> {
        // Zero times anything finite is zero; the sum says at vector speed whether a search is needed.
        let probe: f32 = rows.iter().map(|value| value * 0.0).sum();
        if probe.is_finite() {
            return Ok(());
        }
        let Some(index) = rows.iter().position(|value| !value.is_finite()) else { return Ok(()) };
        let row = index / width;
        let (pos, token) = (self.pass.positions[row], self.pass.tokens[row]);
        Err(DecodeError::NonFinite { quantity, layer, head, pos, token, value: rows[index] })
    }

    fn ask(&mut self, layer: usize, gate: Gate<'_>) -> Result<Flow, DecodeError> {
        let shape = (self.pass.tokens.len(), self.engine.config.hidden);
        let hidden =
            ArrayView2::from_shape(shape, self.hidden.data()).expect("the layer gives a row per token");
        gate(LayerDone { layer, hidden, head: &mut self.engine.head })
    }

    fn finish(mut self) -> (Pass, Vec<(Tensor, Tensor)>) {
        let shape = (self.pass.tokens.len(), self.engine.config.hidden);
        self.pass.last_hidden = Array2::from_shape_vec(shape, self.hidden.data().to_vec())
            .expect("the layer gives a row per token");
        let run = self.pass.layers_run;
        let shorten = |tap: &mut Option<Array4<f32>>| {
            if let Some(tap) = tap {
                tap.slice_collapse(ndarray::s![..run, .., .., ..]);
            }
        };
        shorten(&mut self.pass.queries);
        shorten(&mut self.pass.keys);
        shorten(&mut self.pass.values);
        if let Some(hidden) = &mut self.pass.hidden {
            hidden.slice_collapse(ndarray::s![..run, .., ..]);
        }
        (self.pass, self.appended)
    }
}
