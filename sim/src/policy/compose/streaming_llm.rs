//! StreamingLLM: sinks and a recency window, under the periodic driver, keys at their original positions.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
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
    /// Whether kept keys are turned to their places in the cache, as the original does; refused, see the error.
    rerotate: bool = false,
    /// When it evicts: periodic, per-step (as published) or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    if params.rerotate {
        let reason = "re-rotation gives every kept key a place in the cache as its position, so that recorded attention no \
                      longer says anything about the policy, and the executor keeps original positions; use \
                      `rerotate: false`"
            .to_owned();
        return Err(PolicyError::Refused { policy: SPEC.id, reason });
    }
    Ok(StackSpec::periodic(SPEC.id, *knobs, Part::plain("recency"))?.driven(params.driver))
}
