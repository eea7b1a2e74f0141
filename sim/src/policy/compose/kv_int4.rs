//! Nothing is evicted; keys and values are stored in 4 bits.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::store::per_token_int;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "kv-int4",
    family: Family::Composition,
    summary: "the full cache in 4 bits a channel, each token with its own scales",
    citation: "VaSE, arXiv 2606.03928 (its storage study)",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Channels that share a scale and a smallest value.
    group: u16 = 32,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let Params { group } = raw.parse(SPEC.id)?;
    let store = Part::with("per-token-int", &per_token_int::Params { bits: 4, group })?;
    Ok(StackSpec { store, ..StackSpec::keeping_all(SPEC.id, *knobs)? })
}
