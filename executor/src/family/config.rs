//! The numbers that describe a decoder.

use serde::Serialize;

use super::error::ModelError;

/// How rotary frequencies are changed for long contexts.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_frequency_factor` are divided.
        low_frequency_factor: f64,
        /// Wavelengths below `original_context / high_frequency_factor` are kept.
        high_frequency_factor: f64,
        /// Context length of the original training, in tokens.
        original_context: f64,
    },
    /// YaRN: frequencies that turn often within the original context are kept, those that turn seldom are divided, and a
    /// ramp over the index lies between (Peng et al. 2023, arXiv 2309.00071).
    Yarn {
        /// The divisor of the low frequencies.
        factor: f64,
        /// Context length of the original training, in tokens.
        original_context: f64,
        /// Frequencies with more turns than this are kept.
        beta_fast: f64,
        /// Frequencies with fewer turns than this are divided.
        beta_slow: f64,
        /// Cosines and sines are multiplied by this.
        attention_factor: f64,
    },
    /// One divisor per frequency, as some GGUF files and `longrope` models give them.
    PerFrequency {
        /// Divisors, `[head_dim / 2]`.
        divisors: Vec<f32>,
        /// Cosines and sines are multiplied by this.
        attention_factor: f64,
    },
}

/// Attention to a window of recent tokens: a query at `p` sees keys at `p - tokens + 1 ..= p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SlidingWindow {
    /// Width of the window, the token itself included.
    pub tokens: usize,
    /// The first layer that has it; those before see everything.
    pub first_layer: usize,
}

/// The shape of a decoder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecoderConfig {
    /// Family id.
    pub family: &'static str,
    /// The model's own name, if it has one.
    pub name: Option<String>,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key-value heads; divides `q_heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub ffn: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Longest sequence the model was made for, in tokens.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Change of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Added to the mean square in every RMS norm.
    pub rms_eps: f64,
    /// The output matrix is the embedding matrix.
    pub tied: bool,
    /// Queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Queries and keys are normed per head before rotation.
    pub qk_norm: bool,
    /// Projections lie in joined matrices in the file.
    pub fused: bool,
    /// Layers that see only recent tokens, if there are any.
    pub sliding_window: Option<SlidingWindow>,
}

impl DecoderConfig {
    /// Query heads that share one key-value head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Width of all queries of a token.
    #[must_use]
    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Width of all keys, or all values, of a token.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// How many tokens back a query of `layer` sees, itself included; nothing when it sees all.
    #[must_use]
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|window| layer >= window.first_layer).map(|window| window.tokens)
    }

    /// Refuses shapes that cannot be.
    pub(crate) fn checked(self) -> Result<Self, ModelError> {
        let counts = [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("query heads", self.q_heads),
            ("key-value heads", self.kv_heads),
            ("head width", self.head_dim),
            ("feed-forward width", self.ffn),
            ("vocabulary", self.vocab),
            ("context", self.context),
        ];
        for (what, value) in counts {
            if value == 0 || value > 1 << 24 {
                return Err(ModelError::shape(what, value, "1 to 16777216"));
            }
        }
        if !self.q_heads.is_multiple_of(self.kv_heads) {
            let found = format!("{} for {} query heads", self.kv_heads, self.q_heads);
            return Err(ModelError::shape("key-value heads", found, "a divisor of the query heads"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(ModelError::shape("head width", self.head_dim, "an even number"));
        }
        let good = |value: f64| value.is_finite() && value > 0.0;
        if !good(self.rope_theta) {
            return Err(ModelError::shape("rope base", self.rope_theta, "a number above 0"));
        }
        if !good(self.rms_eps) {
            return Err(ModelError::shape("RMS epsilon", self.rms_eps, "a number above 0"));
        }
        self.check_rope()?;
        if self.sliding_window.is_some_and(|window| window.tokens == 0) {
            return Err(ModelError::shape("sliding window", 0, "1 or more tokens"));
        }
        Ok(self)
    }

    fn check_rope(&self) -> Result<(), ModelError> {
        let good = |value: f64| value.is_finite() && value > 0.0;
        let numbers: &[(&'static str, f64)] = match &self.rope_scaling {
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => &[],
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => &[
                ("rope factor", *factor),
                ("original context", *original_context),
                ("rope beta_fast", *beta_fast),
                ("rope beta_slow", *beta_slow),
                ("rope attention factor", *attention_factor),
            ],
            RopeScaling::PerFrequency { divisors, attention_factor } => {
                let half = self.head_dim / 2;
                if divisors.len() != half || divisors.iter().any(|divisor| !good(f64::from(*divisor))) {
                    let found = format!("{divisors:?}");
                    return Err(ModelError::shape("rope divisors", found, "half a head of numbers above 0"));
                }
                &[("rope attention factor", *attention_factor)]
            }
        };
        match numbers.iter().find(|(_, value)| !good(*value)) {
            Some((what, value)) => Err(ModelError::shape(what, value, "a number above 0")),
            None => Ok(()),
        }
    }
}
