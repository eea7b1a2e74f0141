//! A fitted curve that can be kept in a file: what it predicts from, what it was fitted on, and how wrong it was there.

use super::crossval::weighted;
use super::observed::Mean;
use super::{CellKey, Isotonic, Observations, cross_validated};
use serde::{Deserialize, Serialize};

/// The layout of a stored predictor.
const VERSION: u32 = 1;
/// Share of left-out residuals that the interval covers.
const COVERAGE: f64 = 0.9;

/// From a proxy of a cell to what executing it would give: an estimate, of this model and this kind of problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predictor {
    version: u32,
    /// The metric that it predicts from.
    pub proxy: String,
    /// -1 where a lower proxy promises more, else 1.
    sign: f64,
    /// The metric that it predicts.
    pub outcome: String,
    /// The model, by name and digest of what was run.
    pub model: String,
    curve: Isotonic,
    /// Absolute residuals of cells whose policy was left out of the fit stay below this in nine of ten.
    pub half_width: f64,
    /// Mean absolute error on a policy that was left out of the fit.
    pub leave_policy_out: f64,
    /// The same for the mean of the other policies: what had to be beaten.
    pub mean_alone: f64,
    /// Problems behind every row.
    pub problems: usize,
    /// What it was fitted on.
    pub rows: Vec<FitRow>,
}

/// A cell that was fitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitRow {
    /// Label of the policy.
    pub policy: String,
    /// C.
    pub budget: Option<u32>,
    /// The seed.
    pub seed: Option<u64>,
    /// The proxy, as its metric defines it.
    pub proxy: f64,
    /// What executing it gave.
    pub executed: f64,
    /// What a curve fitted without this policy predicts, less what was executed.
    pub residual: Option<f64>,
}

/// A prediction with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The height of the curve.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Why there is no prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// The proxy is outside of what was fitted.
    #[error("{proxy} = {found} is outside of {low} to {high}, on which the prediction was fitted")]
    OutOfRange {
        /// The metric.
        proxy: String,
        /// Its value.
        found: f64,
        /// Smallest value fitted.
        low: f64,
        /// Largest value fitted.
        high: f64,
    },
    /// The observations do not allow a fit.
    #[error("a prediction needs three policies with an outcome each, and there are {found}")]
    TooFew {
        /// Policies with an outcome.
        found: usize,
    },
    /// The stored text is none of ours.
    #[error("not a stored prediction: {0}")]
    Stored(String),
}

impl Predictor {
    /// Fits `outcome` to `proxy`, whose values in `observed` were turned by `sign`.
    ///
    /// # Errors
    /// With fewer than three policies.
    pub fn fit(
        observed: &Observations,
        (proxy, sign): (&str, f64),
        outcome: &str,
        model: &str,
    ) -> Result<Self, PredictError> {
        let problems: Vec<usize> = (0..observed.problems()).collect();
        let means = observed.means(&problems);
        let checked = cross_validated(observed);
        let found = observed.policies().len();
        let points: Vec<(f64, f64, f64)> = means.iter().flatten().copied().map(weighted).collect();
        let (Some(leave_policy_out), Some(mean_alone), Some(curve)) =
            (checked.leave_policy_out, checked.mean_alone, Isotonic::fit(&points))
        else {
            return Err(PredictError::TooFew { found });
        };
        let mut residuals: Vec<f64> =
            checked.residuals.iter().flatten().map(|residual| residual.abs()).collect();
        residuals.sort_unstable_by(f64::total_cmp);
        let row = |(key, mean, residual): (&CellKey, &Mean, &Option<f64>)| {
            let (x, y, _) = (*mean)?;
            let CellKey { policy, budget, seed } = key.clone();
            Some(FitRow { policy, budget, seed, proxy: x * sign, executed: y, residual: *residual })
        };
        let rows = observed.cells.iter().zip(&means).zip(&checked.residuals);
        Ok(Self {
            version: VERSION,
            proxy: proxy.to_owned(),
            sign,
            outcome: outcome.to_owned(),
            model: model.to_owned(),
            curve,
            half_width: quantile(&residuals),
            leave_policy_out,
            mean_alone,
            problems: problems.len(),
            rows: rows.filter_map(|((key, mean), residual)| row((key, mean, residual))).collect(),
        })
    }

    /// The outcome that a cell with this proxy promises. A rate stays within 0 and 1.
    ///
    /// # Errors
    /// When the proxy is outside of what was fitted.
    pub fn predict(&self, proxy: f64) -> Result<Prediction, PredictError> {
        let x = proxy * self.sign;
        let (low, high) = self.curve.range();
        if !(low..=high).contains(&x) {
            let (low, high) = if self.sign < 0.0 { (-high, -low) } else { (low, high) };
            return Err(PredictError::OutOfRange { proxy: self.proxy.clone(), found: proxy, low, high });
        }
        let value = self.curve.at(x);
        let (low, high) = ((value - self.half_width).max(0.0), (value + self.half_width).min(1.0));
        Ok(Prediction { value, low: low.min(value), high: high.max(value) })
    }

    /// The model that it was fitted on, by name.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.model.rsplit_once(' ').map_or(self.model.as_str(), |(name, _)| name)
    }

    /// The curve's knots: proxy as its metric defines it, and outcome.
    pub fn knots(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.curve.knots().map(|(x, y)| (x * self.sign, y))
    }

    /// As JSON.
    ///
    /// # Errors
    /// Never in practice: every field is plain.
    pub fn to_json(&self) -> Result<String, PredictError> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|error| PredictError::Stored(error.to_string()))
    }

    /// From JSON.
    ///
    /// # Errors
    /// When it is none, or of another version, or its curve is none.
    pub fn from_json(text: &str) -> Result<Self, PredictError> {
        let found: Self =
            serde_json::from_str(text).map_err(|error| PredictError::Stored(error.to_string()))?;
        let is_sign = found.sign.abs().total_cmp(&1.0).is_eq();
        if found.version != VERSION || !is_sign || !found.curve.is_sound() || !(found.half_width >= 0.0) {
            let reason = format!("version {} with a curve that falls or has no knots", found.version);
            return Err(PredictError::Stored(reason));
        }
        Ok(found)
    }
}

/// The [`COVERAGE`] quantile of sorted values, the next larger one: 1 - α of exchangeable ones stay below it (split conformal).
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a handful of values"
)]
fn quantile(sorted: &[f64]) -> f64 {
    let rank = ((sorted.len() + 1) as f64 * COVERAGE).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted() -> Predictor {
        let mut observed = Observations::default();
        for policy in 0u32..8 {
            let error = 0.0625 * f64::from(policy + 1);
            observed.cells.push(CellKey { policy: format!("p{policy}"), budget: Some(64), seed: Some(1) });
            observed.proxy.push(vec![Some(-error); 20]);
            observed.outcome.push((0..20).map(|at| Some(f64::from(u8::from(at >= policy * 2)))).collect());
        }
        Predictor::fit(&observed, ("attn_output_error", -1.0), "accuracy", "m").unwrap()
    }

    #[test]
    fn a_lower_error_promises_more() {
        let predictor = fitted();
        let (good, bad) = (predictor.predict(0.07).unwrap(), predictor.predict(0.49).unwrap());
        assert!(
            good.value > bad.value && good.low <= good.value && good.value <= good.high,
            "{good:?} {bad:?}"
        );
        assert!((0.0..=1.0).contains(&bad.low) && (0.0..=1.0).contains(&good.high));
        assert_eq!(predictor.rows.len(), 8);
        assert!((predictor.rows[0].proxy - 0.0625).abs() < 1e-12, "as the metric defines it");
        assert!(predictor.leave_policy_out < predictor.mean_alone);
    }

    #[test]
    fn outside_of_the_fit_it_refuses() {
        let error = fitted().predict(0.75).unwrap_err().to_string();
        assert_eq!(
            error,
            "attn_output_error = 0.75 is outside of 0.0625 to 0.5, on which the prediction was fitted"
        );
        assert!(fitted().predict(f64::NAN).is_err());
    }

    #[test]
    fn what_is_stored_is_read_and_nothing_else() {
        let predictor = fitted();
        let text = predictor.to_json().unwrap();
        assert_eq!(Predictor::from_json(&text).unwrap(), predictor);
        assert!(Predictor::from_json(&text.replace("\"version\": 1", "\"version\": 2")).is_err());
        assert!(Predictor::from_json("{}").is_err());
    }

    #[test]
    fn two_policies_are_too_few() {
        let mut observed = Observations::default();
        for policy in ["a", "b"] {
            observed.cells.push(CellKey { policy: policy.to_owned(), budget: None, seed: None });
            observed.proxy.push(vec![Some(1.0)]);
            observed.outcome.push(vec![Some(1.0)]);
        }
        let error = Predictor::fit(&observed, ("p", 1.0), "accuracy", "m").unwrap_err();
        assert_eq!(error, PredictError::TooFew { found: 2 });
    }
}
