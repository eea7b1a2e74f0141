//! Nothing is evicted; keys and values are integers, but the N_v widest value states of a head stay in binary16.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::store::mixed;
use crate::policy::{Family, Magnitude, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "kv-mixed",
    family: Family::Composition,
    summary: "the full cache in integers, the N_v widest value states in binary16",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::V,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// N_v: values of a KV head that stay in binary16.
    value_tokens: u32 = 16,
    /// Measure of the value: range, l1, l2, variance or absmax.
    measure: Magnitude = Magnitude::Range,
    /// Bits a channel of the others: 2, 4 or 8.
    bits: u8 = 4,
    /// Channels that share a scale and a smallest value.
    group: u16 = 32,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let Params { value_tokens, measure, bits, group } = raw.parse(SPEC.id)?;
    let store = Part::with("mixed", &mixed::Params { value_tokens, measure, bits, group })?;
    Ok(StackSpec { store, ..StackSpec::keeping_all(SPEC.id, *knobs)? })
}
