//! A sequence that was run just now, in memory, as a trace would hold it.

use std::sync::Arc;

use kvlab_sim::{
    rope::Rope,
    trace::{LayerTensors, LensRow, RopeInfo, SequenceMeta, TraceError, TraceSource},
    types::{LayerIdx, ModelShape, Pos, SeqIdx},
};
use ndarray::{Array2, Array3, ArrayView3, Axis, concatenate, s};

use crate::{
    closed_loop::LivePass,
    decode::{DecodeError, Pass},
    error::ExecutorError,
    model::Model,
    record::rope_info,
};

/// What replays may know of the model.
#[derive(Debug)]
pub(super) struct LivedWeights {
    shape: ModelShape,
    rope_info: RopeInfo,
    rope: Option<Rope>,
    /// `[layer]`, each `[hidden, q_head, head_dim]`.
    w_o: Vec<Array3<f32>>,
    final_norm: Vec<f32>,
    eps: f64,
    /// `[vocab, hidden]`
    unembedding: Array2<f32>,
}

impl LivedWeights {
    pub(super) fn of(model: &Model) -> Result<Self, ExecutorError> {
        let (config, shape, rope_info) = (model.config(), model.shape()?, rope_info(model));
        let mismatch = |what| TraceError::MissingField { field: what, held: Vec::new() };
        model.with_weights(|weights| {
            let dims = (config.hidden, config.q_heads, config.head_dim);
            let w_o = (0..config.layers)
                .map(|layer| {
                    let matrix = weights.layer(layer)?.output;
                    Ok(Array3::from_shape_vec(dims, matrix).map_err(|_| mismatch("weights.w_o"))?)
                })
                .collect::<Result<_, ExecutorError>>()?;
            let head = match weights.head()? {
                Some(head) => head,
                None => weights.embedding()?,
            };
            Ok(Self {
                shape,
                rope: Rope::new(&rope_info).ok(),
                rope_info,
                w_o,
                final_norm: weights.final_norm()?,
                eps: config.rms_eps,
                unembedding: Array2::from_shape_vec((config.vocab, config.hidden), head)
                    .map_err(|_| mismatch("weights.unembedding"))?,
            })
        })
    }

    pub(super) fn rope(&self) -> Option<&Rope> {
        self.rope.as_ref()
    }
}

/// One sequence with the states of every layer at every token.
#[derive(Debug)]
pub(super) struct Lived {
    weights: Arc<LivedWeights>,
    name: String,
    digest: String,
    meta: [SequenceMeta; 1],
    /// `[layer]`
    layers: Vec<LayerTensors>,
    /// The residual stream after each layer, `[layer, pos, hidden]`.
    hidden: Array3<f32>,
}

impl Lived {
    /// The sequence of a prompt's passes and the steps after it. Queries and keys that were rotated elsewhere than at their position
    /// are turned there.
    pub(super) fn of(
        weights: &Arc<LivedWeights>,
        (name, digest): (&str, &str),
        meta: SequenceMeta,
        prompt: &[Pass],
        steps: &[LivePass],
    ) -> Result<Self, ExecutorError> {
        let passes: Vec<&Pass> = prompt.iter().chain(steps.iter().map(|step| &step.pass)).collect();
        let shape = weights.shape;
        let joined = |of: &dyn Fn(&Pass) -> Option<ArrayView3<'_, f32>>, axis: usize| {
            // Views do not outlive the closure that makes them, so each is owned.
            let parts: Vec<Array3<f32>> =
                passes.iter().filter_map(|pass| of(pass).map(|part| part.to_owned())).collect();
            let views: Vec<ArrayView3<'_, f32>> = parts.iter().map(|part| part.view()).collect();
            let joined = concatenate(Axis(axis), &views).map_err(|_| DecodeError::PositionsExhausted)?;
            // Replays read rows as slices.
            Ok::<_, DecodeError>(joined.as_standard_layout().into_owned())
        };
        let mut layers = Vec::with_capacity(usize::from(shape.layers));
        for layer in 0..usize::from(shape.layers) {
            let mut tensors = LayerTensors {
                q: joined(&|pass| pass.queries.as_ref().map(|all| all.index_axis(Axis(0), layer)), 1)?,
                k: joined(&|pass| pass.keys.as_ref().map(|all| all.index_axis(Axis(0), layer)), 1)?,
                v: joined(&|pass| pass.values.as_ref().map(|all| all.index_axis(Axis(0), layer)), 1)?,
            };
            if let Some(rope) = weights.rope() {
                turn_to_positions(&mut tensors, &meta, steps, rope);
            }
            layers.push(tensors);
        }
        let hidden = joined(&|pass| pass.hidden.as_ref().map(|all| all.view()), 1)?;
        let (name, digest) = (name.to_owned(), digest.to_owned());
        Ok(Self { weights: Arc::clone(weights), name, digest, meta: [meta], layers, hidden })
    }

    pub(super) fn meta(&self) -> &SequenceMeta {
        &self.meta[0]
    }

    /// `[layer]`
    pub(super) fn layers(&self) -> &[LayerTensors] {
        &self.layers
    }

    /// The residual stream after each layer, `[layer, pos, hidden]`.
    pub(super) fn hidden(&self) -> ArrayView3<'_, f32> {
        self.hidden.view()
    }

    pub(super) fn weights(&self) -> &LivedWeights {
        &self.weights
    }
}

fn turn_to_positions(tensors: &mut LayerTensors, meta: &SequenceMeta, steps: &[LivePass], rope: &Rope) {
    for (step, pos) in steps.iter().zip(meta.prompt_len..) {
        let Some(place) = step.place.filter(|place| *place != pos) else { continue };
        for rows in [&mut tensors.q, &mut tensors.k] {
            for mut head in rows.outer_iter_mut() {
                if let Some(row) = head.slice_mut(s![pos as usize, ..]).as_slice_mut() {
                    rope.at(Pos::new(place)).unrotate(row);
                    rope.at(Pos::new(pos)).rotate(row);
                }
            }
        }
    }
}

impl TraceSource for Lived {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> String {
        self.digest.clone()
    }

    fn is_synthetic(&self) -> bool {
        false
    }

    fn shape(&self) -> &ModelShape {
        &self.weights.shape
    }

    fn sequences(&self) -> &[SequenceMeta] {
        &self.meta
    }

    fn layer(&self, _seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        Ok(self.layers[layer.idx()].clone())
    }

    fn lens(&self, _seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        Err(TraceError::MissingField { field: "lens.top1_token", held: Vec::new() })
    }

    fn rope(&self) -> Option<&RopeInfo> {
        Some(&self.weights.rope_info)
    }

    fn w_o(&self, layer: LayerIdx) -> Result<Array3<f32>, TraceError> {
        Ok(self.weights.w_o[layer.idx()].clone())
    }

    fn final_norm(&self) -> Result<Vec<f32>, TraceError> {
        Ok(self.weights.final_norm.clone())
    }

    fn final_norm_eps(&self) -> Option<f64> {
        Some(self.weights.eps)
    }

    fn last_hidden(&self, _seq: SeqIdx) -> Result<Array2<f32>, TraceError> {
        Ok(self.hidden.index_axis(Axis(0), self.hidden.dim().0 - 1).to_owned())
    }

    fn unembedding(&self) -> Result<Array2<f32>, TraceError> {
        Ok(self.weights.unembedding.clone())
    }
}

#[cfg(test)]
impl Lived {
    /// Made of numbers without a pattern, for tests without a model.
    pub(super) fn of_waves(shape: ModelShape, prompt_len: u32, len: u32) -> Self {
        use kvlab_sim::{
            rng::{Purpose, StreamKey},
            trace::KeyState,
        };
        let wave = |heads: u16, layer: u16, id: &str| {
            let mut stream = StreamKey { layer, ..StreamKey::new(3, Purpose::Workload, id) }.stream();
            let dims = (usize::from(heads), len as usize, usize::from(shape.head_dim));
            #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
            Array3::from_shape_simple_fn(dims, || (stream.uniform() * 2.0 - 1.0) as f32)
        };
        let layers = (0..shape.layers).map(|layer| LayerTensors {
            q: wave(shape.q_heads, layer, "q"),
            k: wave(shape.kv_heads, layer, "k"),
            v: wave(shape.kv_heads, layer, "v"),
        });
        let rope_info = RopeInfo {
            style: "rotate-half".to_owned(),
            theta: 10_000.0,
            scaling: None,
            keys: KeyState::PostRope,
            inv_freq: Some(vec![1.0; usize::from(shape.head_dim) / 2]),
            attention_scaling: Some(1.0),
        };
        let (hidden, vocab) = (shape.hidden as usize, shape.vocab as usize);
        let weights = LivedWeights {
            shape,
            rope: Rope::new(&rope_info).ok(),
            rope_info,
            w_o: (0..shape.layers)
                .map(|_| Array3::ones((hidden, usize::from(shape.q_heads), usize::from(shape.head_dim))))
                .collect(),
            final_norm: vec![1.0; hidden],
            eps: 1e-6,
            unembedding: Array2::ones((vocab, hidden)),
        };
        Self {
            weights: Arc::new(weights),
            name: "waves".to_owned(),
            digest: String::new(),
            meta: [SequenceMeta { seq: SeqIdx::new(0), item: "wave".to_owned(), prompt_len, len }],
            layers: layers.collect(),
            hidden: Array3::zeros((usize::from(shape.layers), len as usize, hidden)),
        }
    }
}
