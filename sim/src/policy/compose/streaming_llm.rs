//! StreamingLLM: sinks and a recency window, under the periodic driver, keys at their original positions.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "streaming-llm",
    family: Family::Composition,
    summary: "attention sinks and the most recent tokens",
    citation: "Xiao et al. 2023, arXiv 2309.17453",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry = CompositionEntry {
    spec: &SPEC,
    build,
    defaults: || serde_json::to_value(Params::default()).unwrap_or_default(),
};

/// No parameters: sinks come from the study.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    raw.parse::<Params>(SPEC.id)?;
    StackSpec::periodic(SPEC.id, *knobs, Part::plain("recency"))
}
