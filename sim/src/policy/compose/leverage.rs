//! Keys that the others do not span stay (score `leverage`), with the study's sinks and recent buffer.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "leverage",
    family: Family::Composition,
    summary: "top-K by statistical leverage of the key before its rotation",
    citation: "NVIDIA/kvpress kvpress/presses/leverage_press.py",
    needs: Needs::K.and(Needs::ROPE),
    randomness: Randomness::Random,
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
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::plain("leverage"))?.driven(params.driver))
}
