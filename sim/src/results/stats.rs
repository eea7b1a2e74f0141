//! Bootstrap intervals by problem: the same resamples for every cell, so that cells can be compared in pairs.

use crate::rng::{Purpose, StreamKey};
use std::collections::BTreeMap;

const RESAMPLES: usize = 1000;

/// Resamples of the problems behind a set of sequences.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// The problem of each sequence, `[sequence]`.
    group_of: Vec<usize>,
    groups: usize,
    /// Groups drawn, `[resample][draw]`.
    draws: Vec<Vec<usize>>,
}

/// A ratio of sums with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Sum of numerators over sum of denominators.
    pub value: f64,
    /// 95 % percentile interval; absent with fewer than two problems.
    pub interval: Option<(f64, f64)>,
    /// Standard error: the standard deviation over the resamples; absent where the interval is.
    pub se: Option<f64>,
}

impl Bootstrap {
    /// Resamples for sequences of these problems, `[sequence]`; those of one problem stay together.
    #[must_use]
    pub fn by_item<'a>(item_of: impl IntoIterator<Item = &'a str>) -> Self {
        // Groups are numbered as their items come.
        let mut items: BTreeMap<&str, usize> = BTreeMap::new();
        let mut group_of = Vec::new();
        for item in item_of {
            let next = items.len();
            group_of.push(*items.entry(item).or_insert(next));
        }
        let groups = items.len();
        let mut stream = StreamKey::new(0, Purpose::Report, "bootstrap").stream();
        let mut draw = || usize::try_from(stream.below(groups.max(1) as u64)).unwrap_or(0);
        let draws = if groups < 2 {
            Vec::new()
        } else {
            (0..RESAMPLES).map(|_| (0..groups).map(|_| draw()).collect()).collect()
        };
        Self { group_of, groups, draws }
    }

    /// Σ numerator / Σ denominator with its interval; nothing when there is no denominator.
    ///
    /// `terms` has one (numerator, denominator) a sequence.
    #[must_use]
    pub fn ratio(&self, terms: &[(f64, f64)]) -> Option<Estimate> {
        let mut groups = vec![(0.0, 0.0); self.groups];
        for (&group, term) in self.group_of.iter().zip(terms) {
            groups[group].0 += term.0;
            groups[group].1 += term.1;
        }
        let of = |picked: &mut dyn Iterator<Item = usize>| {
            let (num, den) = picked.fold((0.0, 0.0), |(n, d), g| (n + groups[g].0, d + groups[g].1));
            (den > 0.0).then(|| num / den)
        };
        let value = of(&mut (0..self.groups))?;
        let mut resampled: Vec<f64> =
            self.draws.iter().filter_map(|draw| of(&mut draw.iter().copied())).collect();
        resampled.sort_unstable_by(f64::total_cmp);
        let n = resampled.len();
        let interval =
            (n > 0).then(|| (resampled[n * 25 / 1000], resampled[(n * 975).div_ceil(1000).max(1) - 1]));
        let se = (n > 1).then(|| standard_deviation(&resampled));
        Some(Estimate { value, interval, se })
    }

    /// Mean over sequences that have a value, with its interval.
    #[must_use]
    pub fn mean(&self, values: &[Option<f64>]) -> Option<Estimate> {
        let terms: Vec<(f64, f64)> =
            values.iter().map(|value| value.map_or((0.0, 0.0), |v| (v, 1.0))).collect();
        self.ratio(&terms)
    }
}

/// Around the mean, over n - 1; sums in the order given. Equal values have none.
#[expect(clippy::cast_precision_loss, reason = "resamples are few")]
fn standard_deviation(values: &[f64]) -> f64 {
    // From the first value on, so that equal ones give 0 and not a rounding.
    let first = values.first().copied().unwrap_or(0.0);
    let n = values.len() as f64;
    let mean = values.iter().map(|x| x - first).sum::<f64>() / n;
    let squares: f64 = values.iter().map(|x| (x - first - mean) * (x - first - mean)).sum();
    (squares / (n - 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_problem_has_no_interval_however_many_branches() {
        let estimate = Bootstrap::by_item(["a", "a"]).mean(&[Some(1.0), Some(3.0)]).unwrap();
        assert_eq!(estimate, Estimate { value: 2.0, interval: None, se: None });
    }

    #[test]
    fn equal_values_have_an_interval_of_zero_width() {
        let estimate = Bootstrap::by_item(["a", "b", "c"]).mean(&[Some(0.5); 3]).unwrap();
        assert_eq!(estimate, Estimate { value: 0.5, interval: Some((0.5, 0.5)), se: Some(0.0) });
    }

    #[test]
    fn the_interval_covers_the_mean_and_is_as_wide_as_theory_says() {
        // 100 problems, half 0 and half 1: the standard error is 0.05, so the interval is about 0.5 ± 0.098.
        let items: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        let values: Vec<Option<f64>> = (0..100).map(|i| Some(f64::from(i % 2))).collect();
        let estimate = Bootstrap::by_item(items.iter().map(String::as_str)).mean(&values).unwrap();
        let (low, high) = estimate.interval.unwrap();
        let se = estimate.se.unwrap();
        assert!((se - 0.05).abs() < 0.005, "{se}");
        assert!((low - 0.402).abs() < 0.03 && (high - 0.598).abs() < 0.03, "{low} {high}");
    }

    #[test]
    fn no_denominator_gives_no_number() {
        assert!(Bootstrap::by_item(["a", "b"]).ratio(&[(0.0, 0.0); 2]).is_none());
    }
}
