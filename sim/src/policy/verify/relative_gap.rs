//! Skip when the surest branch is ahead of the second by a share of its own confidence (S4). One branch has no rival and is skipped.
//!
//! Needs: outcomes. Cost: O(branches).

use super::{Verify, VerifyView};
use crate::policy::confidence::{Confidence, Over, top_two};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::exit::check_range;
use crate::policy::winner::check_share;
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "relative-gap",
    family: Family::Verify,
    summary: "skip when the surest branch leads by a share of its own confidence",
    citation: "-",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Verify> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(RelativeGap::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Confidence of a branch.
    confidence: Confidence = Confidence::MeanTop1Prob,
    /// The steps it is over: steps, answer, tail:N, lowest-window:N or bottom-windows:N.
    over: Over = Over::Steps,
    /// Smallest lead at a skip, as a share of the largest confidence.
    margin: f64 = 0.08,
}

/// The policy.
#[derive(Debug)]
pub struct RelativeGap {
    params: Params,
}

impl RelativeGap {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "margin", params.margin, (0.0, f64::INFINITY), "0 or more")?;
        check_share(SPEC.id, params.confidence)?;
        Ok(Self { params })
    }
}

impl Verify for RelativeGap {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn skips(&self, view: &VerifyView<'_>) -> Result<bool, PolicyError> {
        let confidences = self.params.confidence.of(SPEC.id, self.params.over, view.outcomes)?;
        Ok(top_two(&confidences).is_none_or(|(top, second)| {
            second.is_none_or(|second| (top - second) / top.max(1e-6) >= self.params.margin)
        }))
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
