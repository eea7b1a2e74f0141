//! Every branch is decoded behind the root's prefix: ASKS with τ = 0.
//!
//! When all branches have the root's words this is plain prefix sharing and changes no output. Needs: nothing. Cost: none.

use super::{Share, ShareView, Sharing};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};
use crate::trace::Prefix;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "always",
    family: Family::Share,
    summary: "every branch gets the root's prefix (ASKS with tau 0)",
    citation: "RKSC, arXiv 2606.09937",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Share> = Entry {
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

impl Share for Always {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn decide(&self, view: &ShareView<'_>) -> Result<Sharing, PolicyError> {
        let reused_tokens = view.problem.branches.first().map_or(0, |root| root.prefix_len);
        Ok(Sharing { prefix: Prefix::Root, reused_tokens, sigma: None })
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
