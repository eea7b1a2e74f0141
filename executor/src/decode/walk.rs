//! One pass through the layers, in the making.
//!
//! Responsible for feeding each layer's session, for checking and copying what comes out. Nothing of the cache is changed
//! before the pass is complete: [`super::Decoder`] does that with what [`Walk::finish`] gives.

use std::ops::Range;

use ndarray::{Array2, Array3, Array4, ArrayView2, Axis};

use super::{
    ask::{Ask, narrowed},
    cache::{Bias, KvCache},
    decoder::{Flow, Gate, LayerDone, Select},
    error::{DecodeError, Quantity},
    pass::{Pass, Taps},
};
use crate::{
    engine::Engine,
    graph::io,
    runtime::{Feed, Tensor},
};

/// What a layer gives.
struct Outputs {
    hidden: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Option<Tensor>,
    attention: Option<Tensor>,
}

/// One pass in the making.
pub(super) struct Walk<'a> {
    engine: &'a mut Engine,
    cache: &'a KvCache,
    taps: Taps,
    hidden: Tensor,
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// The bias of the layer before, and the slots it was made for, if it may be used again.
    bias: Option<(usize, Bias)>,
    /// Whether that bias was given, for every layer.
    is_given: bool,
    appended: Vec<(Tensor, Tensor)>,
    pass: Pass,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        engine: &'a mut Engine,
        cache: &'a KvCache,
        tokens: &[u32],
        positions: Vec<u32>,
        places: &[u32],
        taps: Taps,
    ) -> Result<Self, DecodeError> {
        let config = &engine.config;
        let (cos, sin) = engine.rope.angles(places);
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
        Ok(Self {
            engine,
            cache,
            taps,
            hidden,
            cos,
            sin,
            bias: None,
            is_given: false,
            appended: Vec::new(),
            pass,
        })
    }

    /// The same with a bias of its own, for every layer. All layers hold the same slots, and no window is narrower than a sequence.
    pub(super) fn showing(mut self, bias: Bias) -> Self {
        let slots = self.cache.layers().first().map_or(0, super::cache::LayerCache::slots);
        (self.bias, self.is_given) = (Some((slots, bias)), true);
        self
    }

    pub(super) fn run_layer(&mut self, layer: usize) -> Result<(), DecodeError> {
        let bias = self.bias_of(layer);
        let outputs = self.run(layer, &bias, self.taps)?;
        self.keep_bias(layer, bias);
        self.take(layer, outputs)
    }

    /// As [`Walk::run_layer`] for a single token, which attends to what `select` says.
    pub(super) fn run_layer_selecting<E: From<DecodeError>>(
        &mut self,
        layer: usize,
        select: Select<'_, E>,
    ) -> Result<(), E> {
        let bias = self.bias_of(layer);
        let mut outputs = self.run(layer, &bias, Taps { queries: true, ..self.taps })?;
        let (stored, pos) = (&self.cache.layers()[layer], self.pass.positions[0]);
        let attending = match &outputs.queries {
            Some(queries) => {
                let (keys, values) = (&outputs.keys, &outputs.values);
                select(Ask { layer, pos, stored, queries, keys, values })?
            }
            None => None,
        };
        if let Some(attending) = attending {
            outputs = self.run(layer, &narrowed(stored, &bias, pos, &attending), self.taps)?;
        }
        self.keep_bias(layer, bias);
        Ok(self.take(layer, outputs)?)
    }

    /// Whether what is added to the scores of this layer is that of any with as many slots.
    fn is_shared(&self, layer: usize) -> bool {
        self.is_given
            || (self.cache.layers()[layer].shares_bias() && self.engine.config.window(layer).is_none())
    }

    fn bias_of(&mut self, layer: usize) -> Bias {
        let stored = &self.cache.layers()[layer];
        let (slots, is_shared) = (stored.slots(), self.is_shared(layer));
        match self.bias.take() {
            Some((made_for, bias)) if is_shared && made_for == slots => bias,
            _ => {
                let config = &self.engine.config;
                stored.bias(config.group(), &self.pass.positions, config.window(layer))
            }
        }
    }

    fn keep_bias(&mut self, layer: usize, bias: Bias) {
        if self.is_shared(layer) {
            self.bias = Some((self.cache.layers()[layer].slots(), bias));
        }
    }

    fn run(&mut self, layer: usize, bias: &Bias, taps: Taps) -> Result<Outputs, DecodeError> {
        let (count, width) = (self.pass.tokens.len(), self.engine.config.head_dim);
        let stored = &self.cache.layers()[layer];
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
        let (hidden, keys, values, queries, attention) = match (taps.queries, taps.attention) {
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
        Ok(Outputs { hidden, keys, values, queries, attention })
    }

    fn take(&mut self, layer: usize, outputs: Outputs) -> Result<(), DecodeError> {
        let Outputs { hidden, keys, values, queries, attention } = outputs;
        let (slots, count) = (self.cache.layers()[layer].slots(), self.pass.tokens.len());
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

    pub(super) fn ask(&mut self, layer: usize, gate: Gate<'_>) -> Result<Flow, DecodeError> {
        let shape = (self.pass.tokens.len(), self.engine.config.hidden);
        let hidden =
            ArrayView2::from_shape(shape, self.hidden.data()).expect("the layer gives a row per token");
        gate(LayerDone { layer, hidden, head: &mut self.engine.head })
    }

    pub(super) fn finish(mut self) -> (Pass, Vec<(Tensor, Tensor)>) {
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
