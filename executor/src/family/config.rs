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
    /// One divisor per frequency, as some GGUF files give them.
    PerFrequency {
        /// Divisors, `[head_dim / 2]`.
        divisors: Vec<f32>,
    },
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
        if let RopeScaling::PerFrequency { divisors } = &self.rope_scaling
            && (divisors.len() != self.head_dim / 2
                || divisors.iter().any(|divisor| !good(f64::from(*divisor))))
        {
            let found = format!("{divisors:?}");
            return Err(ModelError::shape("rope divisors", found, "half a head of numbers above 0"));
        }
        Ok(self)
    }
}
