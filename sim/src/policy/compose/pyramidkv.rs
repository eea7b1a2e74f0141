//! SnapKV's scores under budgets that fall from layer to layer (budget `pyramid`).

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::budget::pyramid;
use crate::policy::doc::{defaults, params};
use crate::policy::score::window_mass::{self, Normaliser};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "pyramidkv",
    family: Family::Composition,
    summary: "SnapKV's scores, larger budgets for lower layers",
    citation: "Cai et al. 2024, arXiv 2406.02069; NVIDIA/kvpress kvpress/presses/pyramidkv_press.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// The last layer gets the mean budget divided by this.
    beta: u32 = 20,
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
    let budget = Part::with("pyramid", &pyramid::Params { beta: params.beta })?;
    Ok(StackSpec { budget, ..spec }.driven(params.driver))
}
