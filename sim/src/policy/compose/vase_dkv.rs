//! VaSE-DKV: the product of sketched key and value norms decides, with a fresh Gaussian sketch at each eviction.
//! No attention, no value reservation, no pooling; sinks and the recent buffer stay.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::score::kv_sketch;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "vase-dkv",
    family: Family::Composition,
    summary: "top-K by the product of sketched key and value norms, the sketch redrawn at each eviction",
    citation: "VaSE, arXiv 2606.03928, mode `cur_resample_gauss`",
    needs: Needs { queries: false, keys: true, values: true, lens: false },
    randomness: Randomness::Random,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry = CompositionEntry {
    spec: &SPEC,
    build,
    defaults: || serde_json::to_value(Params::default()).unwrap_or_default(),
};

/// Parameters.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Rank of the sketch; 0 for the exact norms.
    pub rank: u32,
    /// Whether the sketch is redrawn at each eviction. `false` is CurDKV as VaSE compares it.
    pub resample: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self { rank: 20, resample: true }
    }
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let score = kv_sketch::Params { rank: params.rank, resample: params.resample };
    StackSpec::periodic(SPEC.id, *knobs, Part::with("kv-sketch", &score)?)
}
