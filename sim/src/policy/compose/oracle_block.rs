//! The bound of block selection: everything is kept, each query attends to the blocks with the most true attention.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::attend::Granularity;
use crate::policy::attend::oracle_block::{self, Worth};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "oracle-block",
    family: Family::Composition,
    summary: "the full cache is kept; a query attends to the blocks with the largest true attention: a bound",
    citation: "Gao et al. 2025, arXiv 2506.08889",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Tokens attended to: so many blocks as fit, at least one; null: the budget.
    tokens: Option<u32> = None,
    /// Slots a block; 64 in SeerAttention-R.
    block: u32 = 16,
    /// What a block is worth: sum or max of its attention.
    worth: Worth = Worth::Sum,
    /// Who chooses: kv-head (mean over the group) or query-head.
    granularity: Granularity = Granularity::KvHead,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let Params { tokens, block, worth, granularity } = raw.parse(SPEC.id)?;
    let params = oracle_block::Params { tokens, block, worth, granularity };
    let attend = Part::with("oracle-block", &params)?;
    Ok(StackSpec { attend, ..StackSpec::keeping_all(SPEC.id, *knobs)? })
}
