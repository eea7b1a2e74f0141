//! Every layer and KV head gets the same budget. Needs: nothing. Cost: none.

use super::Budget;
use crate::policy::{Entry, Family, Law, Needs, PolicySpec, Randomness};
use crate::types::{KvHead, LayerIdx, ModelShape};
use serde::{Deserialize, Serialize};

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
    defaults: || serde_json::json!({}),
};

/// No parameters.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {}

#[derive(Debug)]
struct Uniform;

impl Budget for Uniform {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn share(&self, _shape: &ModelShape, _layer: LayerIdx, _head: KvHead, capacity: u32) -> u32 {
        capacity
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
