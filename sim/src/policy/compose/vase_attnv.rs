//! VaSE-AttnV: the N_v widest value states (sinks among them) are kept, the other K − N_v slots are sampled without
//! replacement with the smoothed window attention as weights, and the recent buffer stays.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::reserve::value_range;
use crate::policy::score::window_mass;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "vase-attnv",
    family: Family::Composition,
    summary: "N_v widest values reserved, the rest sampled by smoothed window attention",
    citation: "VaSE, arXiv 2606.03928, mode `range_sink_sample_attn`",
    needs: Needs { queries: true, keys: true, values: true, lens: false },
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
    /// N_v in tokens, sinks included. Absent: `value_share` decides.
    pub value_tokens: Option<u32>,
    /// N_v as a share of the budget C.
    pub value_share: f64,
    /// Width of the average pooling over slots; odd, 1 for none.
    pub pool: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self { value_tokens: None, value_share: 0.25, pool: 5 }
    }
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let score =
        window_mass::Params { window: knobs.window, pool: params.pool, ..window_mass::Params::default() };
    let reserve = value_range::Params { tokens: params.value_tokens, share: params.value_share };
    let spec = StackSpec::periodic(SPEC.id, *knobs, Part::with("window-mass", &score)?)?;
    Ok(StackSpec {
        reserve: Part::with("value-range", &reserve)?,
        select: Part::plain("weighted-sample"),
        ..spec
    })
}
