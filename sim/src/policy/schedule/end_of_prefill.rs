//! Evict once, when the prompt is stored; what is decoded afterwards stays.
//!
//! The prefill compression of SnapKV and of NVIDIA/kvpress `scorer_press.py`. Needs: nothing. Cost: none.

use super::{Moment, Schedule, Tick};
use crate::policy::doc::{defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicySpec, Randomness};

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
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct EndOfPrefill;

impl Schedule for EndOfPrefill {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_due(&self, Tick { moment, stored, capacity, .. }: Tick) -> bool {
        moment == Moment::PrefillDone && stored > capacity
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
