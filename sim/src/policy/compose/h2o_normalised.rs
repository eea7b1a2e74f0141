//! Accumulated attention divided by the queries that could see the token, as kvpress has H2O: without the advantage of
//! early tokens. With the study's sinks and recent buffer.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::accumulated_attention;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "h2o-normalised",
    family: Family::Composition,
    summary: "top-K by accumulated attention per query that could see the token",
    citation: "NVIDIA/kvpress kvpress/presses/observed_attention_press.py",
    needs: Needs::QK,
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
    let score = accumulated_attention::Params { per_query: true };
    let spec = StackSpec::periodic(SPEC.id, knobs, Part::with("accumulated-attention", &score)?)?;
    Ok(spec.driven(params.driver))
}
