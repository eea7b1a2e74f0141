//! VaSE's early multiplicative weighting: smoothed window attention times the range of the value, highest products kept.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::{inner::Inner, value_weighted, window_mass};
use crate::policy::{Family, Magnitude, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "attn-range",
    family: Family::Composition,
    summary: "top-K by smoothed window attention times the value's range (VaSE's attn_range)",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::QKV,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Width of the average pooling over slots; odd, 1 for none.
    pool: u32 = 5,
    /// Measure of the value: range, l1, l2, variance or absmax.
    measure: Magnitude = Magnitude::Range,
    /// Power of the measure.
    exponent: f32 = 1.0,
    /// First tokens that are protected.
    sinks: u32 = 0,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let inner =
        window_mass::Params { window: knobs.window, pool: params.pool, ..window_mass::Params::default() };
    let score = value_weighted::Params {
        of: Inner::with("window-mass", &inner),
        measure: params.measure,
        exponent: params.exponent,
    };
    let knobs = Knobs { sinks: params.sinks, ..*knobs };
    StackSpec::periodic(SPEC.id, knobs, Part::with("value-weighted", &score)?)
}
