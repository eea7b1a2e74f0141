//! Keep what is large in key and value at once: the scorer of CurDKV and, redrawn at each eviction, of VaSE-DKV.
//!
//! With a Gaussian sketch G of rank r, shared by keys, values and all KV heads of a layer, a token scores
//! |kG|² · |vG|², divided by the sum over the scored tokens. Paper: VaSE (arXiv 2606.03928), mode `cur_resample_gauss`
//! of terarachang/VaSE `eval/reasoning_tasks/modified/transformers/cache_utils.py`; CurDKV draws once (`resample:
//! false`). A product of sketched norms, not true leverage scores: neither source orthogonalises. Sinks are protected
//! by the stack, which is what the reference's score of 1.0 on the first four slots does. Differs: f32 throughout.
//! Needs: k, v. Cost: O(n · head_dim · rank).

use super::Score;
use crate::num;
use crate::policy::{Draws, Entry, Family, HeadView, Needs, PolicyError, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

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
    /// The sketch, transposed: `[rank, head_dim]`, entries N(0, 1) / sqrt(rank).
    #[expect(clippy::cast_possible_truncation, reason = "the sketch is f32 by definition")]
    fn sketch(&self, head_dim: usize, draws: &Draws) -> Vec<Vec<f32>> {
        let mut stream =
            if self.params.resample { draws.of_layer(SPEC.id) } else { draws.of_layer_fixed(SPEC.id) };
        let spread = 1.0 / f64::from(self.params.rank).sqrt();
        (0..self.params.rank)
            .map(|_| (0..head_dim).map(|_| (stream.normal() * spread) as f32).collect())
            .collect()
    }
}

/// |xG|², or |x|² without a sketch.
fn squared_norm(vector: &[f32], sketch: &[Vec<f32>]) -> f32 {
    if sketch.is_empty() {
        return num::dot(vector, vector);
    }
    sketch.iter().map(|column| num::dot(vector, column)).fold(0.0, |total, x| total + x * x)
}

impl Score for KvSketch {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let head_dim = view.scored().first().map_or(0, |&pos| view.data.key(pos).len());
        let sketch = self.sketch(head_dim, draws);
        out.clear();
        out.extend(view.scored().iter().map(|&pos| {
            squared_norm(view.data.key(pos), &sketch) * squared_norm(view.data.value(pos), &sketch)
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
