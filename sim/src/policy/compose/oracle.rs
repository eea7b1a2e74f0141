//! The tokens that the rest of the recording attends to most: the bound that other scorers are read against. Replay only.
//! The bound is strict where there is one eviction; see score `oracle`.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "oracle",
    family: Family::Composition,
    summary: "top-K by true attention still to come: a bound, replay only",
    citation: "-",
    needs: Needs::QK.and(Needs::FUTURE),
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
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::plain("oracle"))?.driven(params.driver))
}
