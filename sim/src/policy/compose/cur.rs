//! CURPress of kvpress: exact norms, each divided by its sum over windows of 16 slots, product of key and value. The choice
//! is nearly even over time.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::kv_sketch;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "cur",
    family: Family::Composition,
    summary: "top-K by the product of locally normalised key and value norms",
    citation: "NVIDIA/kvpress kvpress/presses/cur_press.py",
    needs: Needs::KV,
    randomness: Randomness::Random,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Slots a window whose sum each norm is divided by; 0 for none.
    local: u32 = 16,
    /// Rank of a Gaussian sketch redrawn at each eviction; 0 for the exact norms.
    rank: u32 = 0,
    /// First tokens that are protected; null: the study's.
    sinks: Option<u32> = None,
    /// When it evicts: periodic, per-step or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = knobs.with_sinks(params.sinks);
    let score = kv_sketch::Params { rank: params.rank, local: params.local, ..kv_sketch::Params::default() };
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::with("kv-sketch", &score)?)?.driven(params.driver))
}
