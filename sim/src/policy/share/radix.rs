//! Equal leading tokens are shared, as SGLang's radix tree does with pages of one token. No output changes.
//!
//! It differs from `exact-prefix` in having no floor to full blocks. Needs: nothing. Cost: O(branches · prompt) a branch.

use super::{Against, Share, ShareView, Sharing};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "radix",
    family: Family::Share,
    summary: "equal leading tokens are shared (SGLang rules); outputs do not change",
    citation: "sgl-project/sglang python/sglang/srt/mem_cache/radix_cache.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Share> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Radix::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// What is cached when a branch comes: the root's prefix, or the prompts of the branches before it.
    against: Against = Against::Earlier,
}

/// The policy.
#[derive(Debug)]
pub struct Radix {
    params: Params,
}

impl Radix {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        Ok(Self { params })
    }
}

impl Share for Radix {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn decide(&self, view: &ShareView<'_>) -> Result<Sharing, PolicyError> {
        Ok(Sharing { reused_tokens: num::count(self.params.against.cached_tokens(view)), ..Sharing::NOTHING })
    }

    fn prefills_root(&self) -> bool {
        self.params.against == Against::Root
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
