//! Quest: everything is kept, each query attends to the pages whose keys could have the largest product with it.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::attend::{Granularity, quest};
use crate::policy::doc::{defaults, params};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "quest",
    family: Family::Composition,
    summary: "the full cache is kept; a query attends to the pages with the largest bound, as many as the budget holds",
    citation: "Tang et al. 2024, arXiv 2406.10774",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Tokens attended to: so many pages as fit; null: the budget.
    tokens: Option<u32> = None,
    /// Slots a page; 16 in the original, 64 in SeerAttention's port.
    page: u32 = 16,
    /// Pages that are always chosen.
    least_pages: u32 = 3,
    /// First layers that attend to everything.
    dense_layers: u32 = 2,
    /// Who chooses: query-head (the original) or kv-head (the largest bound of the group).
    granularity: Granularity = Granularity::QueryHead,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let Params { tokens, page, least_pages, dense_layers, granularity } = raw.parse(SPEC.id)?;
    let params = quest::Params { tokens, page, least_pages, dense_layers, granularity };
    let attend = Part::with("quest", &params)?;
    Ok(StackSpec { attend, ..StackSpec::keeping_all(SPEC.id, *knobs)? })
}
