//! SeerAttention-R: everything is kept, a trained gate chooses the blocks. Refused without the gate's weights; code that
//! has them in memory builds the stack with [`Stack::attending`](super::Stack::attending).

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::attend::seer_gate;
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "seer-gate",
    family: Family::Composition,
    summary: "the full cache is kept; a trained gate chooses the blocks: refused without the gate's weights",
    citation: "Gao et al. 2025, arXiv 2506.08889",
    needs: Needs::QK.and(Needs::ROPE),
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    owned;
    /// Tokens attended to: so many blocks as fit, at least one, and the last block beside them; null: the budget.
    tokens: Option<u32> = None,
    /// Slots a block.
    block: u32 = 64,
    /// Safetensors file with the gate of each layer, as SeerAttention-R saves them; from where the command is run.
    weights: Option<String> = None,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let Params { tokens, block, weights } = raw.parse(SPEC.id)?;
    let attend = Part::with("seer-gate", &seer_gate::Params { tokens, block, weights })?;
    Ok(StackSpec { attend, ..StackSpec::keeping_all(SPEC.id, *knobs)? })
}
