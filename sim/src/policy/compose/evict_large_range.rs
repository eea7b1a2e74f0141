//! VaSE's collapse test: the widest value states go first. If they matter, this must hurt more than evicting at random.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "evict-large-range",
    family: Family::Composition,
    summary: "the widest value states are evicted: VaSE's collapse test",
    citation: "VaSE, arXiv 2606.03928, `evict_large_range`",
    needs: Needs::V,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// First tokens that are protected.
    sinks: u32 = 0,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = Knobs { sinks: params.sinks, ..*knobs };
    StackSpec::periodic(SPEC.id, knobs, Part::plain("narrow-value"))
}
