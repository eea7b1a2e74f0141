//! VaSE-DKV: the product of sketched key and value norms decides, with a fresh Gaussian sketch at each eviction.
//! No attention, no value reservation, no pooling; sinks and the recent buffer stay.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::kv_sketch;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "vase-dkv",
    family: Family::Composition,
    summary: "top-K by the product of sketched key and value norms, the sketch redrawn at each eviction",
    citation: "VaSE, arXiv 2606.03928, mode `cur_resample_gauss`",
    needs: Needs::KV,
    randomness: Randomness::Random,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Rank of the sketch; 0 for the exact norms.
    rank: u32 = 20,
    /// Whether the sketch is redrawn at each eviction. `false` is CurDKV as VaSE compares it.
    resample: bool = true,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let score =
        kv_sketch::Params { rank: params.rank, resample: params.resample, ..kv_sketch::Params::default() };
    StackSpec::periodic(SPEC.id, *knobs, Part::with("kv-sketch", &score)?)
}
