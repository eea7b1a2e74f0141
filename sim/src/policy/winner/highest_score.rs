//! The branch that the verifier likes best wins; after a skip, the surest. Needs: outcomes, verifier facts. Cost: O(branches).

use super::{Candidate, UNKNOWN, Winner, first_best};
use crate::policy::confidence::Confidence;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "highest-score",
    family: Family::Winner,
    summary: "the largest score of the verifier; the largest confidence when it was not asked",
    citation: "-",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Winner> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(HighestScore::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Confidence of a branch, over all its steps.
    confidence: Confidence = Confidence::MeanTop1Prob,
}

/// The policy.
#[derive(Debug)]
pub struct HighestScore {
    params: Params,
}

impl HighestScore {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        Ok(Self { params })
    }
}

impl Winner for HighestScore {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn confidence(&self) -> Confidence {
        self.params.confidence
    }

    fn choose(&self, candidates: &[Candidate<'_>]) -> Option<usize> {
        let was_skipped = candidates.iter().all(|c| c.score.is_none());
        first_best(
            candidates.iter().map(|c| if was_skipped { c.confidence } else { c.score.unwrap_or(UNKNOWN) }),
        )
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
