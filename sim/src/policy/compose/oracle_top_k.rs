//! The bound of token selection: everything is kept, each query attends to the tokens with the most true attention.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::attend::{Granularity, oracle_top_k};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "oracle-top-k",
    family: Family::Composition,
    summary: "the full cache is kept; a query attends to the tokens with the largest true attention: a bound",
    citation: "-",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Tokens attended to; null: the budget.
    tokens: Option<u32> = None,
    /// Who chooses: kv-head (mean over the group) or query-head.
    granularity: Granularity = Granularity::KvHead,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let Params { tokens, granularity } = raw.parse(SPEC.id)?;
    let attend = Part::with("oracle-top-k", &oracle_top_k::Params { tokens, granularity })?;
    Ok(StackSpec { attend, ..StackSpec::keeping_all(SPEC.id, *knobs)? })
}
