//! Never evict: the full cache. Needs: nothing. Cost: none.

use super::{Schedule, Tick};
use crate::policy::doc::{defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "never",
    family: Family::Schedule,
    summary: "no eviction",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Schedule> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(Never))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Never;

impl Schedule for Never {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_due(&self, _tick: Tick) -> bool {
        false
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
