//! Which of several hypotheses may be rejected together, so that the probability of one wrong rejection stays below δ.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the tests of several settings are corrected for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// In the order of the path, each at level δ, up to the first that is not rejected. Valid because the order was fixed before any
    /// of these losses was looked at: a wrong rejection needs the first true hypothesis of the order to be rejected.
    #[default]
    FixedSequence,
    /// The k-th smallest of m p-values at level δ / (m − k + 1), up to the first that is not rejected (Holm 1979); any dependence.
    Holm,
    /// Each of m at level δ / m.
    Bonferroni,
}

impl Method {
    /// The word used in scenarios.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::FixedSequence => "fixed-sequence",
            Self::Holm => "holm",
            Self::Bonferroni => "bonferroni",
        }
    }

    /// Whether each hypothesis is rejected, `[hypothesis]`, from p-values in the order of the path.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a path is short")]
    pub fn rejected(self, p_values: &[f64], delta: f64) -> Vec<bool> {
        let m = p_values.len();
        let mut rejected = vec![false; m];
        match self {
            Self::FixedSequence => {
                for (is_rejected, _) in rejected.iter_mut().zip(p_values.iter().take_while(|p| **p <= delta))
                {
                    *is_rejected = true;
                }
            }
            Self::Holm => {
                let mut order: Vec<usize> = (0..m).collect();
                order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]).then(a.cmp(&b)));
                for (rank, &at) in order.iter().enumerate() {
                    if !(p_values[at] <= delta / (m - rank) as f64) {
                        break;
                    }
                    rejected[at] = true;
                }
            }
            Self::Bonferroni => {
                for (is_rejected, p) in rejected.iter_mut().zip(p_values) {
                    *is_rejected = *p <= delta / m as f64;
                }
            }
        }
        rejected
    }

    /// The level of the first test among m: what a setting must reach at the least favourable place.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a path is short")]
    pub fn first_level(self, m: usize, delta: f64) -> f64 {
        match self {
            Self::FixedSequence => delta,
            Self::Holm | Self::Bonferroni => delta / m.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: Holm's levels for four are 0.0125, 0.0167, 0.025 and 0.05.
    #[test]
    fn what_each_method_rejects() {
        let p = [0.01, 0.04, 0.03, 0.015];
        assert_eq!(Method::FixedSequence.rejected(&p, 0.05), [true; 4]);
        assert_eq!(Method::FixedSequence.rejected(&p, 0.03), [true, false, false, false]);
        assert_eq!(Method::Holm.rejected(&p, 0.05), [true, false, false, true]);
        assert_eq!(Method::Bonferroni.rejected(&p, 0.05), [true, false, false, false]);
        assert_eq!(Method::Holm.rejected(&[f64::NAN, 0.001], 0.05), [false, true]);
        assert!(Method::FixedSequence.rejected(&[], 0.05).is_empty());
    }
}
