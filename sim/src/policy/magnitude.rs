//! How large a value state is: the measures that reserves and scorers share.

use super::HeadData;
use crate::num;
use crate::types::Pos;
use serde::{Deserialize, Serialize};

/// A measure of one vector over its channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Magnitude {
    /// Largest minus smallest channel (VaSE).
    #[default]
    Range,
    /// Sum of absolute values (VATP).
    L1,
    /// Euclidean norm.
    L2,
    /// Unbiased variance.
    Variance,
    /// Largest absolute value.
    Absmax,
}

impl Magnitude {
    /// How many measures there are.
    pub(crate) const COUNT: usize = Self::Absmax as usize + 1;

    /// The measure of `vector`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "heads are a few hundred wide")]
    pub fn of(self, vector: &[f32]) -> f32 {
        match self {
            Self::Range => num::range(vector),
            Self::L1 => num::sum(&vector.iter().map(|x| x.abs()).collect::<Vec<_>>()),
            Self::L2 => num::dot(vector, vector).sqrt(),
            Self::Variance => {
                let mean = num::sum(vector) / vector.len() as f32;
                let apart: Vec<f32> = vector.iter().map(|x| x - mean).collect();
                num::dot(&apart, &apart) / (vector.len().saturating_sub(1).max(1) as f32)
            }
            Self::Absmax => {
                vector.iter().fold(0.0, |most, x| if x.abs() > most { x.abs() } else { most + 0.0 * x })
            }
        }
    }

    /// The measure of the value at `pos`.
    #[must_use]
    pub fn of_value(self, data: &dyn HeadData, pos: Pos) -> f32 {
        match self {
            Self::Range => data.value_range(pos),
            _ => self.of(data.value(pos)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Golden vector G16 of the policy specification.
    #[test]
    fn measures_are_the_golden_ones() {
        let vector = [-3.0, 1.0, 0.5, 4.0];
        for (measure, expected) in [
            (Magnitude::Range, 7.0),
            (Magnitude::L1, 8.5),
            (Magnitude::L2, 5.123_475),
            (Magnitude::Variance, 8.229_167),
            (Magnitude::Absmax, 4.0),
        ] {
            let found = measure.of(&vector);
            assert!((found - expected).abs() < 1e-5, "{measure:?}: {found}");
        }
    }

    #[test]
    fn a_nan_is_never_hidden() {
        for measure in [Magnitude::L1, Magnitude::L2, Magnitude::Variance, Magnitude::Absmax] {
            assert!(measure.of(&[1.0, f32::NAN, 2.0]).is_nan(), "{measure:?}");
        }
    }
}
