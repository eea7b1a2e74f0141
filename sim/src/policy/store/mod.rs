//! Store policies: in which representation kept keys and values are stored.
//!
//! A policy names a precision for each resident token; what is read back is a function of the vector and the precision
//! alone. Bytes count scales and zero points.

pub mod exact;
pub mod half;
pub mod mixed;
pub mod per_token_int;

use super::{HeadData, Magnitude, PolicyError, PolicySpec};
use crate::types::Pos;
use serde::{Deserialize, Serialize};

/// The representation of one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precision {
    /// As the model made it.
    Exact,
    /// IEEE binary16.
    Half,
    /// Integers of `bits` in groups of `group` channels, each with a scale and a smallest value in binary16.
    Int {
        /// Bits a channel: 2, 4 or 8.
        bits: u8,
        /// Channels a group; a head's last group may be shorter.
        group: u16,
    },
}

impl Precision {
    /// What is read back of `vector`.
    #[must_use]
    pub fn read_back(self, vector: &[f32]) -> Vec<f32> {
        match self {
            Self::Exact => vector.to_vec(),
            Self::Half => vector.iter().map(|&x| through_half(x)).collect(),
            Self::Int { bits, group } => {
                vector.chunks(usize::from(group.max(1))).flat_map(|group| quantised(group, bits)).collect()
            }
        }
    }

    /// Bits of a stored vector of `head_dim` channels, scales and smallest values included; one that is as the model made
    /// it counts `exact_bits` a channel.
    #[must_use]
    pub fn bits(self, head_dim: usize, exact_bits: usize) -> usize {
        match self {
            Self::Exact => exact_bits * head_dim,
            Self::Half => 16 * head_dim,
            Self::Int { bits, group } => {
                usize::from(bits) * head_dim + head_dim.div_ceil(usize::from(group.max(1))) * 32
            }
        }
    }

    /// Bits a channel keeps of what it was.
    pub(super) fn rank(self) -> u8 {
        match self {
            Self::Exact => 32,
            Self::Half => 16,
            Self::Int { bits, .. } => bits,
        }
    }

    /// `self`, or `other` where that keeps less.
    fn lowered(self, other: Self) -> Self {
        if other.rank() < self.rank() { other } else { self }
    }

    /// The squared error of what is read back of `vector`.
    #[must_use]
    pub fn squared_error(self, vector: &[f32]) -> f64 {
        self.read_back(vector).iter().zip(vector).fold(0.0, |total, (found, x)| {
            let apart = f64::from(*found) - f64::from(*x);
            total + apart * apart
        })
    }
}

fn through_half(x: f32) -> f32 {
    ::half::f16::from_f32(x).to_f32()
}

/// Rounds to the nearest of 2^bits levels between the smallest and the largest channel.
#[expect(clippy::cast_precision_loss, reason = "at most 255 levels")]
fn quantised(group: &[f32], bits: u8) -> Vec<f32> {
    let levels = ((1u32 << bits.min(8)) - 1) as f32;
    let (low, high) =
        group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)));
    let low = through_half(low);
    let scale = through_half((high - low) / levels);
    if !(scale > 0.0) {
        return group.iter().map(|x| low + 0.0 * x).collect();
    }
    group.iter().map(|x| ((x - low) / scale).round_ties_even().clamp(0.0, levels) * scale + low).collect()
}

/// One KV head whose tokens are to be stored.
#[derive(Clone)]
pub struct StoreView<'a> {
    /// Vectors by original position.
    pub data: &'a dyn HeadData,
    /// Resident tokens in slot order, `[slot]`.
    pub resident: &'a [Pos],
    /// How each is stored now, `[slot]`: a new token as the model made it. What was lost does not come back.
    pub held: &'a [Stored],
}

impl std::fmt::Debug for StoreView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreView").field("resident", &self.resident.len()).finish_non_exhaustive()
    }
}

/// Precisions of the key and the value of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Of the key.
    pub key: Precision,
    /// Of the value.
    pub value: Precision,
}

impl Stored {
    /// As the model made both.
    pub const EXACT: Self = Self { key: Precision::Exact, value: Precision::Exact };

    /// Key and value, each at the lower of two precisions: a token that was stored in fewer bits does not get better.
    #[must_use]
    pub fn lowered(self, other: Self) -> Self {
        Self { key: self.key.lowered(other.key), value: self.value.lowered(other.value) }
    }

    /// Bits of a key and a value of `head_dim` channels; see [`Precision::bits`].
    #[must_use]
    pub fn bits(self, head_dim: usize, exact_bits: usize) -> usize {
        self.key.bits(head_dim, exact_bits) + self.value.bits(head_dim, exact_bits)
    }
}

/// Chooses the representation of each resident token.
pub trait Store: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// The precisions of each resident token, `[slot]`.
    ///
    /// # Errors
    /// When a magnitude is no number.
    fn store(&self, view: &StoreView<'_>) -> Result<Vec<Stored>, PolicyError>;

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}

/// Sums that a correlation is made of; sums of parts can be added in any fixed order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    count: u64,
    x: f64,
    y: f64,
    xx: f64,
    yy: f64,
    xy: f64,
}

impl Moments {
    /// Takes in one pair.
    pub fn add(&mut self, x: f64, y: f64) {
        self.count += 1;
        (self.x, self.y) = (self.x + x, self.y + y);
        (self.xx, self.yy, self.xy) = (self.xx + x * x, self.yy + y * y, self.xy + x * y);
    }

    /// Takes in the pairs of another.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        (self.x, self.y) = (self.x + other.x, self.y + other.y);
        (self.xx, self.yy, self.xy) = (self.xx + other.xx, self.yy + other.yy, self.xy + other.xy);
    }

    /// Pairs taken in.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Pearson's correlation; absent with fewer than two pairs or where one side does not vary.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub fn correlation(&self) -> Option<f64> {
        let n = self.count as f64;
        let (vx, vy) = (n * self.xx - self.x * self.x, n * self.yy - self.y * self.y);
        (self.count > 1 && vx > 0.0 && vy > 0.0)
            .then(|| ((n * self.xy - self.x * self.y) / (vx.sqrt() * vy.sqrt())).clamp(-1.0, 1.0))
    }
}

/// The study of VaSE: the range of each value against the squared error of its reconstruction, over `values` at positions
/// from `skipped` on (sinks are left out there).
#[must_use]
pub fn range_against_error<'v>(
    values: impl Iterator<Item = &'v [f32]>,
    precision: Precision,
    skipped: usize,
) -> Moments {
    let mut moments = Moments::default();
    for value in values.skip(skipped) {
        moments.add(f64::from(Magnitude::Range.of(value)), precision.squared_error(value));
    }
    moments
}

/// Bits a channel that a parameter may name.
fn check_bits(kind: &'static str, param: &'static str, bits: u8) -> Result<(), PolicyError> {
    if matches!(bits, 2 | 4 | 8) {
        return Ok(());
    }
    Err(PolicyError::OutOfRange { kind, param, found: bits.to_string(), accepted: "2, 4 or 8" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTOR: [f32; 8] = [-3.0, 1.0, 0.5, 4.0, 0.25, 0.0, -0.125, 2.0];

    #[test]
    fn more_bits_and_smaller_groups_lose_less() {
        let error = |bits, group| Precision::Int { bits, group }.squared_error(&VECTOR);
        assert!(error(8, 8) < error(4, 8) && error(4, 8) < error(2, 8));
        assert!(error(2, 2) < error(2, 8));
        assert!(Precision::Half.squared_error(&VECTOR) < 1e-6);
    }

    // By hand: 2 bits over [-3, 4] in one group: the scale is 7/3 (2.334 as binary16), levels -3, -0.666, 1.668, 4.002.
    // 0.5 is just below the middle of two of them.
    #[test]
    fn two_bits_are_four_levels() {
        let found = Precision::Int { bits: 2, group: 8 }.read_back(&VECTOR);
        let scale = half_of(7.0 / 3.0);
        for (found, level) in found.iter().zip([0.0f32, 2.0, 1.0, 3.0, 1.0, 1.0, 1.0, 2.0]) {
            assert!((found - (level * scale - 3.0)).abs() < 1e-6, "{found}");
        }
    }

    fn half_of(x: f32) -> f32 {
        ::half::f16::from_f32(x).to_f32()
    }

    #[test]
    fn levels_are_at_most_half_a_step_away() {
        for bits in [2u8, 4, 8] {
            let step = half_of(7.0 / (f32::from(bits).exp2() - 1.0));
            let found = Precision::Int { bits, group: 8 }.read_back(&VECTOR);
            assert!(found.iter().zip(VECTOR).all(|(f, x)| (f - x).abs() <= 0.51 * step), "{bits}: {found:?}");
        }
        let still = Precision::Int { bits: 2, group: 8 }.read_back(&[1.5; 8]);
        assert!(still.iter().all(|x| (x - 1.5).abs() < 1e-6), "a still group is exact");
    }

    #[test]
    fn bytes_count_scales_and_smallest_values() {
        let int = Precision::Int { bits: 4, group: 32 };
        assert_eq!((Precision::Half.bits(64, 32), int.bits(64, 32)), (1024, 256 + 64));
        assert_eq!(Precision::Exact.bits(64, 32), 2048, "at the width that the study says");
        assert_eq!(Stored { key: int, value: Precision::Half }.bits(64, 16), 320 + 1024);
    }

    #[test]
    fn what_was_stored_in_fewer_bits_does_not_get_better() {
        let [two, eight] = [2, 8].map(|bits| Precision::Int { bits, group: 32 });
        let (half, exact) = (Precision::Half, Precision::Exact);
        let stored = Stored { key: two, value: half };
        assert_eq!(stored.lowered(Stored { key: eight, value: exact }), stored);
        assert_eq!(Stored::EXACT.lowered(stored), stored);
        assert_eq!(stored.lowered(Stored { key: half, value: eight }), Stored { key: two, value: eight });
    }

    #[test]
    fn correlation_is_pearsons() {
        let mut all = Moments::default();
        [(1.0, 2.0), (2.0, 1.0), (3.0, 4.0), (4.0, 3.0)].into_iter().for_each(|(x, y)| all.add(x, y));
        assert!((all.correlation().unwrap() - 0.6).abs() < 1e-12);
        let (mut a, mut b) = (Moments::default(), Moments::default());
        [(1.0, 2.0), (2.0, 1.0)].into_iter().for_each(|(x, y)| a.add(x, y));
        [(3.0, 4.0), (4.0, 3.0)].into_iter().for_each(|(x, y)| b.add(x, y));
        a.merge(&b);
        assert_eq!(a, all);
        assert_eq!(Moments::default().correlation(), None);
    }

    #[test]
    fn wide_values_lose_more() {
        let values: Vec<Vec<f32>> =
            (1..40u8).map(|i| VECTOR.iter().map(|x| x * f32::from(i) / 10.0).collect()).collect();
        let rows = || values.iter().map(Vec::as_slice);
        let moments = range_against_error(rows(), Precision::Int { bits: 2, group: 8 }, 4);
        assert_eq!(moments.count(), 35);
        assert!(moments.correlation().unwrap() > 0.9);
    }
}
