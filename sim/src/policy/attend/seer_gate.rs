//! Attend to the blocks that a trained gate chooses: SeerAttention-R.
//!
//! The queries of a group, before their rotation, are multiplied by learned matrices and summed; the keys of a block, before
//! their rotation, are pooled by maximum, minimum and mean and multiplied by another. The product of both over √gate_dim decides:
//! so many blocks as fit, and the last block always. Paper: Gao et al. 2025, "SeerAttention-R" (arXiv 2506.08889); code
//! microsoft/SeerAttention `seer_attn/decode_sparse/attn_gate_inf.py`. Differs: no rotation after the projection, so a gate
//! that was trained with one scores other than there; blocks are chosen by rank only, not by threshold, and the last block
//! is one more than the others. Needs: q, k, the rotary frequencies and the gate's weights, in a file that `weights` names
//! ([`gate_file`](super::gate_file) says what is in it). Without them `oracle-block` is the bound and `quest` the untrained
//! stand-in. Cost: O(n · head_dim + blocks · gate_dim) a step.

use super::gate_file::Gates;
use super::{Attend, AttendView, Attended, at_least_one, slots_of_blocks, tokens_or_budget};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{At, Entry, Family, Needs, PolicyError, PolicySpec, Randomness};
use crate::types::{LayerIdx, Pos};
use std::path::Path;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "seer-gate",
    family: Family::Attend,
    summary: "the blocks that a trained gate chooses (SeerAttention-R); refused without the gate's weights",
    citation: "Gao et al. 2025, arXiv 2506.08889; microsoft/SeerAttention seer_attn/decode_sparse/attn_gate_inf.py",
    needs: Needs::QK.and(Needs::ROPE),
    randomness: Randomness::Deterministic,
    // Not symmetric in heads: each has a gate of its own.
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Attend> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        let refused = |reason| PolicyError::Refused { policy: SPEC.id, reason };
        let Some(path) = &params.weights else {
            let reason = "it needs the weights of a trained gate, which no trace holds: `weights` names their file; without \
                          one, `oracle-block` bounds it and `quest` is the untrained stand-in";
            return Err(refused(reason.to_owned()));
        };
        let gates = Gates::load(Path::new(path)).map_err(|error| refused(error.to_string()))?;
        Ok(Box::new(SeerGate::new(params, gates)?))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    owned;
    /// Tokens attended to: so many blocks as fit, at least one, and the last block beside them; null: the budget.
    tokens: Option<u32> = None,
    /// Slots a block.
    block: u32 = 64,
    /// Safetensors file with the gate of each layer, as SeerAttention-R saves them; from where the command is run.
    weights: Option<String> = None,
}

/// The gate of one KV head of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GateWeights {
    /// For each query head of the group, `[member]`, a matrix `[gate_dim, head_dim]` flattened.
    pub query: Vec<Vec<f32>>,
    /// For pooled keys, `[gate_dim, 3 · head_dim]` flattened: maximum, minimum, mean.
    pub key: Vec<f32>,
    /// Rows of both.
    pub gate_dim: usize,
    /// Weights of the RMS norm of projected queries, `[gate_dim]`; empty for no norm.
    pub query_norm: Vec<f32>,
    /// The same of projected keys.
    pub key_norm: Vec<f32>,
}

/// Added to the mean square in both norms.
const NORM_EPSILON: f32 = 1e-6;

impl GateWeights {
    fn project(&self, matrix: &[f32], vector: &[f32]) -> Vec<f32> {
        matrix.chunks_exact(vector.len()).take(self.gate_dim).map(|row| num::dot(row, vector)).collect()
    }
}

/// Root-mean-square norm in place; nothing without weights.
#[expect(clippy::cast_precision_loss, reason = "gates are narrow")]
fn normalise(vector: &mut [f32], weights: &[f32]) {
    if weights.is_empty() {
        return;
    }
    let mean_square = num::dot(vector, vector) / vector.len() as f32;
    let factor = 1.0 / (mean_square + NORM_EPSILON).sqrt();
    vector.iter_mut().zip(weights).for_each(|(x, weight)| *x *= factor * weight);
}

/// Gates with their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct SeerGate {
    params: Params,
    gates: Gates,
}

impl SeerGate {
    /// Gates with these weights, whatever file `params` name.
    ///
    /// # Errors
    /// When a parameter is 0.
    pub fn new(params: Params, gates: Gates) -> Result<Self, PolicyError> {
        at_least_one(SPEC.id, "block", params.block)?;
        tokens_or_budget(SPEC.id, params.tokens)?;
        Ok(Self { params, gates })
    }

    /// The gate of a head whose query heads are `group` and whose vectors have `head_dim` channels.
    fn gate(&self, at: At, group: usize, head_dim: usize) -> Result<&GateWeights, PolicyError> {
        let refused = |reason| PolicyError::Refused { policy: SPEC.id, reason };
        let gate = self.gates.of(at.layer, at.head).ok_or_else(|| {
            refused(format!(
                "there is no gate for layer {}, KV head {}; there are {}",
                at.layer.get(),
                at.head.get(),
                self.gates.extent()
            ))
        })?;
        let fits = gate.query.len() == group
            && gate.query.iter().all(|matrix| matrix.len() == gate.gate_dim * head_dim)
            && gate.key.len() == 3 * gate.gate_dim * head_dim;
        if !fits {
            let channels = gate.query.first().map_or(0, Vec::len) / gate.gate_dim.max(1);
            return Err(refused(format!(
                "the gate is for {} query heads a KV head of {channels} channels, the model has {group} of {head_dim}",
                gate.query.len()
            )));
        }
        Ok(gate)
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
        let gate = self.gate(view.at, group, view.data.key(view.query).len())?;
        let mut query = vec![0.0; gate.gate_dim];
        for (member, matrix) in gate.query.iter().enumerate() {
            let plain = rope.unrotated(view.data.query(member, view.query), view.query);
            num::add_scaled(&mut query, 1.0, &gate.project(matrix, &plain));
        }
        normalise(&mut query, &gate.query_norm);
        let block = self.params.block as usize;
        let scale = 1.0 / (gate.gate_dim as f32).sqrt();
        let mut scores: Vec<f32> = view
            .resident
            .chunks(block)
            .map(|tokens| {
                let plain = |&pos: &Pos| rope.unrotated(view.data.key(pos), pos);
                let keys: Vec<Vec<f32>> = tokens.iter().map(plain).collect();
                let mut key = gate.project(&gate.key, &pooled(&keys));
                normalise(&mut key, &gate.key_norm);
                num::dot(&query, &key) * scale
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
        resident / self.params.block as usize * self.gates.gate_dim()
    }

    fn params(&self) -> serde_json::Value {
        let mut params = as_json(&self.params);
        if let (Some(params), Some(digest)) = (params.as_object_mut(), self.gates.digest()) {
            // What was read counts, not where it lay.
            params.insert("weights".to_owned(), format!("sha256 {digest}").into());
        }
        params
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
