//! CurDKV as VaSE compares it: a sketch drawn once a layer, no local normalisation, product of key and value norms.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::kv_sketch;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "curdkv",
    family: Family::Composition,
    summary: "top-K by the product of sketched key and value norms, one sketch for all evictions",
    citation: "Sengupta et al. 2025, arXiv 2509.15038; VaSE mode `cur_fixed_gauss`",
    needs: Needs::KV,
    randomness: Randomness::Random,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Rank of the sketch; 0 for the exact norms (VaSE's CUR without a sketch).
    rank: u32 = 20,
    /// First tokens that are protected; null: the study's.
    sinks: Option<u32> = None,
    /// When it evicts: periodic, per-step or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = knobs.with_sinks(params.sinks);
    let score = kv_sketch::Params { rank: params.rank, resample: false, ..kv_sketch::Params::default() };
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::with("kv-sketch", &score)?)?.driven(params.driver))
}
