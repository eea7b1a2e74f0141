//! Whether a proxy puts cells in the order in which the model does.

use super::Observations;
use super::observed::Mean;
use crate::rng::{Purpose, StreamKey};

const RESAMPLES: u32 = 1000;

/// Kendall's τ_b of two lists of equal length: pairs in the same order less pairs in the opposite one, over what would be possible
/// given the ties of each. Nothing when one of them is constant, or a value is no number.
///
/// Kendall 1945, "The treatment of ties in ranking problems"; the same as `scipy.stats.kendalltau(variant="b")`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "pairs stay far below 2^53")]
pub fn kendall_tau_b(x: &[f64], y: &[f64]) -> Option<f64> {
    if x.iter().chain(y).any(|value| value.is_nan()) {
        return None;
    }
    let (mut balance, mut untied_x, mut untied_y) = (0i64, 0i64, 0i64);
    for (i, (x_i, y_i)) in x.iter().zip(y).enumerate() {
        for (x_j, y_j) in x.iter().zip(y).take(i) {
            let order = |a: &f64, b: &f64| i64::from(a > b) - i64::from(a < b);
            let (in_x, in_y) = (order(x_i, x_j), order(y_i, y_j));
            balance += in_x * in_y;
            untied_x += in_x.abs();
            untied_y += in_y.abs();
        }
    }
    let possible = (untied_x as f64 * untied_y as f64).sqrt();
    (possible > 0.0).then(|| (balance as f64 / possible).clamp(-1.0, 1.0))
}

/// A rank correlation over cells, with two intervals that say different things.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankAgreement {
    /// Kendall's τ_b of the cell means: 1 for the same order, -1 for the opposite one.
    pub tau_b: f64,
    /// 95 % percentile interval over resampled problems: other problems, the same policies. Absent with fewer than two.
    pub by_problem: Option<(f64, f64)>,
    /// 95 % percentile interval over resampled policies, with all their cells: other policies, the same problems. Pairs of
    /// copies of one cell do not count. Absent with fewer than three.
    pub by_policy: Option<(f64, f64)>,
    /// Cells that are ranked.
    pub cells: usize,
    /// Policies behind them.
    pub policies: usize,
    /// Problems behind each.
    pub problems: usize,
}

/// Ranks the cells of `observed`; nothing when fewer than two of them differ.
#[must_use]
pub fn rank_agreement(observed: &Observations) -> Option<RankAgreement> {
    let problems = observed.problems();
    let all: Vec<usize> = (0..problems).collect();
    let means = observed.means(&all);
    let tau = |means: &[Mean], cells: &[usize]| {
        let (x, y): (Vec<f64>, Vec<f64>) =
            cells.iter().filter_map(|&cell| means[cell]).map(|(x, y, _)| (x, y)).unzip();
        kendall_tau_b(&x, &y)
    };
    let cells: Vec<usize> = (0..means.len()).filter(|&cell| means[cell].is_some()).collect();
    let tau_b = tau(&means, &cells)?;
    let resampled = |id: &str, groups: usize, of: &dyn Fn(&[usize]) -> Option<f64>| {
        let mut stream = StreamKey::new(0, Purpose::Report, id).stream();
        let taus: Vec<f64> = (0..RESAMPLES)
            .filter_map(|_| {
                let drawn: Vec<usize> =
                    (0..groups).map(|_| usize::try_from(stream.below(groups as u64)).unwrap_or(0)).collect();
                of(&drawn)
            })
            .collect();
        interval(taus)
    };
    let by_problem = (problems > 1)
        .then(|| resampled("fidelity-problems", problems, &|drawn| tau(&observed.means(drawn), &cells)))
        .flatten();
    let policies = observed.policies();
    let by_policy = (policies.len() > 2)
        .then(|| {
            resampled("fidelity-policies", policies.len(), &|drawn| {
                // A copy of a policy is tied with itself in both lists, so it counts in neither.
                let cells: Vec<usize> = drawn.iter().flat_map(|&p| policies[p].1.iter().copied()).collect();
                let cells: Vec<usize> = cells.into_iter().filter(|&cell| means[cell].is_some()).collect();
                tau(&means, &cells)
            })
        })
        .flatten();
    Some(RankAgreement {
        tau_b,
        by_problem,
        by_policy,
        cells: cells.len(),
        policies: policies.iter().filter(|(_, of)| of.iter().any(|&cell| means[cell].is_some())).count(),
        problems,
    })
}

/// The middle 95 % of resampled values.
fn interval(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| (values[n * 25 / 1000], values[(n * 975).div_ceil(1000).max(1) - 1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::CellKey;

    /// `scipy.stats.kendalltau` 1.17.1 on the same lists.
    #[test]
    fn tau_b_is_that_of_scipy() {
        let cases: [(&[f64], &[f64], f64); 4] = [
            (&[12.0, 2.0, 1.0, 12.0, 2.0], &[1.0, 4.0, 7.0, 1.0, 0.0], -0.471_404_520_791_031_7),
            (&[1.0, 2.0, 3.0, 4.0], &[10.0, 20.0, 30.0, 40.0], 1.0),
            (&[1.0, 2.0, 3.0, 4.0, 5.0], &[5.0, 4.0, 3.0, 2.0, 1.0], -1.0),
            (&[1.0, 1.0, 2.0, 2.0, 3.0, 3.0], &[1.0, 2.0, 2.0, 3.0, 3.0, 3.0], 0.783_349_451_800_640_3),
        ];
        for (x, y, expected) in cases {
            let found = kendall_tau_b(x, y).unwrap();
            assert!((found - expected).abs() < 1e-12, "{x:?} {y:?}: {found}, not {expected}");
        }
        assert_eq!(kendall_tau_b(&[1.0, 1.0], &[1.0, 2.0]), None, "a constant has no order");
        assert_eq!(kendall_tau_b(&[1.0, f64::NAN], &[1.0, 2.0]), None);
    }

    fn observed(policies: usize, problems: usize, noise: impl Fn(usize, usize) -> f64) -> Observations {
        let key = |at: usize| CellKey { policy: format!("p{at}"), budget: Some(64), seed: None };
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let truth = |at: usize| at as f64;
        Observations {
            cells: (0..policies).map(key).collect(),
            proxy: (0..policies).map(|at| vec![Some(truth(at)); problems]).collect(),
            outcome: (0..policies)
                .map(|at| (0..problems).map(|problem| Some(truth(at) + noise(at, problem))).collect())
                .collect(),
        }
    }

    #[test]
    fn a_perfect_proxy_is_certain_and_noise_widens_the_interval() {
        let exact = rank_agreement(&observed(8, 12, |_, _| 0.0)).unwrap();
        assert_eq!((exact.tau_b, exact.by_problem), (1.0, Some((1.0, 1.0))));
        assert_eq!((exact.cells, exact.policies, exact.problems), (8, 8, 12));
        let bits = |at: usize, problem: usize| {
            let mut stream = StreamKey {
                seq: u32::try_from(problem).unwrap(),
                ..StreamKey::new(9, Purpose::Workload, "t")
            };
            stream.branch = u32::try_from(at).unwrap();
            stream.stream().uniform() * 12.0
        };
        let noisy = rank_agreement(&observed(8, 12, bits)).unwrap();
        let (low, high) = noisy.by_problem.unwrap();
        assert!(low < noisy.tau_b && noisy.tau_b <= high && high - low > 0.05, "{noisy:?}");
        let (low, high) = noisy.by_policy.unwrap();
        assert!(low < high, "{noisy:?}");
    }

    #[test]
    fn the_same_input_gives_the_same_interval() {
        let noise = |at: usize, problem: usize| f64::from(u8::from((at * 7 + problem * 3) % 5 < 2)) * 4.0;
        assert_eq!(rank_agreement(&observed(6, 9, noise)), rank_agreement(&observed(6, 9, noise)));
    }

    #[test]
    fn cells_without_an_outcome_are_left_out() {
        let mut observed = observed(5, 3, |_, _| 0.0);
        observed.outcome[2] = vec![None; 3];
        assert_eq!(rank_agreement(&observed).unwrap().cells, 4);
        observed.outcome = vec![vec![Some(1.0); 3]; 5];
        assert_eq!(rank_agreement(&observed), None, "no two differ");
    }
}
