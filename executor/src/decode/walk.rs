//! One pass through the layers, in the making.
//!
//! Responsible for feeding each layer's session, for checking and copying what comes out. Nothing of the cache is changed
//! before the pass is complete: [`super::Decoder`] does that with what [`Walk::finish`] gives.

use std::{ops::Range, sync::Arc};

use ndarray::{Array2, Array3, Array4, ArrayView2, Axis};

use super::{
    ask::{Ask, AskedRows, narrowed},
    bias::Shown,
    cache::{Appended, KvCache},
    decoder::{Flow, Gate, LayerDone, Select},
    error::{DecodeError, Quantity},
    pass::{Pass, Taps},
    store::{Grown, Heads},
};
use crate::{
    device::{Memory, Value},
    engine::Engine,
    graph::io,
    runtime::{RuntimeError, Tensor},
};

/// What a layer gives.
struct Outputs {
    hidden: Value,
    /// Zero for each row of a hidden state that stayed on the device and is finite, `[q_pos]`.
    probe: Option<Tensor>,
    keys: Grown,
    values: Grown,
    queries: Option<Tensor>,
    attention: Option<Tensor>,
}

/// One pass in the making.
pub(super) struct Walk<'a> {
    engine: &'a mut Engine,
    cache: &'a KvCache,
    taps: Taps,
    hidden: Value,
    /// Nobody but the next layer looks at hidden states of layers before this one.
    unseen_before: usize,
    /// Cosines and sines, `[q_pos, head_dim]`.
    angles: [Value; 2],
    /// The bias of the layer before, and the slots it was made for, if it may be used again.
    bias: Option<(usize, Value)>,
    /// Whether that bias was given, for every layer.
    is_given: bool,
    appended: Vec<Appended>,
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
        let shape = [tokens.len(), config.head_dim];
        let angles = [engine.memory.place(&shape, cos)?, engine.memory.place(&shape, sin)?];
        let hidden = Value::Host(Tensor::new(&[tokens.len(), config.hidden], engine.embed(tokens))?);
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
            unseen_before: 0,
            angles,
            bias: None,
            is_given: false,
            appended: Vec::new(),
            pass,
        })
    }

    /// The same; nobody asks for hidden states of layers before `layer`, so they need not come to the host.
    pub(super) fn unseen_before(self, layer: usize) -> Self {
        Self { unseen_before: layer, ..self }
    }

    /// The same with a bias of its own, for every layer. All layers hold the same slots, and no window is narrower than a sequence.
    pub(super) fn showing(self, bias: Value) -> Self {
        let slots = self.cache.layers().first().map_or(0, super::cache::LayerCache::slots);
        Self { bias: Some((slots, bias)), is_given: true, ..self }
    }

    pub(super) fn run_layer(&mut self, layer: usize) -> Result<(), DecodeError> {
        let shown = self.bias_of(layer)?;
        let outputs = self.run(layer, &shown.bias, self.taps)?;
        self.take(layer, outputs, shown)
    }

    /// As [`Walk::run_layer`] for a single token, which attends to what `select` says.
    pub(super) fn run_layer_selecting<E: From<DecodeError>>(
        &mut self,
        layer: usize,
        select: Select<'_, E>,
    ) -> Result<(), E> {
        let shown = self.bias_of(layer)?;
        let mut outputs = self.run(layer, &shown.bias, Taps { queries: true, ..self.taps })?;
        let (stored, pos) = (&self.cache.layers()[layer], self.pass.positions[0]);
        let attending = match &outputs.queries {
            Some(queries) => {
                let keys = asked(&outputs.keys, stored.key_store().heads()).map_err(DecodeError::from)?;
                let values =
                    asked(&outputs.values, stored.value_store().heads()).map_err(DecodeError::from)?;
                select(Ask { layer, pos, stored, queries, keys, values })?
            }
            None => None,
        };
        if let Some(attending) = attending {
            let whole;
            let whole = match &shown.bias {
                Value::Host(tensor) => (tensor.shape(), tensor.data()),
                Value::Device(_) => {
                    let config = &self.engine.config;
                    whole = stored.bias(config.group(), &self.pass.positions, config.window(layer));
                    (whole.shape.as_slice(), whole.data.as_slice())
                }
            };
            let narrow = narrowed(stored, whole, pos, &attending);
            let narrow = Shown::of(&self.engine.memory, narrow).map_err(DecodeError::from)?;
            outputs = self.run(layer, &narrow.bias, self.taps)?;
        }
        Ok(self.take(layer, outputs, shown)?)
    }

    /// Whether what is added to the scores of this layer is that of any with as many slots.
    fn is_shared(&self, layer: usize) -> bool {
        self.is_given
            || (self.cache.layers()[layer].is_uniform() && self.engine.config.window(layer).is_none())
    }

    fn bias_of(&mut self, layer: usize) -> Result<Shown, DecodeError> {
        let stored = &self.cache.layers()[layer];
        let (slots, is_shared) = (stored.slots(), self.is_shared(layer));
        match self.bias.take() {
            // Positions may be others than those of the layer it was made for.
            Some((made_for, bias)) if is_shared && made_for == slots => Ok(Shown { bias, marks: None }),
            _ => {
                let config = &self.engine.config;
                let (group, window) = (config.group(), config.window(layer));
                Ok(stored.shown(&self.engine.memory, group, &self.pass.positions, window)?)
            }
        }
    }

    fn run(&mut self, layer: usize, bias: &Value, taps: Taps) -> Result<Outputs, DecodeError> {
        let is_seen = taps.hidden || layer >= self.unseen_before;
        let [keys, values] = self.cache.layers()[layer].feeds();
        let inputs = [
            (io::HIDDEN_IN, self.hidden.feed()),
            (io::COS, self.angles[0].feed()),
            (io::SIN, self.angles[1].feed()),
            (io::PAST_KEYS, keys),
            (io::PAST_VALUES, values),
            (io::BIAS, bias.feed()),
        ];
        let tapped = [(taps.queries, io::QUERIES), (taps.attention, io::ATTENTION)];
        let tapped = tapped.into_iter().filter_map(|(is_tapped, name)| is_tapped.then_some(name));
        let session = &mut self.engine.layers[layer];
        let (mut here, hidden, probe, keys, values) = match &self.engine.memory {
            Memory::Host => {
                let names = [io::HIDDEN_OUT, io::PRESENT_KEYS, io::PRESENT_VALUES];
                let names: Vec<_> = names.into_iter().chain(tapped).collect();
                let mut here = session.run(&inputs, &names)?;
                let hidden = Value::Host(here.take(io::HIDDEN_OUT)?);
                let (keys, values) = (here.take(io::PRESENT_KEYS)?, here.take(io::PRESENT_VALUES)?);
                (here, hidden, None, Grown::Host(keys), Grown::Host(values))
            }
            Memory::Device(device) => {
                let of_hidden = if is_seen { io::HIDDEN_OUT } else { io::HIDDEN_PROBE };
                let names: Vec<_> =
                    [of_hidden, io::NEW_KEYS, io::NEW_VALUES].into_iter().chain(tapped).collect();
                let stays = [io::PRESENT_KEYS, io::PRESENT_VALUES, io::HIDDEN_OUT];
                let stays = &stays[..if is_seen { 2 } else { 3 }];
                let (mut here, mut there) = session.run_bound(&inputs, &names, stays)?;
                let mut grown = |present, new| -> Result<Grown, RuntimeError> {
                    let (all, new) = (there.take(present)?, here.take(new)?);
                    Ok(Grown::Device { all, new, device: Arc::clone(device) })
                };
                let keys = grown(io::PRESENT_KEYS, io::NEW_KEYS)?;
                let values = grown(io::PRESENT_VALUES, io::NEW_VALUES)?;
                let (hidden, probe) = if is_seen {
                    (Value::Host(here.take(io::HIDDEN_OUT)?), None)
                } else {
                    (Value::Device(there.take(io::HIDDEN_OUT)?), Some(here.take(io::HIDDEN_PROBE)?))
                };
                (here, hidden, probe, keys, values)
            }
        };
        let queries = taps.queries.then(|| here.take(io::QUERIES)).transpose()?;
        let attention = taps.attention.then(|| here.take(io::ATTENTION)).transpose()?;
        Ok(Outputs { hidden, probe, keys, values, queries, attention })
    }

    fn take(&mut self, layer: usize, outputs: Outputs, shown: Shown) -> Result<(), DecodeError> {
        let Outputs { hidden, probe, keys, values, queries, attention } = outputs;
        let (slots, count) = (self.cache.layers()[layer].slots(), self.pass.tokens.len());
        if self.is_shared(layer) {
            self.bias = Some((slots, shown.bias));
        }
        self.take_states(layer, &keys, &values, queries.as_ref())?;
        self.take_hidden(layer, hidden, probe.as_ref())?;
        if let Some(attention) = attention {
            self.take_attention(layer, &attention, slots + count)?;
        }
        self.appended.push(Appended { keys, values, marks: shown.marks });
        self.pass.layers_run = layer + 1;
        Ok(())
    }

    /// Checks the new keys, values and queries, and copies those that are tapped.
    fn take_states(
        &mut self,
        layer: usize,
        keys: &Grown,
        values: &Grown,
        queries: Option<&Tensor>,
    ) -> Result<(), DecodeError> {
        let count = self.pass.tokens.len();
        let (mut key_tap, mut value_tap, mut query_tap) =
            (self.pass.keys.take(), self.pass.values.take(), self.pass.queries.take());
        let result = (|| {
            self.take_rows(Quantity::Key, layer, keys.newest(count), key_tap.as_mut())?;
            self.take_rows(Quantity::Value, layer, values.newest(count), value_tap.as_mut())?;
            match (queries, query_tap.as_mut()) {
                (Some(queries), Some(tap)) => {
                    self.take_rows(Quantity::Query, layer, (queries, 0..count), Some(tap))
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
        (tensor, rows): (&Tensor, Range<usize>),
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

    fn take_hidden(
        &mut self,
        layer: usize,
        hidden: Value,
        probe: Option<&Tensor>,
    ) -> Result<(), DecodeError> {
        if probe.is_some_and(|probe| probe.data().iter().all(|value| value.is_finite())) {
            self.hidden = hidden;
            return Ok(());
        }
        // One that stayed away comes after all, to say where it is not finite.
        let hidden = on_host(hidden)?;
        self.check(Quantity::Hidden, layer, None, hidden.data(), self.engine.config.hidden)?;
        if let Some(tap) = &mut self.pass.hidden {
            let mut target = tap.index_axis_mut(Axis(0), layer);
            target.iter_mut().zip(hidden.data()).for_each(|(to, from)| *to = *from);
        }
        self.hidden = Value::Host(hidden);
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
        let hidden = match &self.hidden {
            Value::Host(tensor) => tensor,
            Value::Device(tensor) => &tensor.to_host()?,
        };
        let hidden = ArrayView2::from_shape(shape, hidden.data()).expect("the layer gives a row per token");
        gate(LayerDone { layer, hidden, head: &mut self.engine.head })
    }

    pub(super) fn finish(mut self) -> Result<(Pass, Vec<Appended>), DecodeError> {
        let shape = (self.pass.tokens.len(), self.engine.config.hidden);
        let hidden = on_host(self.hidden)?;
        self.pass.last_hidden =
            Array2::from_shape_vec(shape, hidden.data().to_vec()).expect("the layer gives a row per token");
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
        Ok((self.pass, self.appended))
    }
}

/// Stored rows and, where what a pass gave is only the new one, that one behind them.
fn asked<'a>(
    grown: &'a Grown,
    stored: Result<Heads<'a>, RuntimeError>,
) -> Result<AskedRows<'a>, RuntimeError> {
    Ok(match grown {
        Grown::Host(all) => AskedRows { first: Heads::One(all), last: None },
        Grown::Device { new, .. } => AskedRows { first: stored?, last: Some(new) },
    })
}

fn on_host(value: Value) -> Result<Tensor, RuntimeError> {
    match value {
        Value::Host(tensor) => Ok(tensor),
        Value::Device(tensor) => tensor.to_host(),
    }
}
