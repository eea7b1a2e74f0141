//! VATP over H2O: accumulated attention times the L1 norm of the value, half of the budget for recent tokens, one token evicted a
//! step. Differs: sinks are the study's, where the code protects the first 20 tokens. `driver: periodic` gives the study's recent
//! buffer and period.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::{inner::Inner, value_weighted};
use crate::policy::{Family, Magnitude, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "vatp",
    family: Family::Composition,
    summary: "heavy hitters by accumulated attention times the value's L1 norm",
    citation: "Guo et al. 2024, arXiv 2406.12335; guozhiyu/vatp utils_hh/modify_llama.py",
    needs: Needs::QKV,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Share of the budget that the most recent tokens take; not looked at by the periodic driver.
    recent_share: f64 = 0.5,
    /// Measure of the value: l1, l2, range, variance or absmax.
    measure: Magnitude = Magnitude::L1,
    /// Power of the measure.
    exponent: f32 = 1.0,
    /// First tokens that are protected; null: the study's.
    sinks: Option<u32> = None,
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
    let knobs = knobs.with_sinks(params.sinks);
    let recent = super::h2o::share(knobs.capacity, params.recent_share);
    let knobs = if params.driver == Driver::Periodic { knobs } else { Knobs { recent, ..knobs } };
    let score = value_weighted::Params {
        of: Inner::plain("accumulated-attention"),
        measure: params.measure,
        exponent: params.exponent,
    };
    let spec = StackSpec::periodic(SPEC.id, knobs, Part::with("value-weighted", &score)?)?;
    Ok(spec.driven(params.driver))
}
