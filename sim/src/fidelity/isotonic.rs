//! A rising curve through points: isotonic regression by pooling adjacent violators.

use serde::{Deserialize, Serialize};

/// A curve that never falls, linear between its knots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Isotonic {
    /// Where the knots are, rising.
    x: Vec<f64>,
    /// Their heights, never falling.
    y: Vec<f64>,
}

impl Isotonic {
    /// The rising curve of least squared distance to `points`, each (x, y, weight). Points with the same x are one, with their mean.
    /// Nothing without a point, or when one of them is no number or its weight is not above 0.
    ///
    /// Pool adjacent violators (Barlow et al. 1972); between the middles of pools the curve is linear, as scikit-learn's
    /// `IsotonicRegression` is between its points.
    #[must_use]
    pub fn fit(points: &[(f64, f64, f64)]) -> Option<Self> {
        let is_number =
            |&(x, y, w): &(f64, f64, f64)| x.is_finite() && y.is_finite() && w.is_finite() && w > 0.0;
        if points.is_empty() || !points.iter().all(is_number) {
            return None;
        }
        let mut sorted = points.to_vec();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut pools: Vec<Pool> = Vec::new();
        for (x, y, weight) in sorted {
            match pools.last_mut().filter(|last| last.first >= x && last.last <= x) {
                Some(last) => last.add(&Pool::of(x, y, weight)),
                None => pools.push(Pool::of(x, y, weight)),
            }
        }
        let mut merged: Vec<Pool> = Vec::new();
        for pool in pools {
            merged.push(pool);
            while let [.., before, last] = merged.as_slice() {
                if before.height() < last.height() {
                    break;
                }
                let last = *last;
                merged.pop();
                if let Some(before) = merged.last_mut() {
                    before.add(&last);
                }
            }
        }
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for pool in merged {
            x.push(pool.first);
            y.push(pool.height());
            if pool.last > pool.first {
                x.push(pool.last);
                y.push(pool.height());
            }
        }
        Some(Self { x, y })
    }

    /// The height at `x`; outside of the knots, that of the nearest.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let above = self.x.partition_point(|knot| *knot <= x);
        match (above.checked_sub(1), self.x.get(above)) {
            (None, _) => self.y[0],
            (Some(below), None) => self.y[below],
            (Some(below), Some(next)) => {
                let share = (x - self.x[below]) / (next - self.x[below]);
                self.y[below] + share * (self.y[above] - self.y[below])
            }
        }
    }

    /// From the first knot to the last.
    #[must_use]
    pub fn range(&self) -> (f64, f64) {
        (self.x[0], self.x[self.x.len() - 1])
    }

    /// Knots, (x, y).
    pub fn knots(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.x.iter().copied().zip(self.y.iter().copied())
    }

    /// Whether it is a curve: as many heights as knots, at least one, in order.
    pub(super) fn is_sound(&self) -> bool {
        let numbers = self.x.iter().chain(&self.y).all(|value| value.is_finite());
        let rises = |values: &[f64]| values.windows(2).all(|pair| pair[0] <= pair[1]);
        let distinct = self.x.windows(2).all(|pair| pair[0] < pair[1]);
        !self.x.is_empty() && self.x.len() == self.y.len() && numbers && distinct && rises(&self.y)
    }
}

/// Points that share a height.
#[derive(Clone, Copy)]
struct Pool {
    first: f64,
    last: f64,
    sum: f64,
    weight: f64,
}

impl Pool {
    fn of(x: f64, y: f64, weight: f64) -> Self {
        Self { first: x, last: x, sum: y * weight, weight }
    }

    fn add(&mut self, other: &Self) {
        self.last = other.last;
        self.sum += other.sum;
        self.weight += other.weight;
    }

    fn height(&self) -> f64 {
        self.sum / self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points() -> impl Strategy<Value = Vec<(f64, f64, f64)>> {
        let number = -8i32..8;
        prop::collection::vec((number.clone(), number, 1u32..4), 1..24).prop_map(|points| {
            points.into_iter().map(|(x, y, w)| (f64::from(x) / 4.0, f64::from(y), f64::from(w))).collect()
        })
    }

    /// `sklearn.isotonic.IsotonicRegression` 1.9.1 on the same points.
    #[test]
    fn a_known_curve() {
        let points = [(1.0, 1.0, 1.0), (2.0, 3.0, 1.0), (3.0, 2.0, 1.0), (4.0, 4.0, 1.0), (5.0, 3.5, 2.0)];
        let curve = Isotonic::fit(&points).unwrap();
        let expected = [(1.0, 1.0), (2.0, 2.5), (3.0, 2.5), (4.0, 11.0 / 3.0), (5.0, 11.0 / 3.0)];
        for (x, y) in expected {
            assert!((curve.at(x) - y).abs() < 1e-12, "{x}: {}", curve.at(x));
        }
        assert!((curve.at(1.5) - 1.75).abs() < 1e-12);
        assert_eq!(curve.range(), (1.0, 5.0));
        assert!(Isotonic::fit(&[]).is_none() && Isotonic::fit(&[(f64::NAN, 0.0, 1.0)]).is_none());
    }

    proptest! {
        #[test]
        fn curves_rise_and_keep_the_mean(points in points()) {
            let curve = Isotonic::fit(&points).unwrap();
            prop_assert!(curve.is_sound());
            let total = |of: &dyn Fn(&(f64, f64, f64)) -> f64| points.iter().map(|p| of(p) * p.2).sum::<f64>();
            prop_assert!((total(&|p| p.1) - total(&|p| curve.at(p.0))).abs() < 1e-9, "{curve:?}");
        }

        /// No rising curve on a lattice that a naive search tries is nearer than the fitted one.
        #[test]
        fn no_other_rising_curve_is_nearer(points in points(), shifts in prop::collection::vec(-3i32..3, 24)) {
            let curve = Isotonic::fit(&points).unwrap();
            let mut xs: Vec<f64> = points.iter().map(|p| p.0).collect();
            xs.sort_by(f64::total_cmp);
            xs.dedup();
            let mut heights: Vec<f64> =
                xs.iter().zip(&shifts).map(|(x, shift)| curve.at(*x) + f64::from(*shift) / 8.0).collect();
            heights.sort_by(f64::total_cmp);
            let distance = |of: &dyn Fn(f64) -> f64| points.iter().map(|p| p.2 * (p.1 - of(p.0)).powi(2)).sum::<f64>();
            let other = |x: f64| heights[xs.iter().position(|known| *known >= x).unwrap()];
            prop_assert!(distance(&|x| curve.at(x)) <= distance(&other) + 1e-9);
        }
    }
}
