//! The surest branch wins, whatever the verifier says. Needs: outcomes. Cost: O(branches).

use super::{Candidate, Winner, first_best};
use crate::policy::confidence::Confidence;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "highest-confidence",
    family: Family::Winner,
    summary: "the largest confidence, whatever the verifier says",
    citation: "-",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Winner> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(HighestConfidence::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Confidence of a branch, over all its steps.
    confidence: Confidence = Confidence::MeanTop1Prob,
}

/// The policy.
#[derive(Debug)]
pub struct HighestConfidence {
    params: Params,
}

impl HighestConfidence {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        Ok(Self { params })
    }
}

impl Winner for HighestConfidence {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn confidence(&self) -> Confidence {
        self.params.confidence
    }

    fn choose(&self, candidates: &[Candidate<'_>]) -> Option<usize> {
        first_best(candidates.iter().map(|c| c.confidence))
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
