//! StreamingLLM: sinks and a recency window, under the periodic driver; keys at their original positions, or with
//! `rerotate` at their places in the cache.

use super::{CompositionEntry, Driver, Knobs, Part, Places, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "streaming-llm",
    family: Family::Composition,
    summary: "attention sinks and the most recent tokens",
    citation: "Xiao et al. 2023, arXiv 2309.17453",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Whether kept keys and the query are turned to their places in the cache, as the original does.
    rerotate: bool = false,
    /// When it evicts: periodic, per-step (as published) or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let places = if params.rerotate { Places::Cache } else { Places::Original };
    let spec = StackSpec::periodic(SPEC.id, *knobs, Part::plain("recency"))?.driven(params.driver);
    Ok(StackSpec { places, ..spec })
}
