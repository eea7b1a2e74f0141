//! Keep what has been attended to: the attention that a token received since it was stored.
//!
//! The sum runs over every query that saw the token, prompt included, each softmax over the tokens resident then; what
//! an evicted token received is dropped (see [`HeadState`](crate::policy::compose::HeadState)). Paper: Zhang et al.
//! 2023, "H2O" (arXiv 2306.14048); code FMInference/H2O `h2o_hf/utils_real_drop/modify_llama.py`. `per_query` divides
//! by the queries that could see the token, which takes away the advantage of early tokens: NVIDIA/kvpress
//! `kvpress/presses/observed_attention_press.py`. Differs: the mean over the query heads of a group, where the original
//! keeps a set for each query head. Needs: q, k. Cost: O(group · n) a step.

use super::Score;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "accumulated-attention",
    family: Family::Score,
    summary: "attention received since the token was stored, summed or per query (H2O)",
    citation: "Zhang et al. 2023, arXiv 2306.14048; NVIDIA/kvpress kvpress/presses/observed_attention_press.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(AccumulatedAttention { params: raw.parse(SPEC.id)? })),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Whether the sum is divided by the number of queries that could see the token (kvpress) or not (H2O).
    per_query: bool = false,
}

#[derive(Debug)]
struct AccumulatedAttention {
    params: Params,
}

impl Score for AccumulatedAttention {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_precision_loss, reason = "positions stay below 2^24")]
    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let scored = view.scored();
        out.clear();
        out.extend(scored.iter().zip(view.mass).map(|(pos, mass)| {
            let queries = view.at.seen.saturating_sub(pos.get()).max(1);
            if self.params.per_query { mass / queries as f32 } else { *mass }
        }));
        Ok(())
    }

    fn accumulates(&self) -> bool {
        true
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
