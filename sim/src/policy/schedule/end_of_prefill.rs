//! Evict once, when the prompt is stored; what is decoded afterwards stays.
//!
//! The prefill compression of SnapKV and of NVIDIA/kvpress `scorer_press.py`. Needs: nothing. Cost: none.

use super::{Moment, Schedule};
use crate::policy::{Entry, Family, Law, Needs, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "end-of-prefill",
    family: Family::Schedule,
    summary: "one eviction, right after the prompt",
    citation: "NVIDIA/kvpress kvpress/presses/scorer_press.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Schedule> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(EndOfPrefill))
    },
    defaults: || serde_json::json!({}),
};

/// No parameters.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {}

#[derive(Debug)]
struct EndOfPrefill;

impl Schedule for EndOfPrefill {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_due(&self, moment: Moment, stored: u32, capacity: u32) -> bool {
        moment == Moment::PrefillDone && stored > capacity
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
