//! Keep what is large in key and value at once: the scorer of CurDKV and, redrawn at each eviction, of VaSE-DKV.
//!
//! With a Gaussian sketch G of rank r, shared by keys, values and all KV heads of a layer, a token scores
//! |kG|² · |vG|², divided by the sum over the scored tokens. Paper: VaSE (arXiv 2606.03928), mode `cur_resample_gauss`
//! of terarachang/VaSE `eval/reasoning_tasks/modified/transformers/cache_utils.py`; CurDKV draws once (`resample:
//! false`). A product of sketched norms, not true leverage scores: neither source orthogonalises. Sinks are protected
//! by the stack, which is what the reference's score of 1.0 on the first four slots does. `local` divides the norms by
//! their sums over windows of so many slots first, as NVIDIA/kvpress `kvpress/presses/cur_press.py` does by default (16):
//! then every full window has the same total, and the choice is nearly even over time; a short last window favours its
//! tokens. `combine` takes the mean of both, or one alone, where kvpress offers it. Differs: f32 throughout. Needs: k, v.
//! Cost: O(n · head_dim · rank).

use super::Score;
use crate::num::dots::dots;
use crate::num::{self, LANES, Row};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, MemoKey, Needs, PolicyError, PolicySpec, Randomness};
use crate::types::Pos;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "kv-sketch",
    family: Family::Score,
    summary: "product of the sketched squared norms of key and value (CurDKV, VaSE-DKV)",
    citation: "VaSE, arXiv 2606.03928; terarachang/VaSE cache_utils.py",
    needs: Needs::KV,
    randomness: Randomness::Random,
    // The divisor is the same for all tokens, so the ranking does not depend on the budget; the sketch is shared by
    // the heads of a layer, so heads can be permuted.
    laws: &[crate::policy::Law::Stack, crate::policy::Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        check_sketch(SPEC.id, "rank", params.rank)?;
        Ok(Box::new(KvSketch { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

/// Refuses a sketch of more dimensions than any head has channels: it would cost more than the norms that it stands for.
pub(super) fn check_sketch(kind: &'static str, param: &'static str, found: u32) -> Result<(), PolicyError> {
    const MOST: u32 = 4096;
    if found <= MOST {
        return Ok(());
    }
    Err(PolicyError::OutOfRange { kind, param, found: found.to_string(), accepted: "0 to 4096" })
}

/// What is made of the squared norms of key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    /// Their product.
    #[default]
    Product,
    /// Their mean.
    Mean,
    /// That of the key.
    Key,
    /// That of the value.
    Value,
}

params! {
    /// Rank r of the sketch; 0 for the exact norms.
    rank: u32 = 20,
    /// Whether the sketch is drawn afresh at each eviction (VaSE-DKV) or once a sequence and layer (CurDKV).
    resample: bool = true,
    /// Slots a window whose sum each norm is divided by first; 0 for none, 16 in kvpress.
    local: u32 = 0,
    /// What is made of the norms of key and value: product, mean, key or value.
    combine: Combine = Combine::Product,
}

#[derive(Debug)]
struct KvSketch {
    params: Params,
}

impl KvSketch {
    /// The sketch, `[rank, head_dim]`, entries N(0, 1) / sqrt(rank).
    #[expect(clippy::cast_possible_truncation, reason = "the sketch is f32 by definition")]
    fn sketch(&self, head_dim: usize, draws: &Draws) -> Vec<f32> {
        let mut stream =
            if self.params.resample { draws.of_layer(SPEC.id) } else { draws.of_layer_fixed(SPEC.id) };
        let spread = 1.0 / f64::from(self.params.rank).sqrt();
        let entries = stream.normals(self.params.rank as usize * head_dim);
        entries.into_iter().map(|entry| (entry * spread) as f32).collect()
    }

    fn key(&self, key: MemoKey) -> MemoKey {
        if self.params.resample { key } else { MemoKey { eviction: u32::MAX, ..key } }
    }
}

/// |xG|² of the vectors at `positions`, or |x|² without a sketch, in their order; sixteen vectors are worked on at a time.
fn squared_norms<'a>(positions: &[Pos], vector: impl Fn(Pos) -> &'a [f32], sketch: &[f32]) -> Vec<f32> {
    let mut norms = Vec::with_capacity(positions.len());
    if sketch.is_empty() {
        norms.extend(positions.iter().map(|&pos| num::dot(vector(pos), vector(pos))));
        return norms;
    }
    let head_dim = positions.first().map_or(1, |&pos| vector(pos).len());
    let mut vectors = vec![Row::default(); head_dim];
    let mut columns = vec![0.0; sketch.len() / head_dim * LANES];
    for group in positions.chunks(LANES) {
        for (lane, &pos) in group.iter().enumerate() {
            vectors.iter_mut().zip(vector(pos)).for_each(|(row, x)| row.0[lane] = *x);
        }
        dots(&vectors, sketch, 1.0, LANES, &mut columns);
        let mut sums = [0.0f32; LANES];
        for column in columns.as_chunks::<LANES>().0 {
            sums.iter_mut().zip(column).for_each(|(sum, x)| *sum += x * x);
        }
        norms.extend(&sums[..group.len()]);
    }
    norms
}

/// Divides each norm by the sum over its window of `local` slots.
fn normalise(norms: &mut [f32], local: u32) {
    if local == 0 {
        return;
    }
    for window in norms.chunks_mut(local as usize) {
        let total = num::sum(window);
        if total > 0.0 {
            window.iter_mut().for_each(|norm| *norm /= total);
        }
    }
}

/// Divides scores by their sum.
fn to_shares(scores: &mut [f32]) {
    let total = num::sum(scores);
    if total > 0.0 {
        scores.iter_mut().for_each(|score| *score /= total);
    }
}

/// The scores under a given sketch, `[rank][head_dim]` with its factor 1/√rank (empty for none), into `out`: to compare
/// with other implementations.
pub fn scores_under(view: &HeadView<'_>, params: Params, sketch: &[Vec<f32>], out: &mut Vec<f32>) {
    combined(view, params, &sketch.concat(), out);
}

fn combined(view: &HeadView<'_>, params: Params, sketch: &[f32], out: &mut Vec<f32>) {
    let mut keys = squared_norms(view.scored(), |pos| view.data.key(pos), sketch);
    let mut values = squared_norms(view.scored(), |pos| view.data.value(pos), sketch);
    normalise(&mut keys, params.local);
    normalise(&mut values, params.local);
    out.clear();
    out.extend(keys.iter().zip(&values).map(|(k, v)| match params.combine {
        Combine::Product => k * v,
        Combine::Mean => (k + v) / 2.0,
        Combine::Key => *k,
        Combine::Value => *v,
    }));
    to_shares(out);
}

impl Score for KvSketch {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let head_dim = view.scored().first().map_or(0, |&pos| view.data.key(pos).len());
        let rank = u64::from(self.params.rank);
        let sketch =
            view.shared(self.key(draws.key_of_layer(SPEC.id, rank)), || self.sketch(head_dim, draws));
        if self.params.local > 0 || self.params.combine != Combine::Product {
            combined(view, self.params, &sketch, out);
            return Ok(());
        }
        // Products by position, as far as anybody has asked; NaN for the others.
        let table =
            view.shared(self.key(draws.key_of_head(SPEC.id, rank)), || RefCell::new(Vec::<f32>::new()));
        let mut table = table.borrow_mut();
        if table.len() < view.at.seen as usize {
            table.resize(view.at.seen as usize, f32::NAN);
        }
        let unknown: Vec<Pos> =
            view.scored().iter().copied().filter(|pos| table[pos.idx()].is_nan()).collect();
        let keys = squared_norms(&unknown, |pos| view.data.key(pos), &sketch);
        let values = squared_norms(&unknown, |pos| view.data.value(pos), &sketch);
        for (pos, (key, value)) in unknown.iter().zip(keys.iter().zip(&values)) {
            table[pos.idx()] = key * value;
        }
        out.clear();
        out.extend(view.scored().iter().map(|pos| table[pos.idx()]));
        to_shares(out);
        Ok(())
    }

    fn randomness(&self) -> Randomness {
        if self.params.rank == 0 { Randomness::Deterministic } else { Randomness::Random }
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
