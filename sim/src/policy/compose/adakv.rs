//! SnapKV's scores with the room of a layer moved to the heads that score highest (budget `ada`).

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::budget::ada;
use crate::policy::doc::{defaults, params};
use crate::policy::score::window_mass::{self, Normaliser};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "adakv",
    family: Family::Composition,
    summary: "SnapKV's scores, the layer's budget shared out between heads by score",
    citation: "Feng et al. 2024, arXiv 2407.11550; NVIDIA/kvpress kvpress/presses/adakv_press.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Share of its own room that a head keeps whatever the others score.
    safeguard: f64 = 0.2,
    /// Width of the average pooling over slots; odd, 1 for none.
    pool: u32 = 5,
    /// First tokens that are protected.
    sinks: u32 = 0,
    /// When it evicts: periodic, per-step or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = Knobs { sinks: params.sinks, ..*knobs };
    let score = window_mass::Params {
        window: knobs.window,
        pool: params.pool,
        normaliser: Normaliser::Visible,
        ..window_mass::Params::default()
    };
    let spec = StackSpec::periodic(SPEC.id, knobs, Part::with("window-mass", &score)?)?;
    let budget = Part::with("ada", &ada::Params { safeguard: params.safeguard })?;
    Ok(StackSpec { budget, ..spec }.driven(params.driver))
}
