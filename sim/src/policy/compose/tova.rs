//! TOVA as published: the token that the last query looks at least goes, at every step, in all KV heads of the layer alike;
//! the newest token competes too. `driver: periodic` gives the study's sinks, recent buffer and period instead.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "tova",
    family: Family::Composition,
    summary: "the token least attended by the last query goes, at every step, in all heads alike",
    citation: "Oren et al. 2024, arXiv 2401.06104; schwartz-lab-NLP/TOVA src/tova_cache.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Most recent tokens that are protected; 1 in kvpress. Not looked at by the periodic driver.
    recent: u32 = 0,
    /// When it evicts: per-step (as published), periodic or prefill.
    driver: Driver = Driver::PerStep,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = match params.driver {
        Driver::Periodic => *knobs,
        Driver::PerStep | Driver::Prefill => Knobs { recent: params.recent, sinks: 0, ..*knobs },
    };
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::plain("last-attention"))?.driven(params.driver))
}
