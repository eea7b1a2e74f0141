//! Skip when the surest branch is sure enough (S2). Needs: outcomes. Cost: O(branches).

use super::{Verify, VerifyView};
use crate::policy::confidence::{Confidence, Over, top_two};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::exit::check_range;
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "top",
    family: Family::Verify,
    summary: "skip when the surest branch is sure enough",
    citation: "-",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Verify> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Top::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Confidence of a branch.
    confidence: Confidence = Confidence::MeanTop1Prob,
    /// The steps it is over: steps, answer, tail:N, lowest-window:N or bottom-windows:N.
    over: Over = Over::Steps,
    /// Smallest confidence of the surest branch at a skip.
    threshold: f64 = 0.7,
}

/// The policy.
#[derive(Debug)]
pub struct Top {
    params: Params,
}

impl Top {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "threshold", params.threshold, (f64::NEG_INFINITY, f64::INFINITY), "a number")?;
        Ok(Self { params })
    }
}

impl Verify for Top {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn skips(&self, view: &VerifyView<'_>) -> Result<bool, PolicyError> {
        let confidences = self.params.confidence.of(SPEC.id, self.params.over, view.outcomes)?;
        Ok(top_two(&confidences).is_some_and(|(top, _)| top >= self.params.threshold))
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
