//! A second, naive forward pass in plain Rust, to check the first one with.
//!
//! It shares the weights' reading with the executor and nothing else: no runtime, no cache, no chunks, no fused products;
//! every token attends by one loop over all tokens before it. It computes in `f64` and is slow.

use crate::{
    error::ExecutorError,
    family::{DecoderConfig, RopeScaling, TinySpec},
    rope::Rope,
    weights::{LayerWeights, WeightSource},
};

/// Decides whether a query sees a key: `(layer, kv_head, q_pos, kv_pos)`.
pub type Visible<'a> = &'a dyn Fn(usize, usize, usize, usize) -> bool;

/// Results of a naive pass; positions are `0..tokens`.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferencePass {
    /// After each layer, before the final norm, `[layer][pos][hidden]`.
    pub hidden: Vec<Vec<Vec<f64>>>,
    /// After rotation, `[layer][pos][q_head * head_dim]`.
    pub queries: Vec<Vec<Vec<f64>>>,
    /// After rotation, `[layer][pos][kv_head * head_dim]`.
    pub keys: Vec<Vec<Vec<f64>>>,
    /// `[layer][pos][kv_head * head_dim]`
    pub values: Vec<Vec<Vec<f64>>>,
    /// `[pos][vocab]`
    pub logits: Vec<Vec<f64>>,
}

/// Runs the small random model over tokens. Keys that `visible` denies are not attended to; a token always sees itself.
///
/// # Errors
/// None in practice: the weights are made in code.
pub fn forward_tiny(
    spec: TinySpec,
    tokens: &[u32],
    visible: Visible<'_>,
) -> Result<ReferencePass, ExecutorError> {
    Ok(forward(&spec.config(), &spec.weights(), tokens, visible)?)
}

pub(crate) fn forward(
    config: &DecoderConfig,
    weights: &dyn WeightSource,
    tokens: &[u32],
    visible: Visible<'_>,
) -> Result<ReferencePass, crate::family::ModelError> {
    let embedding = weights.embedding()?;
    let row = |token: &u32| widen(&embedding[*token as usize * config.hidden..][..config.hidden]);
    let mut stream: Vec<Vec<f64>> = tokens.iter().map(row).collect();
    let turns = turns(config, tokens.len());
    let mut pass =
        ReferencePass { hidden: vec![], queries: vec![], keys: vec![], values: vec![], logits: vec![] };
    for layer in 0..config.layers {
        let layer_weights = weights.layer(layer)?;
        let reach = config.window(layer).unwrap_or(usize::MAX);
        let see = |head: usize, query: usize, key: usize| {
            query == key || (query - key < reach && visible(layer, head, query, key))
        };
        let states = attend(config, &layer_weights, &turns, &mut stream, &see);
        for token in &mut stream {
            feed_forward(config, &layer_weights, token);
        }
        let (queries, keys, values) = states;
        pass.hidden.push(stream.clone());
        pass.queries.push(queries);
        pass.keys.push(keys);
        pass.values.push(values);
    }
    let (norm, head) = (weights.final_norm()?, weights.head()?);
    let head = head.as_deref().unwrap_or(&embedding);
    pass.logits = stream.iter().map(|token| product(head, &rms_norm(token, &norm, config.rms_eps))).collect();
    Ok(pass)
}

type States = (Vec<Vec<f64>>, Vec<Vec<f64>>, Vec<Vec<f64>>);

/// Adds attention to the stream, and gives queries, keys and values.
fn attend(
    config: &DecoderConfig,
    weights: &LayerWeights,
    turns: &[Vec<(f64, f64)>],
    stream: &mut [Vec<f64>],
    visible: &dyn Fn(usize, usize, usize) -> bool,
) -> States {
    let width = config.head_dim;
    let (mut queries, mut keys, mut values) = (vec![], vec![], vec![]);
    for (pos, token) in stream.iter().enumerate() {
        let normed = rms_norm(token, &weights.attention_norm, config.rms_eps);
        let mut query = product(&weights.query, &normed);
        let mut key = product(&weights.key, &normed);
        let mut value = product(&weights.value, &normed);
        if let Some(bias) = &weights.qkv_bias {
            let all = query.iter_mut().chain(&mut key).chain(&mut value);
            all.zip(bias).for_each(|(number, bias)| *number += f64::from(*bias));
        }
        let norms = weights.qk_norm.as_ref();
        for head in query.chunks_exact_mut(width) {
            turn(config, head, norms.map(|norms| norms.0.as_slice()), &turns[pos]);
        }
        for head in key.chunks_exact_mut(width) {
            turn(config, head, norms.map(|norms| norms.1.as_slice()), &turns[pos]);
        }
        queries.push(query);
        keys.push(key);
        values.push(value);
    }
    for (pos, token) in stream.iter_mut().enumerate() {
        let mut mixed = Vec::with_capacity(config.q_width());
        for head in 0..config.q_heads {
            let kv_head = head / config.group();
            let range = kv_head * width..(kv_head + 1) * width;
            let query = &queries[pos][head * width..(head + 1) * width];
            let seen: Vec<usize> = (0..=pos).filter(|key| visible(kv_head, pos, *key)).collect();
            #[expect(clippy::cast_precision_loss, reason = "a head is a few hundred wide")]
            let scale = (width as f64).sqrt();
            let scores: Vec<f64> =
                seen.iter().map(|key| dot(query, &keys[*key][range.clone()]) / scale).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let shares: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = shares.iter().sum();
            for column in range {
                let weighted = seen.iter().zip(&shares).map(|(key, share)| share * values[*key][column]);
                mixed.push(weighted.sum::<f64>() / total);
            }
        }
        let out = product(&weights.output, &mixed);
        token.iter_mut().zip(out).for_each(|(number, more)| *number += more);
    }
    (queries, keys, values)
}

/// Norms a head, if its family does, and rotates it to a position.
fn turn(config: &DecoderConfig, head: &mut [f64], norm: Option<&[f32]>, turns: &[(f64, f64)]) {
    if let Some(norm) = norm {
        let normed = rms_norm(head, norm, config.rms_eps);
        head.copy_from_slice(&normed);
    }
    let half = head.len() / 2;
    for (i, (sin, cos)) in turns.iter().enumerate() {
        let (front, back) = (head[i], head[i + half]);
        (head[i], head[i + half]) = (front * cos - back * sin, back * cos + front * sin);
    }
}

/// Sine and cosine of every pair of channels, `[pos][head_dim / 2]`. Scaled frequencies are the executor's own: those are
/// checked against other implementations.
fn turns(config: &DecoderConfig, count: usize) -> Vec<Vec<(f64, f64)>> {
    let half = config.head_dim / 2;
    if config.rope_scaling != RopeScaling::None {
        let positions: Vec<u32> = (0..).take(count).collect();
        let (cos, sin) = Rope::new(config).angles(&positions);
        let widened = sin.iter().zip(&cos).map(|(sin, cos)| (f64::from(*sin), f64::from(*cos)));
        let all: Vec<(f64, f64)> = widened.collect();
        return all.chunks(config.head_dim).map(|row| row[..half].to_vec()).collect();
    }
    #[expect(clippy::cast_precision_loss, reason = "small whole numbers")]
    let angle = |pos: usize, i: usize| {
        (pos as f64 / config.rope_theta.powf(2.0 * i as f64 / config.head_dim as f64)).sin_cos()
    };
    (0..count).map(|pos| (0..half).map(|i| angle(pos, i)).collect()).collect()
}

fn feed_forward(config: &DecoderConfig, weights: &LayerWeights, token: &mut [f64]) {
    let normed = rms_norm(token, &weights.ffn_norm, config.rms_eps);
    let (gate, up) = (product(&weights.gate, &normed), product(&weights.up, &normed));
    let inner: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
    let out = product(&weights.down, &inner);
    token.iter_mut().zip(out).for_each(|(number, more)| *number += more);
}

fn widen(row: &[f32]) -> Vec<f64> {
    row.iter().copied().map(f64::from).collect()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

/// `[out, in]` times `[in]`.
fn product(matrix: &[f32], vector: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(vector.len()).map(|row| dot(&widen(row), vector)).collect()
}

fn rms_norm(row: &[f64], gain: &[f32], epsilon: f64) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "rows are a few thousand wide")]
    let mean = dot(row, row) / row.len() as f64;
    let scale = 1.0 / (mean + epsilon).sqrt();
    row.iter().zip(gain).map(|(value, gain)| value * scale * f64::from(*gain)).collect()
}
