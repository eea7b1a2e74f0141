//! Keep what the last queries looked at: SnapKV's scorer, and the sampling weights of VaSE-AttnV.
//!
//! The attention of the last W queries on each token, averaged over the window, smoothed along the slots and averaged
//! over the query heads of the group. Papers: Li et al. 2024, "SnapKV" (arXiv 2404.14469); VaSE (arXiv 2606.03928),
//! code terarachang/VaSE `eval/reasoning_tasks/modified/transformers/cache_utils.py`. Two normalisers exist: VaSE's
//! softmax runs over the scored tokens only (`candidates`), SnapKV's over everything the query sees (`visible`, as in
//! NVIDIA/kvpress `snapkv_press.py`). Differs: scores are f32 throughout where VaSE rounds to bf16; a token that came
//! after a query of the window gets nothing from it. Needs: q, k. Cost: O(group · W · n · head_dim).

use super::Score;
use crate::num;
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};
use crate::types::Pos;
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "window-mass",
    family: Family::Score,
    summary: "attention of the last W queries, smoothed and averaged over the group (SnapKV)",
    citation: "Li et al. 2024, arXiv 2404.14469; VaSE, arXiv 2606.03928",
    needs: Needs { queries: true, keys: true, values: false, lens: false },
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(WindowMass::checked(raw.parse(SPEC.id)?)?)),
    defaults: || serde_json::to_value(Params::default()).unwrap_or_default(),
};

/// What the softmax of a window query runs over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normaliser {
    /// The scored tokens only, recent ones left out (VaSE).
    #[default]
    Candidates,
    /// Every resident token that the query may see (SnapKV, kvpress).
    Visible,
}

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// W: recent queries looked at. In VaSE it equals the recent buffer.
    pub window: u32,
    /// Width of the average pooling over slots; odd, 1 for none.
    pub pool: u32,
    /// What the softmax runs over.
    pub normaliser: Normaliser,
    /// Divides the logits.
    pub temperature: f32,
}

impl Default for Params {
    fn default() -> Self {
        Self { window: 64, pool: 5, normaliser: Normaliser::Candidates, temperature: 1.0 }
    }
}

#[derive(Debug)]
struct WindowMass {
    params: Params,
}

impl WindowMass {
    fn checked(params: Params) -> Result<Self, PolicyError> {
        let refuse = |param, found: String, accepted| {
            Err(PolicyError::OutOfRange { kind: SPEC.id, param, found, accepted })
        };
        if params.window == 0 {
            return refuse("window", params.window.to_string(), "1 or more");
        }
        if params.pool.is_multiple_of(2) {
            return refuse("pool", params.pool.to_string(), "an odd number (1 for none)");
        }
        if !(params.temperature.is_finite() && params.temperature > 0.0) {
            return refuse("temperature", params.temperature.to_string(), "a positive number");
        }
        Ok(Self { params })
    }

    /// Attention of one query head on the scored tokens, mean over the window, `[slot]`.
    #[expect(clippy::cast_precision_loss, reason = "windows are small")]
    fn mean_attention(&self, view: &HeadView<'_>, member: usize, row: &mut Vec<f32>) -> Vec<f32> {
        let scored = view.scored();
        let keys: &[Pos] = match self.params.normaliser {
            Normaliser::Candidates => scored,
            Normaliser::Visible => view.resident,
        };
        let mut mass = vec![0.0; scored.len()];
        let mut queries = 0u32;
        for query_pos in view.last_queries(self.params.window) {
            view.data.logits(member, query_pos, keys, row);
            // A temperature of 1 divides exactly.
            row.iter_mut().for_each(|logit| *logit /= self.params.temperature);
            num::softmax(row);
            num::add_scaled(&mut mass, 1.0, &row[..scored.len()]);
            queries += 1;
        }
        let count = queries.max(1) as f32;
        mass.iter_mut().for_each(|m| *m /= count);
        mass
    }
}

impl Score for WindowMass {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_precision_loss, reason = "groups are small")]
    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let group = view.data.group();
        let mut row = Vec::new();
        out.clear();
        out.resize(view.scored().len(), 0.0);
        for member in 0..group {
            let mass = self.mean_attention(view, member, &mut row);
            let smoothed =
                if self.params.pool > 1 { num::avg_pool(&mass, self.params.pool as usize) } else { mass };
            num::add_scaled(out, 1.0, &smoothed);
        }
        out.iter_mut().for_each(|score| *score /= group as f32);
        Ok(())
    }

    fn window(&self) -> u32 {
        self.params.window
    }

    fn params(&self) -> serde_json::Value {
        serde_json::to_value(self.params).unwrap_or_default()
    }
}
