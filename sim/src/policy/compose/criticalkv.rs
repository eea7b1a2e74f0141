//! CriticalKV over SnapKV's scores (score `critical`), with the study's sinks and recent buffer.

use super::{CompositionEntry, Driver, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::window_mass::{self, Normaliser};
use crate::policy::score::{critical, inner::Inner};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "criticalkv",
    family: Family::Composition,
    summary: "SnapKV's scores, half of them weighed by the value's norm after the output matrix",
    citation: "Feng et al. 2025, arXiv 2502.03805; NVIDIA/kvpress kvpress/presses/criticalkv_press.py",
    needs: Needs::QKV.and(Needs::W_O),
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Share of the chosen tokens that the first stage decides.
    first_share: f64 = 0.5,
    /// Width of the average pooling over slots; odd, 1 for none.
    pool: u32 = 5,
    /// First tokens that are protected; null: the study's.
    sinks: Option<u32> = None,
    /// When it evicts: periodic, per-step or prefill.
    driver: Driver = Driver::Periodic,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let knobs = knobs.with_sinks(params.sinks);
    let inner = window_mass::Params {
        window: knobs.window,
        pool: params.pool,
        normaliser: Normaliser::Visible,
        ..window_mass::Params::default()
    };
    let score = critical::Params {
        of: Inner::with("window-mass", &inner),
        first_share: params.first_share,
        ..critical::Params::default()
    };
    Ok(StackSpec::periodic(SPEC.id, knobs, Part::with("critical", &score)?)?.driven(params.driver))
}
