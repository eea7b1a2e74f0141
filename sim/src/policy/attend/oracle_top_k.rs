//! Attend to the tokens that are attended to most: the ceiling for an equal number of attended tokens.
//!
//! The true attention decides, so nothing is saved: a bound. Needs: q, k. Cost: O(group · n · head_dim) a step.

use super::{Attend, AttendView, Attended, Granularity, attention, choices, shared_out, tokens_or_budget};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "oracle-top-k",
    family: Family::Attend,
    summary: "the tokens with the largest true attention: a bound",
    citation: "-",
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
        Ok(Box::new(OracleTopK { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Tokens attended to; null: the budget.
    tokens: Option<u32> = None,
    /// Who chooses: kv-head (mean over the group) or query-head.
    granularity: Granularity = Granularity::KvHead,
}

#[derive(Debug)]
struct OracleTopK {
    params: Params,
}

impl Attend for OracleTopK {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn attend(&self, view: &AttendView<'_>) -> Result<Attended, PolicyError> {
        let tokens = self.params.tokens.unwrap_or(view.budget) as usize;
        let best = |row: Vec<f32>| -> Vec<usize> {
            let all: Vec<(f32, u32)> = row.into_iter().zip(0u32..).collect();
            let mut slots: Vec<usize> =
                num::top(all, tokens).into_iter().map(|(_, slot)| slot as usize).collect();
            slots.sort_unstable();
            slots
        };
        let rows = choices(attention(view), self.params.granularity);
        Ok(shared_out(rows.into_iter().map(best).collect(), view.data.group()))
    }

    fn takes_budget(&self) -> bool {
        self.params.tokens.is_none()
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
