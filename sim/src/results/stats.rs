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
        self.ratios(&[terms.to_vec()]).pop().flatten()
    }

    /// [`Bootstrap::ratio`] of several `terms`, bit for bit, in a fraction of the time: a resample is walked through once for all of them.
    #[must_use]
    pub fn ratios(&self, terms: &[Vec<(f64, f64)>]) -> Vec<Option<Estimate>> {
        // Of each group, numerator and denominator of each ratio: what one step of a walk adds.
        let width = 2 * terms.len();
        let mut groups = vec![0.0; self.groups * width];
        for (at, terms) in terms.iter().enumerate() {
            for (&group, term) in self.group_of.iter().zip(terms) {
                groups[group * width + 2 * at] += term.0;
                groups[group * width + 2 * at + 1] += term.1;
            }
        }
        let mut sums = vec![0.0; width];
        let walk = |sums: &mut [f64], picked: &mut dyn Iterator<Item = usize>| {
            sums.fill(0.0);
            for group in picked {
                let step = &groups[group * width..(group + 1) * width];
                sums.iter_mut().zip(step).for_each(|(sum, term)| *sum += term);
            }
        };
        let value_of = |sums: &[f64], at: usize| {
            let (num, den) = (sums[2 * at], sums[2 * at + 1]);
            (den > 0.0).then(|| num / den)
        };
        walk(&mut sums, &mut (0..self.groups));
        let values: Vec<Option<f64>> = (0..terms.len()).map(|at| value_of(&sums, at)).collect();
        let mut resampled: Vec<Vec<f64>> = vec![Vec::with_capacity(self.draws.len()); terms.len()];
        for draw in &self.draws {
            walk(&mut sums, &mut draw.iter().copied());
            for (at, resampled) in resampled.iter_mut().enumerate() {
                resampled.extend(value_of(&sums, at));
            }
        }
        let estimate = |(value, mut resampled): (Option<f64>, Vec<f64>)| {
            let value = value?;
            resampled.sort_unstable_by(f64::total_cmp);
            let n = resampled.len();
            let interval =
                (n > 0).then(|| (resampled[n * 25 / 1000], resampled[(n * 975).div_ceil(1000).max(1) - 1]));
            let se = (n > 1).then(|| standard_deviation(&resampled));
            Some(Estimate { value, interval, se })
        };
        values.into_iter().zip(resampled).map(estimate).collect()
    }

    /// Mean over sequences that have a value, with its interval.
    #[must_use]
    pub fn mean(&self, values: &[Option<f64>]) -> Option<Estimate> {
        self.ratio(&Self::terms_of(values))
    }

    /// The terms of the mean over sequences that have a value.
    #[must_use]
    pub fn terms_of(values: &[Option<f64>]) -> Vec<(f64, f64)> {
        values.iter().map(|value| value.map_or((0.0, 0.0), |v| (v, 1.0))).collect()
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

    /// The estimate as it is defined, one ratio at a time.
    fn by_definition(bootstrap: &Bootstrap, terms: &[(f64, f64)]) -> Option<Estimate> {
        let of = |picked: &mut dyn Iterator<Item = usize>| {
            let group = |g: usize| {
                let of_group = bootstrap.group_of.iter().zip(terms).filter(move |(group, _)| **group == g);
                of_group.fold((0.0, 0.0), |(n, d), (_, term)| (n + term.0, d + term.1))
            };
            let (num, den) = picked.map(group).fold((0.0, 0.0), |(n, d), g| (n + g.0, d + g.1));
            (den > 0.0).then(|| num / den)
        };
        let value = of(&mut (0..bootstrap.groups))?;
        let mut all: Vec<f64> =
            bootstrap.draws.iter().filter_map(|draw| of(&mut draw.iter().copied())).collect();
        all.sort_unstable_by(f64::total_cmp);
        let n = all.len();
        let interval = (n > 0).then(|| (all[n * 25 / 1000], all[(n * 975).div_ceil(1000).max(1) - 1]));
        Some(Estimate { value, interval, se: (n > 1).then(|| standard_deviation(&all)) })
    }

    /// Fractions whose sums depend on their order, counts, denominators that are mostly 0, and problems of several sequences: the same bits.
    #[test]
    fn many_ratios_at_once_are_the_bits_of_each_alone() {
        let items: Vec<String> = (0..23).map(|at| (at / 2).to_string()).collect();
        let bootstrap = Bootstrap::by_item(items.iter().map(String::as_str));
        let column =
            |of: fn(f64) -> (f64, f64)| -> Vec<(f64, f64)> { (0..23).map(|at| of(f64::from(at))).collect() };
        let columns = [
            column(|x| (x / 7.0, 0.1 + x / 3.0)),
            column(|x| (x % 3.0, 5.0)),
            column(|x| (0.3, if x < 2.0 { 0.7 } else { 0.0 })),
            column(|_| (0.0, 0.0)),
            column(|x| (-x, 1.0)),
        ];
        let together = bootstrap.ratios(&columns);
        assert!(together[3].is_none() && together[2].is_some());
        for (found, terms) in together.iter().zip(&columns) {
            let bits = |estimate: Option<Estimate>| {
                estimate.map(|e| {
                    let (low, high) = e.interval.unwrap();
                    [e.value, low, high, e.se.unwrap()].map(f64::to_bits)
                })
            };
            assert_eq!(bits(*found), bits(by_definition(&bootstrap, terms)));
            assert_eq!(bits(*found), bits(bootstrap.ratio(terms)));
        }
    }

    #[test]
    fn no_denominator_gives_no_number() {
        assert!(Bootstrap::by_item(["a", "b"]).ratio(&[(0.0, 0.0); 2]).is_none());
    }
}
