//! The error of a fitted curve on what it has not seen.

use super::{Isotonic, Observations};

/// Folds of problems.
const FOLDS: usize = 5;

/// Mean absolute errors of predicted outcomes, each cell predicted by a curve that was fitted without it.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossValidation {
    /// The predicted policy's cells were left out of the fit: the error on another policy. Mean over policies of the mean over their
    /// cells. Absent with fewer than three policies.
    pub leave_policy_out: Option<f64>,
    /// The same when every cell is predicted by the mean outcome of the other policies: what a proxy has to beat.
    pub mean_alone: Option<f64>,
    /// The predicted problems were left out of the fit: the error on other problems of the same policies. Absent with fewer than five.
    pub leave_problems_out: Option<f64>,
    /// Predicted less executed for each cell, its policy left out of the fit, `[cell]`: above 0 the proxy flatters.
    pub residuals: Vec<Option<f64>>,
}

/// Cross-validates the rising curve from proxy to outcome over policies and over problems.
#[must_use]
pub fn cross_validated(observed: &Observations) -> CrossValidation {
    let all: Vec<usize> = (0..observed.problems()).collect();
    let means = observed.means(&all);
    let policies = observed.policies();
    let known = policies.iter().filter(|(_, cells)| cells.iter().any(|&cell| means[cell].is_some())).count();
    let mut residuals = vec![None; means.len()];
    let (mut errors, mut baseline) = (Vec::new(), Vec::new());
    for (_, left_out) in policies.iter().filter(|_| known > 2) {
        let others: Vec<(f64, f64, f64)> = (0..means.len())
            .filter(|cell| !left_out.contains(cell))
            .filter_map(|cell| means[cell])
            .map(weighted)
            .collect();
        let Some(curve) = Isotonic::fit(&others) else { continue };
        let weight: f64 = others.iter().map(|(_, _, weight)| weight).sum();
        let mean = others.iter().map(|(_, y, weight)| y * weight).sum::<f64>() / weight;
        let (mut own, mut by_mean) = (Vec::new(), Vec::new());
        for &cell in left_out {
            if let Some((x, y, _)) = means[cell] {
                residuals[cell] = Some(curve.at(x) - y);
                own.push((curve.at(x) - y).abs());
                by_mean.push((mean - y).abs());
            }
        }
        errors.extend(average(&own));
        baseline.extend(average(&by_mean));
    }
    CrossValidation {
        leave_policy_out: average(&errors),
        mean_alone: average(&baseline),
        leave_problems_out: by_problems(observed),
        residuals,
    }
}

/// The mean error on problems that a fit has not seen; every fifth problem is one fold.
fn by_problems(observed: &Observations) -> Option<f64> {
    let problems = observed.problems();
    let mut errors = Vec::new();
    for fold in (0..FOLDS).filter(|_| problems >= FOLDS) {
        let (unseen, seen): (Vec<usize>, Vec<usize>) =
            (0..problems).partition(|problem| problem % FOLDS == fold);
        let points: Vec<(f64, f64, f64)> =
            observed.means(&seen).into_iter().flatten().map(weighted).collect();
        let Some(curve) = Isotonic::fit(&points) else { continue };
        errors.extend(observed.means(&unseen).into_iter().flatten().map(|(x, y, _)| (curve.at(x) - y).abs()));
    }
    average(&errors)
}

#[expect(clippy::cast_precision_loss, reason = "problems are few")]
pub(super) fn weighted((x, y, n): (f64, f64, usize)) -> (f64, f64, f64) {
    (x, y, n as f64)
}

#[expect(clippy::cast_precision_loss, reason = "cells are few")]
fn average(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::CellKey;

    /// Cells of `policies` policies at three budgets; the outcome is a rising function of the proxy, plus `bias` by policy.
    fn observed(policies: u32, bias: impl Fn(u32) -> f64) -> Observations {
        let mut observed = Observations::default();
        for policy in 0..policies {
            for budget in 1..=3 {
                let x = f64::from(policy) * 0.1 + f64::from(budget);
                observed.cells.push(CellKey {
                    policy: format!("p{policy}"),
                    budget: Some(budget),
                    seed: None,
                });
                observed.proxy.push(vec![Some(x); 10]);
                observed.outcome.push(vec![Some(x * x + bias(policy)); 10]);
            }
        }
        observed
    }

    #[test]
    fn a_law_is_found_and_beats_the_mean() {
        let found = cross_validated(&observed(6, |_| 0.0));
        let (error, mean) = (found.leave_policy_out.unwrap(), found.mean_alone.unwrap());
        assert!(error < 0.2 * mean, "{error} {mean}");
        assert!(found.leave_problems_out.unwrap() < 1e-9, "problems are alike here");
    }

    #[test]
    fn a_policy_that_the_proxy_flatters_has_a_residual_above_zero() {
        let found = cross_validated(&observed(6, |policy| if policy == 3 { -2.0 } else { 0.0 }));
        let of =
            |policy: usize| found.residuals[policy * 3..policy * 3 + 3].iter().flatten().sum::<f64>() / 3.0;
        assert!(of(3) > 1.0, "{:?}", found.residuals);
        assert!((0..6).filter(|&p| p != 3).all(|p| of(p) < 0.7), "{:?}", found.residuals);
    }

    #[test]
    fn two_policies_say_nothing_about_a_third() {
        let found = cross_validated(&observed(2, |_| 0.0));
        assert_eq!((found.leave_policy_out, found.mean_alone), (None, None));
        assert!(found.residuals.iter().all(Option::is_none));
    }
}
