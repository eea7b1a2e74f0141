//! Keys that differ from the mean direction stay (score `key-diff`), with the study's sinks and recent buffer.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "keydiff",
    family: Family::Composition,
    summary: "top-K by how far a key points away from the mean direction",
    citation: "Park et al. 2025, arXiv 2504.15364; NVIDIA/kvpress kvpress/presses/keydiff_press.py",
    needs: Needs::K,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// First tokens that are protected; null: the study's.
    sinks: Option<u32> = None,
    /// When it evicts: periodic, per-step or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = knobs.with_sinks(params.sinks);
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::plain("key-diff"))?.driven(params.driver))
}
