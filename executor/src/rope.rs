//! Rotary positions: cosines and sines for given positions.
//!
//! Frequencies and angles are rounded to `f32` as the reference implementations do, since weights were trained with
//! that; cosine and sine themselves are exact to the last bit of `f32`.

use std::f64::consts::TAU;

use crate::family::{DecoderConfig, RopeScaling};

/// The frequencies of a model.
#[derive(Debug, Clone)]
pub(crate) struct Rope {
    /// Radians per position, `[head_dim / 2]`.
    frequencies: Vec<f32>,
    /// Cosines and sines are multiplied by this.
    attention_factor: f32,
}

impl Rope {
    pub(crate) fn new(config: &DecoderConfig) -> Self {
        let half = config.head_dim / 2;
        #[expect(clippy::cast_precision_loss, reason = "heads are a few hundred wide")]
        let frequency = |index: usize| {
            let exponent = (2 * index) as f64 / config.head_dim as f64;
            1.0 / narrow(config.rope_theta.powf(exponent))
        };
        let plain = (0..half).map(frequency);
        let frequencies = match &config.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / narrow(*factor)).collect(),
            RopeScaling::PerFrequency { divisors, .. } => {
                plain.zip(divisors).map(|(f, divisor)| f / divisor).collect()
            }
            RopeScaling::Yarn { .. } => yarn(config, plain),
            RopeScaling::Llama3 { .. } => plain.map(|f| llama3(f, &config.rope_scaling)).collect(),
        };
        let attention_factor = match &config.rope_scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::PerFrequency { attention_factor, .. } => narrow(*attention_factor),
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        };
        Self { frequencies, attention_factor }
    }

    /// Radians per position, `[head_dim / 2]`.
    pub(crate) fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// What cosines and sines are multiplied by.
    pub(crate) fn attention_factor(&self) -> f32 {
        self.attention_factor
    }

    /// Cosines and sines, each `[q_pos, head_dim]`; both halves of a row are equal.
    pub(crate) fn angles(&self, positions: &[u32]) -> (Vec<f32>, Vec<f32>) {
        let width = 2 * self.frequencies.len();
        let (mut cos, mut sin) =
            (Vec::with_capacity(positions.len() * width), Vec::with_capacity(positions.len() * width));
        for position in positions {
            #[expect(clippy::cast_precision_loss, reason = "positions below 2^24 are exact in an f32")]
            let position = *position as f32;
            for _half in 0..2 {
                for frequency in &self.frequencies {
                    let (s, c) = f64::from(position * frequency).sin_cos();
                    // A factor of 1 changes nothing.
                    cos.push(narrow(c) * self.attention_factor);
                    sin.push(narrow(s) * self.attention_factor);
                }
            }
        }
        (cos, sin)
    }
}

/// Low frequencies are divided, high ones kept, and a ramp lies between.
fn llama3(frequency: f32, scaling: &RopeScaling) -> f32 {
    let RopeScaling::Llama3 {
        factor,
        low_frequency_factor: low,
        high_frequency_factor: high,
        original_context,
    } = scaling
    else {
        return frequency;
    };
    let plain = f64::from(frequency);
    let turns = original_context * plain / TAU;
    let ramp = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    narrow((1.0 - ramp) * plain / factor + ramp * plain)
}

/// Frequencies with many turns in the original context are kept, those with few divided, with a ramp between. The ends of
/// the ramp are whole indices, as in the reference implementation.
#[expect(clippy::cast_precision_loss, reason = "heads are a few hundred wide")]
fn yarn(config: &DecoderConfig, plain: impl Iterator<Item = f32>) -> Vec<f32> {
    let RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } = config.rope_scaling else {
        return plain.collect();
    };
    let width = config.head_dim as f64;
    // The index whose frequency turns `turns` times in the original context.
    let index_of =
        |turns: f64| width * (original_context / (turns * TAU)).ln() / (2.0 * config.rope_theta.ln());
    let low = index_of(beta_fast).floor().max(0.0);
    let high = index_of(beta_slow).ceil().min(width - 1.0);
    // Equal ends would divide by zero.
    let span = if high > low { high - low } else { 0.001 };
    let scaled = |(index, frequency): (usize, f32)| {
        let divided = narrow(((index as f64 - low) / span).clamp(0.0, 1.0));
        frequency / narrow(factor) * divided + frequency * (1.0 - divided)
    };
    plain.enumerate().map(scaled).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::TinySpec;

    #[test]
    fn position_zero_turns_nothing() {
        let (cos, sin) = Rope::new(&TinySpec::default().config()).angles(&[0]);
        assert_eq!(cos, [1.0; 8]);
        assert_eq!(sin, [0.0; 8]);
    }

    #[test]
    fn first_frequency_is_one_radian_and_the_halves_are_equal() {
        let (cos, sin) = Rope::new(&TinySpec::default().config()).angles(&[3]);
        assert!((f64::from(cos[0]) - 3_f64.cos()).abs() < 1e-7);
        assert!((f64::from(sin[0]) - 3_f64.sin()).abs() < 1e-7);
        assert_eq!(cos[..4], cos[4..]);
        // theta = 10000, head width 8: the second frequency is 10000^(-1/4) = 0.1.
        assert!((f64::from(cos[1]) - 0.3_f64.cos()).abs() < 1e-7);
    }

    #[test]
    fn llama3_keeps_high_and_divides_low_frequencies() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 64.0,
        };
        // 64 / 2 pi = 10.2 turns at 1 rad: above 4, kept. 0.01 rad: 0.1 turns, below 1, divided.
        assert_eq!(llama3(1.0, &scaling).to_bits(), 1.0_f32.to_bits());
        assert!((llama3(0.01, &scaling) - 0.00125).abs() < 1e-9);
        // 2.5 turns are half way up the ramp: (1/8 + 1) / 2 of the frequency.
        let middle = narrow(2.5 * TAU / 64.0);
        assert!((llama3(middle, &scaling) / middle - 0.5625).abs() < 1e-6);
    }
}
