//! Nothing is shared: every branch computes its own prompt. Needs: nothing. Cost: none.

use super::{Share, ShareView, Sharing};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "off",
    family: Family::Share,
    summary: "nothing is shared",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Share> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Off::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

/// The policy.
#[derive(Debug)]
pub struct Off {
    params: Params,
}

impl Off {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        Ok(Self { params })
    }
}

impl Share for Off {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn decide(&self, _view: &ShareView<'_>) -> Result<Sharing, PolicyError> {
        Ok(Sharing::NOTHING)
    }

    fn prefills_root(&self) -> bool {
        false
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
