//! Every layer and KV head gets the same budget. Needs: nothing. Cost: none.

use super::Budget;
use crate::policy::doc::{defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "uniform",
    family: Family::Budget,
    summary: "the same budget for every layer and KV head",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Budget> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(Uniform))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Uniform;

impl Budget for Uniform {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
