//! Keep what is large in key and value at once: the scorer of CurDKV and, redrawn at each eviction, of VaSE-DKV.
//!
//! With a Gaussian sketch G of rank r, shared by keys, values and all KV heads of a layer, a token scores
//! |kG|² · |vG|², divided by the sum over the scored tokens. Paper: VaSE (arXiv 2606.03928), mode `cur_resample_gauss`
//! of terarachang/VaSE `eval/reasoning_tasks/modified/transformers/cache_utils.py`; CurDKV draws once (`resample:
//! false`). A product of sketched norms, not true leverage scores: neither source orthogonalises. Sinks are protected
//! by the stack, which is what the reference's score of 1.0 on the first four slots does. Differs: f32 throughout.
//! Needs: k, v. Cost: O(n · head_dim · rank).

use super::Score;
use crate::num::{self, LANES};
use crate::policy::{Draws, Entry, Family, HeadView, MemoKey, Needs, PolicyError, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "kv-sketch",
    family: Family::Score,
    summary: "product of the sketched squared norms of key and value (CurDKV, VaSE-DKV)",
    citation: "VaSE, arXiv 2606.03928; terarachang/VaSE cache_utils.py",
    needs: Needs { queries: false, keys: true, values: true, lens: false },
    randomness: Randomness::Random,
    // The divisor is the same for all tokens, so the ranking does not depend on the budget; the sketch is shared by
    // the heads of a layer, so heads can be permuted.
    laws: &[crate::policy::Law::Stack, crate::policy::Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(KvSketch { params: raw.parse(SPEC.id)? })),
    defaults: || serde_json::to_value(Params::default()).unwrap_or_default(),
};

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Rank r of the sketch; 0 for the exact norms.
    pub rank: u32,
    /// Whether the sketch is drawn afresh at each eviction (VaSE-DKV) or once a sequence and layer (CurDKV).
    pub resample: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self { rank: 20, resample: true }
    }
}

#[derive(Debug)]
struct KvSketch {
    params: Params,
}

impl KvSketch {
    /// The sketch in chunks of sixteen columns, `[rank / 16][head_dim][16]`, entries N(0, 1) / sqrt(rank); columns beyond
    /// the rank are zeros.
    #[expect(clippy::cast_possible_truncation, reason = "the sketch is f32 by definition")]
    fn sketch(&self, head_dim: usize, draws: &Draws) -> Vec<Vec<[f32; LANES]>> {
        let rank = self.params.rank as usize;
        let mut stream =
            if self.params.resample { draws.of_layer(SPEC.id) } else { draws.of_layer_fixed(SPEC.id) };
        let spread = 1.0 / f64::from(self.params.rank).sqrt();
        let mut chunks = vec![vec![[0.0; LANES]; head_dim]; rank.div_ceil(LANES)];
        for column in 0..rank {
            for row in &mut chunks[column / LANES] {
                row[column % LANES] = (stream.normal() * spread) as f32;
            }
        }
        chunks
    }

    fn key(&self, key: MemoKey) -> MemoKey {
        if self.params.resample { key } else { MemoKey { eviction: u32::MAX, ..key } }
    }
}

/// |xG|², or |x|² without a sketch.
fn squared_norm(vector: &[f32], sketch: &[Vec<[f32; LANES]>]) -> f32 {
    if sketch.is_empty() {
        return num::dot(vector, vector);
    }
    let mut columns = [0.0; LANES];
    sketch.iter().fold(0.0, |total, chunk| {
        num::rows::dots(chunk, vector, 1.0, LANES, &mut columns);
        columns.iter().fold(total, |total, x| total + x * x)
    })
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
        // Products by position, as far as anybody has asked; NaN for the others.
        let table =
            view.shared(self.key(draws.key_of_head(SPEC.id, rank)), || RefCell::new(Vec::<f32>::new()));
        let mut table = table.borrow_mut();
        if table.len() < view.at.seen as usize {
            table.resize(view.at.seen as usize, f32::NAN);
        }
        out.clear();
        out.extend(view.scored().iter().map(|&pos| {
            let product = &mut table[pos.idx()];
            if product.is_nan() {
                *product =
                    squared_norm(view.data.key(pos), &sketch) * squared_norm(view.data.value(pos), &sketch);
            }
            *product
        }));
        let total = num::sum(out);
        if total > 0.0 {
            out.iter_mut().for_each(|score| *score /= total);
        }
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        serde_json::to_value(self.params).unwrap_or_default()
    }
}
