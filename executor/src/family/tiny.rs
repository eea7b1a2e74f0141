//! A small random decoder, made in code, for tests and for trying things without a model file.
//!
//! It needs the ONNX Runtime library and nothing else. Its weights depend on the seed only.

use super::{DecoderConfig, ModelError, RopeScaling, SlidingWindow};
use crate::weights::{LayerWeights, WeightSource};

/// What the small decoder looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TinySpec {
    /// Decides every weight.
    pub seed: u64,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads; twice the key-value heads.
    pub q_heads: usize,
    /// Queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Queries and keys are normed per head.
    pub qk_norm: bool,
    /// Layers that see only recent tokens.
    pub sliding_window: Option<SlidingWindow>,
}

impl Default for TinySpec {
    fn default() -> Self {
        Self { seed: 1, layers: 3, q_heads: 4, qkv_bias: false, qk_norm: false, sliding_window: None }
    }
}

impl TinySpec {
    /// The configuration: hidden 32, heads of 8, vocabulary 61, untied.
    #[must_use]
    pub fn config(&self) -> DecoderConfig {
        DecoderConfig {
            family: "tiny",
            name: Some(format!("tiny-{}", self.seed)),
            layers: self.layers,
            hidden: 32,
            q_heads: self.q_heads,
            kv_heads: self.q_heads / 2,
            head_dim: 8,
            ffn: 48,
            vocab: 61,
            context: 4096,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            rms_eps: 1e-5,
            tied: false,
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
            fused: false,
            sliding_window: self.sliding_window,
        }
    }

    pub(crate) fn weights(&self) -> TinyWeights {
        TinyWeights { spec: *self, config: self.config() }
    }
}

/// Weights drawn when they are asked for.
#[derive(Debug)]
pub(crate) struct TinyWeights {
    spec: TinySpec,
    config: DecoderConfig,
}

impl TinyWeights {
    /// `count` numbers, uniform in `centre - spread .. centre + spread`.
    fn draw(&self, purpose: u64, count: usize, centre: f32, spread: f32) -> Vec<f32> {
        let mut state =
            self.spec.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ purpose.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (0..count).map(|_| centre + spread * signed_unit(&mut state)).collect()
    }
}

/// One step of splitmix64, as a number in -1..1.
fn signed_unit(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    // The 16 top bits are plenty and are exact in an f32.
    let top = u16::try_from(bits >> 48).expect("64 - 48 bits are left");
    f32::from(top) / 32_768.0 - 1.0
}

impl WeightSource for TinyWeights {
    fn layer(&self, layer: usize) -> Result<LayerWeights, ModelError> {
        let config = &self.config;
        let (hidden, q, kv, ffn) = (config.hidden, config.q_width(), config.kv_width(), config.ffn);
        let purpose = |part: u64| 100 * (layer as u64 + 1) + part;
        let matrix = |part, out: usize, inner: usize| self.draw(purpose(part), out * inner, 0.0, 0.35);
        let norm = |part, width| self.draw(purpose(part), width, 1.0, 0.3);
        Ok(LayerWeights {
            attention_norm: norm(0, hidden),
            query: matrix(1, q, hidden),
            key: matrix(2, kv, hidden),
            value: matrix(3, kv, hidden),
            qkv_bias: config.qkv_bias.then(|| self.draw(purpose(4), q + 2 * kv, 0.0, 0.5)),
            qk_norm: config.qk_norm.then(|| (norm(5, config.head_dim), norm(6, config.head_dim))),
            output: matrix(7, hidden, q),
            ffn_norm: norm(8, hidden),
            gate: matrix(9, ffn, hidden),
            up: matrix(10, ffn, hidden),
            down: matrix(11, hidden, ffn),
        })
    }

    fn embedding(&self) -> Result<Vec<f32>, ModelError> {
        Ok(self.draw(1, self.config.vocab * self.config.hidden, 0.0, 1.0))
    }

    fn final_norm(&self) -> Result<Vec<f32>, ModelError> {
        Ok(self.draw(2, self.config.hidden, 1.0, 0.3))
    }

    fn head(&self) -> Result<Option<Vec<f32>>, ModelError> {
        Ok(Some(self.draw(3, self.config.vocab * self.config.hidden, 0.0, 0.5)))
    }
}
