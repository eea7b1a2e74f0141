//! LagKV (score `lag-kv`) with the study's sinks and recent buffer. With fewer than sinks + 2 · lag resident tokens the
//! score is recency: choose `lag` well below half the budget.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::lag_kv;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "lagkv",
    family: Family::Composition,
    summary: "top-K by the rank of a token's deviation inside its partition",
    citation: "Liang et al. 2025, arXiv 2504.04704; NVIDIA/kvpress kvpress/presses/lagkv_press.py",
    needs: Needs::KV,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Tokens a partition.
    lag: u32 = 128,
    /// First tokens that are protected; null: the study's.
    sinks: Option<u32> = None,
    /// When it evicts: periodic, per-step or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = knobs.with_sinks(params.sinks);
    let score = lag_kv::Params { lag: params.lag, sinks: knobs.sinks };
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::with("lag-kv", &score)?)?.driven(params.driver))
}
