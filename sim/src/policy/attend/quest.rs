//! Attend to the pages whose keys could have the largest product with the query: Quest.
//!
//! A page keeps the largest and smallest key of each channel; Σ_c max(q_c · largest_c, q_c · smallest_c) bounds the product of
//! the query with any of its keys. The pages with the largest bounds are attended to, at least `least_pages`; the first
//! layers attend to everything. Paper: Tang et al. 2024, "Quest" (arXiv 2406.10774); code mit-han-lab/Quest
//! `evaluation/quest_attention.py`. With `kv-head` the bound is the largest over the group, as ports to grouped queries
//! have it. Needs: q, k. Cost: O(group · pages · head_dim) a step.

use super::{
    Attend, AttendView, Attended, Granularity, at_least_one, shared_out, slots_of_blocks, tokens_or_budget,
};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};
use crate::types::LayerIdx;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "quest",
    family: Family::Attend,
    summary: "the pages with the largest bound on the product of query and key",
    citation: "Tang et al. 2024, arXiv 2406.10774; mit-han-lab/Quest evaluation/quest_attention.py",
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
        at_least_one(SPEC.id, "page", params.page)?;
        at_least_one(SPEC.id, "least_pages", params.least_pages)?;
        Ok(Box::new(Quest { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

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

#[derive(Debug)]
struct Quest {
    params: Params,
}

/// The largest product that `query` could have with a key between `low` and `high` in every channel.
fn bound(query: &[f32], low: &[f32], high: &[f32]) -> f32 {
    let channel = |((q, low), high): ((&f32, &f32), &f32)| {
        let (a, b) = (q * low, q * high);
        if a > b { a } else { b }
    };
    query.iter().zip(low).zip(high).map(channel).fold(0.0, |total, x| total + x)
}

/// Smallest and largest key of each page, `[page]`, each `[head_dim]`.
fn extremes(view: &AttendView<'_>, page: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    view.resident
        .chunks(page)
        .map(|positions| {
            let mut low = view.data.key(positions[0]).to_vec();
            let mut high = low.clone();
            for &pos in positions {
                for (channel, &x) in view.data.key(pos).iter().enumerate() {
                    low[channel] = if x < low[channel] { x } else { low[channel] };
                    high[channel] = if x > high[channel] { x } else { high[channel] };
                }
            }
            (low, high)
        })
        .collect()
}

impl Attend for Quest {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn attend(&self, view: &AttendView<'_>) -> Result<Attended, PolicyError> {
        let Params { tokens, page, least_pages, dense_layers, granularity } = self.params;
        if u32::from(view.at.layer.get()) < dense_layers {
            return Ok(Attended::All);
        }
        let pages = extremes(view, page as usize);
        let count = (tokens.unwrap_or(view.budget) / page).max(least_pages) as usize;
        let group = view.data.group();
        let mut bounds: Vec<Vec<f32>> = (0..group)
            .map(|member| {
                let query = view.data.query(member, view.query);
                pages.iter().map(|(low, high)| bound(query, low, high)).collect()
            })
            .collect();
        if granularity == Granularity::KvHead {
            let largest = (0..pages.len())
                .map(|page| {
                    bounds
                        .iter()
                        .map(|row| row[page])
                        .fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
                })
                .collect();
            bounds = vec![largest];
        }
        let chosen = bounds
            .iter()
            .map(|row| slots_of_blocks(row, count, page as usize, view.resident.len()))
            .collect();
        Ok(shared_out(chosen, group))
    }

    fn takes_budget(&self) -> bool {
        self.params.tokens.is_none()
    }

    fn metadata_scalars(&self, layer: LayerIdx, resident: usize, head_dim: usize) -> usize {
        let is_dense = u32::from(layer.get()) < self.params.dense_layers;
        if is_dense { 0 } else { resident.div_ceil(self.params.page as usize) * 2 * head_dim }
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Golden vector G12 of the policy specification: the true products are -5 and 4.
    #[test]
    fn the_bound_is_the_golden_one() {
        let found = bound(&[1.0, -2.0], &[1.0, -1.0], &[2.0, 3.0]);
        assert!((found - 4.0).abs() < 1e-6, "{found}");
    }

    #[test]
    fn no_key_of_a_page_exceeds_its_bound() {
        let keys: [[f32; 3]; 4] = [[0.5, -1.0, 2.0], [-0.3, 0.1, 1.5], [2.0, 2.0, -2.0], [0.0, -3.0, 0.4]];
        let low: Vec<f32> = (0..3).map(|c| keys.iter().map(|k| k[c]).fold(f32::MAX, f32::min)).collect();
        let high: Vec<f32> = (0..3).map(|c| keys.iter().map(|k| k[c]).fold(f32::MIN, f32::max)).collect();
        for query in [[1.0f32, 1.0, 1.0], [-1.0, 0.5, 2.0], [0.0, -4.0, 0.1]] {
            let most = bound(&query, &low, &high);
            assert!(keys.iter().all(|key| crate::num::dot(&query, key) <= most + 1e-5));
        }
    }
}
