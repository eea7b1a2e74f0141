//! Skip when enough branches agree on an answer: adaptive consistency (S5). Needs: outcomes. Cost: O(branches²).

use super::{Verify, VerifyView};
use crate::policy::confidence::{majority_shares, top_two};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::exit::check_range;
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "majority",
    family: Family::Verify,
    summary: "skip when enough branches give the same answer (adaptive consistency)",
    citation: "Aggarwal et al. 2023, arXiv 2305.11860",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Verify> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Majority::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Smallest share of branches with the most frequent answer at a skip.
    share: f64 = 0.75,
}

/// The policy.
#[derive(Debug)]
pub struct Majority {
    params: Params,
}

impl Majority {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "share", params.share, (0.0, 1.0), "0 to 1")?;
        Ok(Self { params })
    }
}

impl Verify for Majority {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn skips(&self, view: &VerifyView<'_>) -> Result<bool, PolicyError> {
        let shares = majority_shares(view.outcomes);
        Ok(top_two(&shares).is_none_or(|(top, _)| top >= self.params.share))
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
