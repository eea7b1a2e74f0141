//! Which problem is for what: a share to search with, one to test on, one to report on.

use crate::results::sha256_hex;
use serde::{Deserialize, Serialize};

/// What a problem is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Chooses which settings are tested, and in which order. Nothing is claimed from it.
    Search,
    /// Tests them.
    Calibration,
    /// Touched by neither: what is expected of the setting is measured here.
    Test,
}

/// Shares of the problems, the rest being for tests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// For the search.
    pub search: f64,
    /// For calibration.
    pub calibration: f64,
}

impl Shares {
    /// The part of the problem `item`, by a hash of seed and id: it depends on no other problem, so adding some moves none, and
    /// everything recorded of one problem is in one part.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    pub fn part(&self, item: &str, seed: u64) -> Part {
        let digest = sha256_hex(format!("kvlab split 1\0{seed}\0{item}").as_bytes());
        let bits = u64::from_str_radix(&digest[..16], 16).unwrap_or(0);
        let at = (bits >> 11) as f64 / 9_007_199_254_740_992.0;
        if at < self.search {
            Part::Search
        } else if at < self.search + self.calibration {
            Part::Calibration
        } else {
            Part::Test
        }
    }
}

/// Problems by part, as indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// For the search.
    pub search: Vec<usize>,
    /// For calibration.
    pub calibration: Vec<usize>,
    /// For tests.
    pub test: Vec<usize>,
}

impl Split {
    /// The split of `items`.
    #[must_use]
    pub fn of<'a>(items: impl IntoIterator<Item = &'a str>, shares: Shares, seed: u64) -> Self {
        let mut split = Self::default();
        for (at, item) in items.into_iter().enumerate() {
            match shares.part(item, seed) {
                Part::Search => split.search.push(at),
                Part::Calibration => split.calibration.push(at),
                Part::Test => split.test.push(at),
            }
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_problems_moves_none_and_shares_are_met() {
        let shares = Shares { search: 0.25, calibration: 0.5 };
        let items: Vec<String> = (0..4000).map(|at| format!("p-{at}")).collect();
        let of = |count: usize| Split::of(items[..count].iter().map(String::as_str), shares, 7);
        let (few, many) = (of(1000), of(4000));
        assert_eq!(many.calibration[..few.calibration.len()], few.calibration);
        assert_eq!(many.search.len() + many.calibration.len() + many.test.len(), 4000);
        // Five standard deviations of a binomial: 5 · √(4000 · ¼) = 158 and 5 · √(4000 · 3/16) = 137.
        assert!(many.calibration.len().abs_diff(2000) < 158 && many.search.len().abs_diff(1000) < 137);
        assert_ne!(of(1000), Split::of(items[..1000].iter().map(String::as_str), shares, 8));
    }
}
