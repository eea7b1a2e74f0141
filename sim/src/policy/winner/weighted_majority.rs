//! Answers are voted on, each branch with its weight: the verifier's score times its confidence, or one of them.
//!
//! Without a score the confidence stands for it. Needs: outcomes, verifier facts for `score`. Cost: O(branches²).

use super::{Candidate, Winner, check_share, vote};
use crate::policy::confidence::Confidence;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "weighted-majority",
    family: Family::Winner,
    summary: "a vote on answers, weighted by score, confidence or both",
    citation: "Li et al. 2022, arXiv 2206.02336",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Winner> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(WeightedMajority::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// What a vote weighs.
    weight: Weight = Weight::Both,
    /// Confidence of a branch, over all its steps.
    confidence: Confidence = Confidence::MeanTop1Prob,
}

/// The policy.
#[derive(Debug)]
pub struct WeightedMajority {
    params: Params,
}

impl WeightedMajority {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_share(SPEC.id, params.confidence)?;
        Ok(Self { params })
    }
}

impl Winner for WeightedMajority {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn confidence(&self) -> Confidence {
        self.params.confidence
    }

    fn votes(&self) -> bool {
        true
    }

    fn choose(&self, candidates: &[Candidate<'_>]) -> Option<usize> {
        vote(candidates, |c| match self.params.weight {
            Weight::Score => c.score.unwrap_or(c.confidence),
            Weight::Confidence => c.confidence,
            Weight::Both => c.score.unwrap_or(c.confidence) * c.confidence,
        })
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

/// What a vote weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// The verifier's score.
    Score,
    /// The branch's confidence.
    Confidence,
    /// Their product.
    #[default]
    Both,
}
