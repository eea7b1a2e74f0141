//! Never evict: the full cache. Needs: nothing. Cost: none.

use super::{Moment, Schedule};
use crate::policy::{Entry, Family, Law, Needs, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

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
    defaults: || serde_json::json!({}),
};

/// No parameters.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {}

#[derive(Debug)]
struct Never;

impl Schedule for Never {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_due(&self, _moment: Moment, _stored: u32, _capacity: u32) -> bool {
        false
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
