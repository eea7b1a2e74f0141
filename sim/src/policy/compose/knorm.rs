//! Small keys stay (score `key-norm`), with the study's sinks and recent buffer.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "knorm",
    family: Family::Composition,
    summary: "top-K by minus the norm of the key",
    citation: "Devoto et al. 2024, arXiv 2406.11430; NVIDIA/kvpress kvpress/presses/knorm_press.py",
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
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::plain("key-norm"))?.driven(params.driver))
}
