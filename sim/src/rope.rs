//! Rotary positions: turning a recorded vector back to what it was before rotation, and forth.
//!
//! Angles are position times frequency, rounded to binary32 as models compute them; cosine and sine are exact to the
//! last bit of binary32 and the same on every machine.

use crate::num;
use crate::trace::RopeInfo;
use crate::types::Pos;

/// Which channels make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Channel `i` with `i + pairs`.
    RotateHalf,
    /// Channel `2 i` with `2 i + 1`.
    Interleaved,
}

/// The rotation of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    style: Style,
    /// Radians a position, `[pair]`.
    inv_freq: Vec<f32>,
    scaling: f32,
}

/// A trace does not say enough about its rotation, or says what is not known here.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RopeError {
    /// Written in a format without frequencies.
    #[error(
        "the trace holds no rope.inv_freq (format 1.0): record it again, vectors before rotation cannot be had"
    )]
    NoFrequencies,
    /// Another pairing of channels.
    #[error("rope style is `{found}`, accepted: rotate-half or interleaved")]
    Style {
        /// The style.
        found: String,
    },
}

impl Rope {
    /// The rotation that a manifest describes.
    ///
    /// # Errors
    /// When the frequencies are not there, or the style is not known.
    pub fn new(info: &RopeInfo) -> Result<Self, RopeError> {
        let style = match info.style.as_str() {
            "rotate-half" => Style::RotateHalf,
            "interleaved" => Style::Interleaved,
            other => return Err(RopeError::Style { found: other.to_owned() }),
        };
        let inv_freq = info.inv_freq.as_deref().ok_or(RopeError::NoFrequencies)?;
        let inv_freq = inv_freq.iter().copied().map(narrow).collect();
        Ok(Self { style, inv_freq, scaling: narrow(info.attention_scaling.unwrap_or(1.0)) })
    }

    /// Pairs of channels that turn; those beyond `2 * pairs` are left alone.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.inv_freq.len()
    }

    /// Radians a position, `[pair]`.
    #[must_use]
    pub fn inv_freq(&self) -> &[f32] {
        &self.inv_freq
    }

    /// The turn at a position, for any number of vectors.
    #[must_use]
    pub fn at(&self, pos: Pos) -> Turn<'_> {
        #[expect(clippy::cast_precision_loss, reason = "positions below 2^24 are exact in an f32")]
        let position = pos.get() as f32;
        let cos_sin = self.inv_freq.iter().map(|frequency| {
            let turns = f64::from(position * frequency) / std::f64::consts::TAU;
            let turn = turns - turns.floor();
            // sin(x) = cos(x - quarter turn)
            let sine_turn = if turn >= 0.25 { turn - 0.25 } else { turn + 0.75 };
            (narrow(num::cos_turn(turn)), narrow(num::cos_turn(sine_turn)))
        });
        Turn { rope: self, cos_sin: cos_sin.collect() }
    }
}

impl Rope {
    /// The mean of the turns at `positions`: no rotation itself, it shrinks what turns fast.
    #[must_use]
    pub fn mean(&self, positions: std::ops::Range<u32>) -> Turn<'_> {
        let count = f64::from(positions.end.saturating_sub(positions.start).max(1));
        let mut sums = vec![(0.0f64, 0.0f64); self.inv_freq.len()];
        for pos in positions {
            for (sum, (cos, sin)) in sums.iter_mut().zip(self.at(Pos::new(pos)).cos_sin) {
                *sum = (sum.0 + f64::from(cos), sum.1 + f64::from(sin));
            }
        }
        let cos_sin = sums.into_iter().map(|(cos, sin)| (narrow(cos / count), narrow(sin / count)));
        Turn { rope: self, cos_sin: cos_sin.collect() }
    }

    /// A copy of `vector`, `[head_dim]`, as it was before it was rotated at `pos`.
    #[must_use]
    pub fn unrotated(&self, vector: &[f32], pos: Pos) -> Vec<f32> {
        let mut plain = vector.to_vec();
        self.at(pos).unrotate(&mut plain);
        plain
    }
}

/// The rotation at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn<'a> {
    rope: &'a Rope,
    /// Cosine and sine, `[pair]`.
    cos_sin: Vec<(f32, f32)>,
}

impl Turn<'_> {
    /// Rotates `vector`, `[head_dim]`, as the model does before the cache.
    pub fn rotate(&self, vector: &mut [f32]) {
        let scaling = self.rope.scaling;
        self.each_pair(vector, |a, b, cos, sin| {
            ((a * cos - b * sin) * scaling, (b * cos + a * sin) * scaling)
        });
    }

    /// Undoes [`Turn::rotate`], up to rounding: `vector`, `[head_dim]`, is what it was before the rotation.
    pub fn unrotate(&self, vector: &mut [f32]) {
        let scaling = self.rope.scaling;
        self.each_pair(vector, |a, b, cos, sin| {
            ((a * cos + b * sin) / scaling, (b * cos - a * sin) / scaling)
        });
    }

    fn each_pair(&self, vector: &mut [f32], turn: impl Fn(f32, f32, f32, f32) -> (f32, f32)) {
        let pairs = self.cos_sin.len().min(vector.len() / 2);
        for (pair, &(cos, sin)) in self.cos_sin.iter().enumerate().take(pairs) {
            let (first, second) = match self.rope.style {
                Style::RotateHalf => (pair, pair + self.cos_sin.len()),
                Style::Interleaved => (2 * pair, 2 * pair + 1),
            };
            (vector[first], vector[second]) = turn(vector[first], vector[second], cos, sin);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to binary32 is wanted")]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::KeyState;

    fn rope(style: &str, inv_freq: Vec<f64>, scaling: f64) -> Rope {
        let info = RopeInfo {
            style: style.to_owned(),
            theta: 10_000.0,
            scaling: None,
            keys: KeyState::PostRope,
            inv_freq: Some(inv_freq),
            attention_scaling: Some(scaling),
        };
        Rope::new(&info).unwrap()
    }

    #[test]
    fn a_quarter_turn_moves_the_first_channel_of_a_pair_to_the_second() {
        let quarter = std::f64::consts::FRAC_PI_2;
        let mut halves = [1.0, 0.0, 0.0, 5.0];
        rope("rotate-half", vec![quarter, 0.0], 2.0).at(Pos::new(1)).rotate(&mut halves);
        assert!(
            halves[0].abs() < 1e-6 && (halves[2] - 2.0).abs() < 1e-6 && (halves[3] - 10.0).abs() < 1e-6,
            "{halves:?}"
        );
        let mut pairs = [1.0, 0.0, 0.0, 5.0];
        rope("interleaved", vec![quarter, 0.0], 1.0).at(Pos::new(1)).rotate(&mut pairs);
        assert!(
            pairs[0].abs() < 1e-6 && (pairs[1] - 1.0).abs() < 1e-6 && (pairs[3] - 5.0).abs() < 1e-6,
            "{pairs:?}"
        );
    }

    #[test]
    fn the_mean_turn_is_the_mean_of_turned_vectors() {
        let rope = rope("rotate-half", vec![1.0, 0.1], 1.5);
        let vector = [1.0, -2.0, 0.5, 3.0];
        let mut found = vector;
        rope.mean(5..9).rotate(&mut found);
        for (channel, found) in found.into_iter().enumerate() {
            let turned = |pos| {
                let mut turned = vector;
                rope.at(Pos::new(pos)).rotate(&mut turned);
                turned[channel]
            };
            let expected: f32 = (5..9).map(|pos| turned(pos) / 4.0).sum();
            assert!((found - expected).abs() < 1e-5, "{found} against {expected}");
        }
    }

    #[test]
    fn turning_back_undoes_turning_at_every_position() {
        for style in ["rotate-half", "interleaved"] {
            // Three pairs of eight channels: the last two are not rotated.
            let rope = rope(style, vec![1.0, 0.1, 0.003], 0.8);
            for pos in [0, 1, 77, 131_071] {
                let vector = [0.5, -1.0, 2.0, 3.5, -0.25, 8.0, 4.0, -6.0];
                let mut turned = vector;
                rope.at(Pos::new(pos)).rotate(&mut turned);
                rope.at(Pos::new(pos)).unrotate(&mut turned);
                assert!(turned.iter().zip(vector).all(|(a, b)| (a - b).abs() < 1e-5), "{pos}: {turned:?}");
                assert_eq!(turned[6..], vector[6..]);
            }
        }
    }
}
