//! The full cache: every comparison is read against it.

use super::{CompositionEntry, Knobs, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "full",
    family: Family::Composition,
    summary: "the full cache, nothing is evicted: the upper bound of quality and memory",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    raw.parse::<Params>(SPEC.id)?;
    StackSpec::keeping_all(SPEC.id, *knobs)
}
