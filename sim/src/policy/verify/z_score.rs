//! Skip when the surest branch stands out among all of them (S6).
//!
//! z = (top − mean) / standard deviation over the branches of the problem (divided by their number); equal branches have z = 0. One branch has
//! no rival and is skipped. Needs: outcomes. Cost: O(branches).

use super::{Verify, VerifyView};
use crate::policy::confidence::{Confidence, Over, top_two};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::exit::check_range;
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "z-score",
    family: Family::Verify,
    summary: "skip when the surest branch stands out among all of them",
    citation: "-",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Verify> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(ZScore::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Confidence of a branch.
    confidence: Confidence = Confidence::MeanTop1Prob,
    /// The steps it is over: steps, answer, tail:N, lowest-window:N or bottom-windows:N.
    over: Over = Over::Steps,
    /// Smallest standard score of the surest branch at a skip.
    z: f64 = 1.5,
}

/// The policy.
#[derive(Debug)]
pub struct ZScore {
    params: Params,
}

impl ZScore {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "z", params.z, (f64::NEG_INFINITY, f64::INFINITY), "a number")?;
        Ok(Self { params })
    }
}

impl Verify for ZScore {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn skips(&self, view: &VerifyView<'_>) -> Result<bool, PolicyError> {
        let confidences = self.params.confidence.of(SPEC.id, self.params.over, view.outcomes)?;
        let Some((top, Some(_))) = top_two(&confidences) else { return Ok(true) };
        #[expect(clippy::cast_precision_loss, reason = "branches are few")]
        let n = confidences.len() as f64;
        let mean = confidences.iter().sum::<f64>() / n;
        let variance = confidences.iter().map(|c| (c - mean) * (c - mean)).sum::<f64>() / n;
        let z = if variance > 0.0 { (top - mean) / variance.sqrt() } else { 0.0 };
        Ok(z >= self.params.z)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
