//! Verification is skipped by chance, whatever the branches are like: the control of every skip rule (S7).
//!
//! Whether a gate helps is told by comparing it with this one at the same rate. Tables show the exact expectation of that control beside every
//! cell (`random_skip_accuracy`); this policy makes the draws. A draw belongs to (seed, problem), so a higher rate skips a superset.
//! Needs: nothing. Cost: none.

use super::{Verify, VerifyView};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::exit::check_range;
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};
use crate::rng::{Purpose, StreamKey};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "random",
    family: Family::Verify,
    summary: "verification is skipped with a given probability: the control of every rule",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Random,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Verify> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Random::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Probability of a skip.
    rate: f64 = 0.5,
}

/// The policy.
#[derive(Debug)]
pub struct Random {
    params: Params,
}

impl Random {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "rate", params.rate, (0.0, 1.0), "0 to 1")?;
        Ok(Self { params })
    }
}

impl Verify for Random {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn skips(&self, view: &VerifyView<'_>) -> Result<bool, PolicyError> {
        let key =
            StreamKey { seq: view.problem, ..StreamKey::new(view.seed, Purpose::Policy, "verify random") };
        Ok(key.stream().uniform() < self.params.rate)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
