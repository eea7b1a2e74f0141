//! SnapKV's scorer under the periodic driver, as VaSE compares it: mode `attn`, no protection of sinks.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::window_mass;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "snapkv",
    family: Family::Composition,
    summary: "top-K by the smoothed attention of the last W queries, periodically (VaSE's SnapKV bars)",
    citation: "Li et al. 2024, arXiv 2404.14469; VaSE mode `attn`",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Width of the average pooling over slots; odd, 1 for none.
    pool: u32 = 5,
    /// First tokens that are protected.
    sinks: u32 = 0,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let score =
        window_mass::Params { window: knobs.window, pool: params.pool, ..window_mass::Params::default() };
    StackSpec::periodic(SPEC.id, Knobs { sinks: params.sinks, ..*knobs }, Part::with("window-mass", &score)?)
}
