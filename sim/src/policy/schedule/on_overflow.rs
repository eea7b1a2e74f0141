//! Evict whenever more than the budget is stored: after the prompt, and then one token a step.
//!
//! The schedule of H2O (FMInference/H2O `h2o_hf/utils_real_drop/modify_llama.py`), TOVA (schwartz-lab-NLP/TOVA
//! `src/tova_cache.py`) and StreamingLLM as published. Needs: nothing. Cost: none.

use super::{Schedule, Tick};
use crate::policy::doc::{defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "on-overflow",
    family: Family::Schedule,
    summary: "whenever the budget is exceeded: after the prompt, then one token a step",
    citation: "FMInference/H2O h2o_hf/utils_real_drop/modify_llama.py; schwartz-lab-NLP/TOVA src/tova_cache.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Schedule> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(OnOverflow))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct OnOverflow;

impl Schedule for OnOverflow {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_due(&self, tick: Tick) -> bool {
        tick.stored > tick.capacity
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
