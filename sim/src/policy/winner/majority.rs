//! The most frequent answer wins: self-consistency. Ties go to the answer that came first. Needs: outcomes. Cost: O(branches²).

use super::{Candidate, Winner, vote};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "majority",
    family: Family::Winner,
    summary: "the most frequent answer (self-consistency)",
    citation: "Wang et al. 2022, arXiv 2203.11171",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Winner> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Majority::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

/// The policy.
#[derive(Debug)]
pub struct Majority {
    params: Params,
}

impl Majority {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        Ok(Self { params })
    }
}

impl Winner for Majority {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn votes(&self) -> bool {
        true
    }

    fn choose(&self, candidates: &[Candidate<'_>]) -> Option<usize> {
        vote(candidates, |_| 1.0)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
