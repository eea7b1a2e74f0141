//! SnapKV as a prefill compression: the window's attention over everything it sees, the window itself kept.
//!
//! The recent buffer is the observation window, as in the original. Differs from FasterDecoding/SnapKV: scores are
//! averaged over the query heads of a group, as in NVIDIA/kvpress, since keys are stored once a KV head.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::window_mass::{self, Normaliser};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "snapkv-prefill",
    family: Family::Composition,
    summary: "SnapKV as published: one cut after the prompt, nothing evicted while decoding",
    citation: "Li et al. 2024, arXiv 2404.14469; NVIDIA/kvpress kvpress/presses/snapkv_press.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Width of the average pooling over positions; odd, 1 for none.
    pool: u32 = 5,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = Knobs { sinks: 0, window: knobs.recent, ..*knobs };
    let score = window_mass::Params {
        window: knobs.window,
        pool: params.pool,
        normaliser: Normaliser::Visible,
        ..window_mass::Params::default()
    };
    let spec = StackSpec::periodic(SPEC.id, knobs, Part::with("window-mass", &score)?)?;
    Ok(StackSpec { schedule: Part::plain("end-of-prefill"), ..spec })
}
