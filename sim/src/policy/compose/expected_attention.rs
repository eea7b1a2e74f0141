//! ExpectedAttention (score `expected-attention`) with the study's sinks and recent buffer.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::expected_attention;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "expected-attention",
    family: Family::Composition,
    summary: "top-K by the expected attention of future queries times the value's norm",
    citation: "Devoto et al. 2025, arXiv 2510.00636; NVIDIA/kvpress kvpress/presses/expected_attention_press.py",
    needs: Needs::QKV.and(Needs::ROPE),
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Recent queries that mean and covariance are taken over.
    window: u32 = 256,
    /// Future positions whose rotations are averaged.
    future: u32 = 512,
    /// Added to the attention before it is multiplied by the norm.
    epsilon: f32 = 0.0,
    /// First tokens that are protected; null: the study's.
    sinks: Option<u32> = None,
    /// When it evicts: periodic, per-step or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = knobs.with_sinks(params.sinks);
    let score = expected_attention::Params {
        window: params.window,
        future: params.future,
        sinks: knobs.sinks,
        epsilon: params.epsilon,
        ..expected_attention::Params::default()
    };
    let spec = StackSpec::periodic(SPEC.id, knobs, Part::with("expected-attention", &score)?)?;
    Ok(spec.driven(params.driver))
}
