//! Attend to the blocks that a trained gate chooses: SeerAttention-R.
//!
//! The queries of a group, before their rotation, are multiplied by learned matrices and summed; the keys of a block, before
//! their rotation, are pooled by maximum, minimum and mean and multiplied by another. The product of both over √gate_dim decides:
//! so many blocks as fit, and the last block always. Paper: Gao et al. 2025, "SeerAttention-R" (arXiv 2506.08889); code
//! microsoft/SeerAttention `seer_attn/decode_sparse/attn_gate_inf.py`. Differs: no rotation and no norm after the projection;
//! blocks are chosen by rank only, not by threshold. Needs: q, k, the rotary frequencies and the gate's weights, which no
//! trace holds: a scenario that asks for it is refused, and code can give them to [`SeerGate::new`]. Without them
//! `oracle-block` is the bound and `quest` the untrained stand-in. Cost: O(n · head_dim + blocks · gate_dim) a step.

use super::{Attend, AttendView, Attended, at_least_one, slots_of_blocks, tokens_or_budget};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};
use crate::types::{LayerIdx, Pos};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "seer-gate",
    family: Family::Attend,
    summary: "the blocks that a trained gate chooses (SeerAttention-R); refused without the gate's weights",
    citation: "Gao et al. 2025, arXiv 2506.08889; microsoft/SeerAttention seer_attn/decode_sparse/attn_gate_inf.py",
    needs: Needs::QK.and(Needs::ROPE),
    randomness: Randomness::Deterministic,
    laws: &[Law::HeadSymmetric],
};

/// Registry line. It always refuses: a scenario has no place for weights.
pub const ENTRY: Entry<dyn Attend> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        let reason = "it needs the weights of a trained gate, which no trace holds; `oracle-block` bounds it and `quest` is \
                      the untrained stand-in"
            .to_owned();
        Err(PolicyError::Refused { policy: SPEC.id, reason })
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Tokens attended to: so many blocks as fit, at least one, and the last block beside them; null: the budget.
    tokens: Option<u32> = None,
    /// Slots a block.
    block: u32 = 64,
}

/// The gate of one layer, the same for all its KV heads or one that knows its head.
#[derive(Clone, Debug, PartialEq)]
pub struct GateWeights {
    /// For each query head of the group, `[member]`, a matrix `[gate_dim, head_dim]` flattened.
    pub query: Vec<Vec<f32>>,
    /// For pooled keys, `[gate_dim, 3 · head_dim]` flattened: maximum, minimum, mean.
    pub key: Vec<f32>,
    /// Rows of both.
    pub gate_dim: usize,
}

/// A gate with its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct SeerGate {
    params: Params,
    weights: GateWeights,
}

impl SeerGate {
    /// A gate with these weights.
    ///
    /// # Errors
    /// When a parameter is 0.
    pub fn new(params: Params, weights: GateWeights) -> Result<Self, PolicyError> {
        at_least_one(SPEC.id, "block", params.block)?;
        tokens_or_budget(SPEC.id, params.tokens)?;
        Ok(Self { params, weights })
    }

    fn project(&self, matrix: &[f32], vector: &[f32]) -> Vec<f32> {
        matrix
            .chunks_exact(vector.len())
            .take(self.weights.gate_dim)
            .map(|row| num::dot(row, vector))
            .collect()
    }
}

/// Maximum, minimum and mean over the tokens of a block, `[3 · head_dim]`.
#[expect(clippy::cast_precision_loss, reason = "blocks are small")]
fn pooled(keys: &[Vec<f32>]) -> Vec<f32> {
    let over = |join: fn(f32, f32) -> f32| -> Vec<f32> {
        let mut all = keys[0].clone();
        for key in &keys[1..] {
            all.iter_mut().zip(key).for_each(|(a, x)| *a = join(*a, *x));
        }
        all
    };
    let (high, low, sum) = (over(f32::max), over(f32::min), over(|a, x| a + x));
    let mean = sum.into_iter().map(|x| x / keys.len() as f32);
    high.into_iter().chain(low).chain(mean).collect()
}

impl Attend for SeerGate {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_precision_loss, reason = "gates are narrow")]
    fn attend(&self, view: &AttendView<'_>) -> Result<Attended, PolicyError> {
        let what = "the rotary frequencies of the model";
        let rope = view.data.rope().ok_or(PolicyError::Missing { policy: SPEC.id, what })?;
        let group = view.data.group();
        if self.weights.query.len() != group {
            let reason = format!("the gate has {} query heads, the group {group}", self.weights.query.len());
            return Err(PolicyError::Refused { policy: SPEC.id, reason });
        }
        let mut query = vec![0.0; self.weights.gate_dim];
        for (member, matrix) in self.weights.query.iter().enumerate() {
            let plain = rope.unrotated(view.data.query(member, view.query), view.query);
            num::add_scaled(&mut query, 1.0, &self.project(matrix, &plain));
        }
        let block = self.params.block as usize;
        let scale = 1.0 / (self.weights.gate_dim as f32).sqrt();
        let mut scores: Vec<f32> = view
            .resident
            .chunks(block)
            .map(|tokens| {
                let plain = |&pos: &Pos| rope.unrotated(view.data.key(pos), pos);
                let keys: Vec<Vec<f32>> = tokens.iter().map(plain).collect();
                num::dot(&query, &self.project(&self.weights.key, &pooled(&keys))) * scale
            })
            .collect();
        // The last block always: its tokens are the newest.
        if let Some(last) = scores.last_mut() {
            *last = f32::INFINITY;
        }
        let tokens = self.params.tokens.unwrap_or(view.budget);
        let count = (tokens / self.params.block).max(1) as usize + 1;
        let slots = slots_of_blocks(&scores, count, block, view.resident.len());
        Ok(Attended::Slots(vec![slots; group]))
    }

    fn takes_budget(&self) -> bool {
        self.params.tokens.is_none()
    }

    fn metadata_scalars(&self, _layer: LayerIdx, resident: usize, _head_dim: usize) -> usize {
        resident / self.params.block as usize * self.weights.gate_dim
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_pooled_by_maximum_minimum_and_mean() {
        let found = pooled(&[vec![1.0, -2.0], vec![3.0, 4.0]]);
        assert_eq!(found.iter().map(|x| x.round()).collect::<Vec<_>>(), [3.0, 4.0, 1.0, -2.0, 2.0, 1.0]);
    }

    #[test]
    fn without_weights_it_is_refused_with_the_reason() {
        let error = (ENTRY.build)(&crate::policy::RawParams::default()).unwrap_err().to_string();
        assert!(error.contains("trained gate") && error.contains("quest"), "{error}");
    }
}
