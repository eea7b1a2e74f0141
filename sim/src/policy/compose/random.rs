//! Random eviction under the periodic driver: the control that a scorer has to beat. Sinks are not protected unless
//! asked for, and the recent buffer is.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "random",
    family: Family::Composition,
    summary: "recent tokens and a random choice of the rest: the lower bound",
    citation: "NVIDIA/kvpress kvpress/presses/random_press.py",
    needs: Needs::NONE,
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
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// First tokens that are protected.
    pub sinks: u32,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    StackSpec::periodic(SPEC.id, Knobs { sinks: params.sinks, ..*knobs }, Part::plain("random"))
}
