//! H2O as published: half of the budget for the tokens with the most accumulated attention, half for the most recent
//! ones, one token evicted a step. `driver: periodic` gives the study's sinks, recent buffer and period instead.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "h2o",
    family: Family::Composition,
    summary: "heavy hitters by accumulated attention and as many recent tokens, one evicted a step",
    citation: "Zhang et al. 2023, arXiv 2306.14048; FMInference/H2O h2o_hf/utils_real_drop/modify_llama.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Share of the budget that the most recent tokens take; not looked at by the periodic driver.
    recent_share: f64 = 0.5,
    /// When it evicts: per-step (as published), periodic or prefill.
    driver: Driver = Driver::PerStep,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    if !(0.0..1.0).contains(&params.recent_share) {
        return Err(PolicyError::OutOfRange {
            kind: SPEC.id,
            param: "recent_share",
            found: params.recent_share.to_string(),
            accepted: "0 or more, below 1",
        });
    }
    let recent = share(knobs.capacity, params.recent_share);
    let knobs = match params.driver {
        Driver::Periodic => *knobs,
        Driver::PerStep | Driver::Prefill => Knobs { recent, sinks: 0, ..*knobs },
    };
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::plain("accumulated-attention"))?.driven(params.driver))
}

/// A share of a budget, rounded down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32 is a u32")]
pub(super) fn share(capacity: u32, share: f64) -> u32 {
    (f64::from(capacity) * share).floor() as u32
}
