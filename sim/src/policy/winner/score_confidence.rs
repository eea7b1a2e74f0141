//! The largest score · √confidence wins, as published for RKSC.
//!
//! After a skip the confidence stands for the score, so that the surest branch wins. A missing score or a confidence that is no number counts as 0.5, as
//! coded. Needs: outcomes, verifier facts. Cost: O(branches).

use super::{Candidate, UNKNOWN, Winner, check_share, first_best};
use crate::policy::confidence::Confidence;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "score-confidence",
    family: Family::Winner,
    summary: "the largest score times the square root of the confidence (RKSC)",
    citation: "RKSC, arXiv 2606.09937; AnirudhSekar/RKSC rksc.ipynb",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Winner> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(ScoreConfidence::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Confidence of a branch, over all its steps.
    confidence: Confidence = Confidence::MeanTop1Prob,
}

/// The policy.
#[derive(Debug)]
pub struct ScoreConfidence {
    params: Params,
}

impl ScoreConfidence {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_share(SPEC.id, params.confidence)?;
        Ok(Self { params })
    }
}

impl Winner for ScoreConfidence {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn confidence(&self) -> Confidence {
        self.params.confidence
    }

    fn choose(&self, candidates: &[Candidate<'_>]) -> Option<usize> {
        let was_skipped = candidates.iter().all(|c| c.score.is_none());
        first_best(candidates.iter().map(|c| {
            let confidence = if c.confidence.is_nan() { UNKNOWN } else { c.confidence };
            let score = if was_skipped { confidence } else { c.score.unwrap_or(UNKNOWN) };
            score * confidence.sqrt()
        }))
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
