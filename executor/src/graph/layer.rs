//! The graph of one decoder layer.
//!
//! Queries, keys and values come from one product, and so do gate and up. Scores are computed per key-value head with the
//! queries of its group stacked, so keys are never repeated. The caller sees to positions (cosines and sines) and to
//! what is hidden (bias); the graph knows neither.

use super::{
    builder::{Attr, BuiltGraph, Dim, GraphBuilder, Name},
    io,
};
use crate::{family::DecoderConfig, weights::LayerWeights};

/// Whether the graph gives its attention probabilities away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttentionOutput {
    /// They stay inside.
    Hidden,
    /// They are an output.
    Given,
}

/// Where what a layer stores and passes on stays between runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Residence {
    /// On the host: it reads all it wants from the outputs themselves.
    Host,
    /// On the device: what the host always reads is an output of its own, and small.
    Device,
}

const Q_POS: Dim = Dim::Named("q_pos");
const SLOT: Dim = Dim::Named("slot");
const PRESENT: Dim = Dim::Named("present");

/// The graph of one layer with its weights.
pub(crate) fn layer_graph(
    config: &DecoderConfig,
    weights: &LayerWeights,
    attention: AttentionOutput,
    residence: Residence,
) -> BuiltGraph {
    let mut writer = LayerWriter { builder: GraphBuilder::new("layer"), config, weights };
    let (hidden, head, kv) =
        (Dim::Fixed(config.hidden), Dim::Fixed(config.head_dim), Dim::Fixed(config.kv_heads));
    let builder = &mut writer.builder;
    builder.input(io::HIDDEN_IN, &[Q_POS, hidden]);
    builder.input(io::COS, &[Q_POS, head]);
    builder.input(io::SIN, &[Q_POS, head]);
    builder.input(io::PAST_KEYS, &[kv, SLOT, head]);
    builder.input(io::PAST_VALUES, &[kv, SLOT, head]);
    builder.input(io::BIAS, &[Dim::Named("bias_head"), Dim::Named("stacked"), PRESENT]);

    let normed = writer.rms_norm(io::HIDDEN_IN, "attention_norm", &weights.attention_norm);
    let (keys, values) = writer.queries_keys_values(&normed);
    let mixed = writer.attention(&keys, &values);
    let residual = writer.builder.node("Add", &[io::HIDDEN_IN, &mixed], "after_attention", &[]);
    let normed = writer.rms_norm(&residual, "ffn_norm", &weights.ffn_norm);
    let fed = writer.feed_forward(&normed);
    writer.builder.node("Add", &[&residual, &fed], io::HIDDEN_OUT, &[]);

    let builder = &mut writer.builder;
    if residence == Residence::Device {
        // Zero times anything finite is zero: a row's sum says whether all of it is finite.
        let zero = builder.scalar("probe.zero", 0.0);
        let axis = builder.integers("probe.axis", &[-1]);
        let zeros = builder.node("Mul", &[io::HIDDEN_OUT, &zero], "probe.zeros", &[]);
        builder.node("ReduceSum", &[&zeros, &axis], io::HIDDEN_PROBE, &[("keepdims", Attr::Int(0))]);
        builder.output(io::HIDDEN_PROBE, &[Q_POS]);
        builder.output(io::NEW_KEYS, &[kv, Q_POS, head]);
        builder.output(io::NEW_VALUES, &[kv, Q_POS, head]);
    }
    builder.output(io::HIDDEN_OUT, &[Q_POS, hidden]);
    builder.output(io::PRESENT_KEYS, &[kv, PRESENT, head]);
    builder.output(io::PRESENT_VALUES, &[kv, PRESENT, head]);
    builder.output(io::QUERIES, &[Dim::Fixed(config.q_heads), Q_POS, head]);
    if attention == AttentionOutput::Given {
        builder.output(io::ATTENTION, &[kv, Dim::Named("stacked"), PRESENT]);
    }
    writer.builder.finish()
}

struct LayerWriter<'a> {
    builder: GraphBuilder,
    config: &'a DecoderConfig,
    weights: &'a LayerWeights,
}

impl LayerWriter<'_> {
    /// The norm of the last axis, in the plain operators that the optimiser recognises.
    fn rms_norm(&mut self, input: &str, name: &str, scale: &[f32]) -> Name {
        let scale = self.builder.weight(&format!("{name}.scale"), &[scale.len()], &[scale]);
        self.norm_by(input, name, &scale)
    }

    fn norm_by(&mut self, input: &str, name: &str, scale: &str) -> Name {
        let part = |part: &str| format!("{name}.{part}");
        let builder = &mut self.builder;
        let two = builder.scalar(&part("two"), 2.0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the graph computes in f32, so its epsilon is one"
        )]
        let epsilon = builder.scalar(&part("epsilon"), self.config.rms_eps as f32);
        let axis = builder.integers(&part("axis"), &[-1]);
        let square = builder.node("Pow", &[input, &two], &part("square"), &[]);
        let mean =
            builder.node("ReduceMean", &[&square, &axis], &part("mean"), &[("keepdims", Attr::Int(1))]);
        let lifted = builder.node("Add", &[&mean, &epsilon], &part("lifted"), &[]);
        let root = builder.node("Sqrt", &[&lifted], &part("root"), &[]);
        let unit = builder.node("Div", &[input, &root], &part("unit"), &[]);
        builder.node("Mul", &[&unit, scale], &part("normed"), &[])
    }

    /// Projects, norms if the family does, and rotates. The queries become an output; keys and values are
    /// `[kv_head, q_pos, head_dim]`.
    fn queries_keys_values(&mut self, normed: &str) -> (Name, Name) {
        let (config, weights) = (self.config, self.weights);
        let (q, kv, head) = (config.q_heads as i64, config.kv_heads as i64, config.head_dim as i64);
        let rows = config.q_width() + 2 * config.kv_width();
        let parts: [&[f32]; 3] = [&weights.query, &weights.key, &weights.value];
        let matrix = self.builder.weight("qkv", &[rows, config.hidden], &parts);
        let mut inputs = vec![normed, &matrix];
        let bias = weights.qkv_bias.as_ref().map(|bias| self.builder.weight("qkv.bias", &[rows], &[bias]));
        inputs.extend(bias.as_deref());
        let joined = self.builder.node("Gemm", &inputs, "qkv.joined", &[("transB", Attr::Int(1))]);
        let shape = self.builder.integers("qkv.shape", &[-1, q + 2 * kv, head]);
        let by_head = self.builder.node("Reshape", &[&joined, &shape], "qkv.by_head", &[]);
        let sizes = self.builder.integers("qkv.sizes", &[q + kv, kv]);
        let [mut rotated, values] = self.builder.split(&by_head, &sizes, 1, ["qk.by_head", "v.by_head"]);
        if let Some((query, key)) = &weights.qk_norm {
            // One norm for both: a scale per head, `[q_head + kv_head, head_dim]`.
            let scales: Vec<&[f32]> = std::iter::repeat_n(query.as_slice(), config.q_heads)
                .chain(std::iter::repeat_n(key.as_slice(), config.kv_heads))
                .collect();
            let scale = self.builder.weight("qk_norm.scale", &[scales.len(), config.head_dim], &scales);
            rotated = self.norm_by(&rotated, "qk_norm", &scale);
        }
        let to_heads = [("perm", Attr::Ints(&[1, 0, 2]))];
        let heads_first = self.builder.node("Transpose", &[&rotated], "qk.heads_first", &to_heads);
        let turned = self.rotate(&heads_first);
        let sizes = self.builder.integers("qk.sizes", &[q, kv]);
        let [_, keys] = self.builder.split(&turned, &sizes, 0, [io::QUERIES, io::NEW_KEYS]);
        let values = self.builder.node("Transpose", &[&values], io::NEW_VALUES, &to_heads);
        (keys, values)
    }

    /// Half-split rotation of `[head, q_pos, head_dim]`.
    fn rotate(&mut self, input: &str) -> Name {
        let half = (self.config.head_dim / 2) as i64;
        let builder = &mut self.builder;
        let sizes = builder.integers("rope.sizes", &[half, half]);
        let [front, back] = builder.split(input, &sizes, 2, ["rope.front", "rope.back"]);
        let negated = builder.node("Neg", &[&back], "rope.negated", &[]);
        let crossed = builder.node("Concat", &[&negated, &front], "rope.crossed", &[("axis", Attr::Int(2))]);
        let straight = builder.node("Mul", &[input, io::COS], "rope.straight", &[]);
        let across = builder.node("Mul", &[&crossed, io::SIN], "rope.across", &[]);
        builder.node("Add", &[&straight, &across], "rope.turned", &[])
    }

    /// Attention over stored and new keys, and the output projection: `[q_pos, hidden]`.
    fn attention(&mut self, keys: &str, values: &str) -> Name {
        let config = self.config;
        let (q, kv, head) = (config.q_heads as i64, config.kv_heads as i64, config.head_dim as i64);
        let builder = &mut self.builder;
        let join = [("axis", Attr::Int(1))];
        let keys = builder.node("Concat", &[io::PAST_KEYS, keys], io::PRESENT_KEYS, &join);
        let values = builder.node("Concat", &[io::PAST_VALUES, values], io::PRESENT_VALUES, &join);
        let stacked = builder.integers("attention.stacked", &[kv, -1, head]);
        let queries = builder.node("Reshape", &[io::QUERIES, &stacked], "attention.queries", &[]);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "a head is a few hundred wide"
        )]
        let scale = builder.scalar("attention.scale", (1.0 / (config.head_dim as f64).sqrt()) as f32);
        let scaled = builder.node("Mul", &[&queries, &scale], "attention.scaled", &[]);
        let turned =
            builder.node("Transpose", &[&keys], "attention.keys", &[("perm", Attr::Ints(&[0, 2, 1]))]);
        let scores = builder.node("MatMul", &[&scaled, &turned], "attention.scores", &[]);
        let masked = builder.node("Add", &[&scores, io::BIAS], "attention.masked", &[]);
        let shares = builder.node("Softmax", &[&masked], io::ATTENTION, &[("axis", Attr::Int(-1))]);
        let mixed = builder.node("MatMul", &[&shares, &values], "attention.mixed", &[]);
        let by_head = builder.integers("attention.by_head", &[q, -1, head]);
        let mixed = builder.node("Reshape", &[&mixed, &by_head], "attention.heads_first", &[]);
        let mixed = builder.node(
            "Transpose",
            &[&mixed],
            "attention.tokens_first",
            &[("perm", Attr::Ints(&[1, 0, 2]))],
        );
        let flat = builder.integers("attention.flat", &[-1, q * head]);
        let mixed = builder.node("Reshape", &[&mixed, &flat], "attention.joined", &[]);
        let matrix = builder.weight("output", &[config.hidden, config.q_width()], &[&self.weights.output]);
        builder.node("Gemm", &[&mixed, &matrix], "attention.projected", &[("transB", Attr::Int(1))])
    }

    fn feed_forward(&mut self, normed: &str) -> Name {
        let (config, weights) = (self.config, self.weights);
        let builder = &mut self.builder;
        let transposed = [("transB", Attr::Int(1))];
        let matrix =
            builder.weight("gate_up", &[2 * config.ffn, config.hidden], &[&weights.gate, &weights.up]);
        let joined = builder.node("Gemm", &[normed, &matrix], "ffn.joined", &transposed);
        let sizes = builder.integers("ffn.sizes", &[config.ffn as i64, config.ffn as i64]);
        let [gate, up] = builder.split(&joined, &sizes, 1, ["ffn.gate", "ffn.up"]);
        let opened = builder.node("Sigmoid", &[&gate], "ffn.opened", &[]);
        let silu = builder.node("Mul", &[&gate, &opened], "ffn.silu", &[]);
        let product = builder.node("Mul", &[&silu, &up], "ffn.product", &[]);
        let down = builder.weight("down", &[config.hidden, config.ffn], &[&weights.down]);
        builder.node("Gemm", &[&product, &down], "ffn.projected", &transposed)
    }
}
