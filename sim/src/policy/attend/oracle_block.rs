//! Attend to the blocks that are attended to most: the bound of block selection, such as SeerAttention-R and Quest.
//!
//! A block scores the sum or the largest of the true attention of its tokens. Needs: q, k. Cost: O(group · n · head_dim) a
//! step.

use super::{
    Attend, AttendView, Attended, Granularity, at_least_one, attention, choices, shared_out, slots_of_blocks,
    tokens_or_budget,
};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "oracle-block",
    family: Family::Attend,
    summary: "the blocks with the largest true attention: the bound of block selection",
    citation: "Gao et al. 2025, arXiv 2506.08889",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Attend> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        tokens_or_budget(SPEC.id, params.tokens)?;
        at_least_one(SPEC.id, "block", params.block)?;
        Ok(Box::new(OracleBlock { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

/// What a block is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Worth {
    /// The sum of its attention.
    #[default]
    Sum,
    /// Its largest attention.
    Max,
}

params! {
    /// Tokens attended to: so many blocks as fit, at least one; null: the budget.
    tokens: Option<u32> = None,
    /// Slots a block.
    block: u32 = 64,
    /// What a block is worth: sum or max of its attention.
    worth: Worth = Worth::Sum,
    /// Who chooses: kv-head (mean over the group) or query-head.
    granularity: Granularity = Granularity::KvHead,
}

#[derive(Debug)]
struct OracleBlock {
    params: Params,
}

impl Attend for OracleBlock {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn attend(&self, view: &AttendView<'_>) -> Result<Attended, PolicyError> {
        let Params { tokens, block, worth, granularity } = self.params;
        let count = (tokens.unwrap_or(view.budget) / block).max(1) as usize;
        let of_row = |row: Vec<f32>| {
            let of_block = |block: &[f32]| match worth {
                Worth::Sum => num::sum(block),
                Worth::Max => num::max(block),
            };
            let scores: Vec<f32> = row.chunks(block as usize).map(of_block).collect();
            slots_of_blocks(&scores, count, block as usize, row.len())
        };
        let rows = choices(attention(view), granularity);
        Ok(shared_out(rows.into_iter().map(of_row).collect(), view.data.group()))
    }

    fn takes_budget(&self) -> bool {
        self.params.tokens.is_none()
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
