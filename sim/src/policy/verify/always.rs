//! Every problem is verified: the bound without any skip. Needs: verifier facts. Cost: the verification.

use super::{Verify, VerifyView};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "always",
    family: Family::Verify,
    summary: "every problem is verified",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Verify> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Always::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

/// The policy.
#[derive(Debug)]
pub struct Always {
    params: Params,
}

impl Always {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        Ok(Self { params })
    }
}

impl Verify for Always {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn skips(&self, _view: &VerifyView<'_>) -> Result<bool, PolicyError> {
        Ok(false)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
