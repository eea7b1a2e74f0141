//! Published figures of a serving study, and what its arms make of them.

use super::super::RunError;
use super::{ArmResult, bootstrap, generated, latencies, peak_bytes, serve_arms, speedup};
use crate::cost::Model;
use crate::results::Estimate;
use crate::scenario::{Claim, Measure, Scenario, ServeStudy};

/// What is said about one published figure.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimResult {
    /// The claim.
    pub claim: Claim,
    /// The figure under the published protocol.
    pub as_published: Option<Measured>,
    /// The figure without the protocol's defects.
    pub corrected: Option<Measured>,
}

/// A figure that follows from arms, or from arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// As text, with interval and what has to be said with it.
    pub text: String,
    /// The number in the unit of its kind; absent where it cannot be had.
    pub value: Option<f64>,
    /// 95 % interval.
    pub interval: Option<(f64, f64)>,
}

impl Measured {
    fn of(estimate: Estimate, text: String) -> Self {
        Self { text, value: Some(estimate.value), interval: estimate.interval }
    }

    fn exactly(value: f64, text: String) -> Self {
        Self { text, value: Some(value), interval: None }
    }
}

/// The figures of every claim.
///
/// # Errors
/// As [`serve_arms`].
pub fn claims(scenario: &Scenario) -> Result<Vec<ClaimResult>, RunError> {
    let Some(study) = &scenario.serve else { return Ok(Vec::new()) };
    let arms = serve_arms(scenario)?;
    let cost = study.cost()?;
    let text = |measure: &Option<Measure>| {
        measure.as_ref().map(|measure| measured(study, &arms, cost.model(), measure))
    };
    let result = |claim: &Claim| ClaimResult {
        claim: claim.clone(),
        as_published: text(&claim.as_published),
        corrected: text(&claim.corrected),
    };
    Ok(study.claims.iter().map(result).collect())
}

fn measured(study: &ServeStudy, arms: &[ArmResult], model: Option<&Model>, measure: &Measure) -> Measured {
    let find = |label: &str| arms.iter().find(|arm| arm.label == label);
    let interval = |estimate: Estimate, digits: usize| match estimate.interval {
        Some((low, high)) if high - low > 5e-4 => format!(" [{low:.digits$}, {high:.digits$}]"),
        _ => String::new(),
    };
    let found = match measure {
        Measure::Speedup { of, over } => find(of).zip(find(over)).and_then(|(of, over)| {
            let estimate = speedup(of, over)?;
            let (fewer, all) = (generated(of), generated(over));
            let tokens = if fewer == all {
                String::new()
            } else {
                format!("; {fewer} tokens generated against {all}")
            };
            let text = format!("{:.2}×{}{tokens}", estimate.value, interval(estimate, 2));
            Some(Measured::of(estimate, text))
        }),
        Measure::PeakGib { arm } => find(arm).zip(model).and_then(|(result, model)| {
            let arm = study.arms.iter().find(|other| other.label == *arm)?;
            let held = gib(peak_bytes(result, arm, model).get() + 2 * model.params());
            Some(Measured::exactly(held, format!("{held:.1} GiB")))
        }),
        Measure::Millis { arm } => find(arm).and_then(|arm| {
            let estimate = bootstrap(arm).mean(&latencies(arm))?;
            Some(Measured::of(estimate, format!("{:.0} ms", estimate.value)))
        }),
        Measure::Share { num, den } => Some(share(*num, *den)),
    };
    found.unwrap_or_else(|| Measured { text: "-".to_owned(), value: None, interval: None })
}

#[expect(clippy::cast_precision_loss, reason = "rounded to a tenth anyway")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// A share with its 95 % Wilson interval.
#[expect(clippy::cast_precision_loss, reason = "counts of problems")]
fn share(num: u64, den: u64) -> Measured {
    const Z: f64 = 1.959_964;
    let (n, p) = (den as f64, num as f64 / den as f64);
    let middle = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let (low, high) = ((middle - half).max(0.0), (middle + half).min(1.0));
    let text = format!("{num}/{den} = {:.2} % [{:.2}, {:.2}]", 100.0 * p, 100.0 * low, 100.0 * high);
    Measured { text, value: Some(p), interval: Some((low, high)) }
}
