//! Keep what the last queries looked at: SnapKV's scorer, and the sampling weights of VaSE-AttnV.
//!
//! The attention of the last W queries on each token, averaged over the window and over the query heads of the group,
//! then smoothed along the slots; the sources smooth first, which is the same up to rounding. Papers: Li et al. 2024,
//! "SnapKV" (arXiv 2404.14469); VaSE (arXiv 2606.03928), code terarachang/VaSE
//! `eval/reasoning_tasks/modified/transformers/cache_utils.py`. Two normalisers exist: VaSE's softmax runs over the
//! scored tokens only (`candidates`), SnapKV's over everything the query sees (`visible`, as in NVIDIA/kvpress
//! `snapkv_press.py`). Differs: scores are f32 throughout where VaSE rounds to bf16; a token that came after a query of
//! the window gets nothing from it. Needs: q, k. Cost: O(group · W · n · head_dim).

use super::Score;
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness, lists};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "window-mass",
    family: Family::Score,
    summary: "attention of the last W queries, smoothed and averaged over the group (SnapKV)",
    citation: "Li et al. 2024, arXiv 2404.14469; VaSE, arXiv 2606.03928",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(WindowMass::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
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

params! {
    /// W: recent queries looked at. In VaSE it equals the recent buffer.
    window: u32 = 64,
    /// Width of the average pooling over slots; odd, 1 for none.
    pool: u32 = 5,
    /// What the softmax runs over.
    normaliser: Normaliser = Normaliser::Candidates,
    /// Divides the logits.
    temperature: f32 = 1.0,
}

#[derive(Debug)]
pub(super) struct WindowMass {
    params: Params,
}

impl WindowMass {
    pub(super) fn checked(params: Params) -> Result<Self, PolicyError> {
        let refuse = |param, found: String, accepted| {
            Err(PolicyError::OutOfRange { kind: SPEC.id, param, found, accepted })
        };
        if params.window == 0 {
            return refuse("window", params.window.to_string(), "1 or more");
        }
        if params.pool.is_multiple_of(2) {
            return refuse("pool", params.pool.to_string(), "an odd number (1 for none)");
        }
        // What a logit is divided by must leave a number.
        if !(params.temperature.is_finite() && params.temperature >= 1e-30) {
            return refuse("temperature", params.temperature.to_string(), "a finite number, 1e-30 or more");
        }
        Ok(Self { params })
    }
}

impl Score for WindowMass {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let Params { window, pool, normaliser, temperature } = self.params;
        let scored = view.scored();
        let keys = match normaliser {
            Normaliser::Candidates => scored,
            Normaliser::Visible => view.resident,
        };
        view.data.mean_attention(view.last_window(window), keys, scored.len(), temperature, out);
        if pool > 1 {
            let mut pooled = lists::take(view.data);
            num::avg_pool(out, pool as usize, &mut pooled);
            lists::give_back(view.data, std::mem::replace(out, pooled));
        }
        Ok(())
    }

    fn window(&self) -> u32 {
        self.params.window
    }

    fn mean_attention(&self) -> Option<(u32, Normaliser)> {
        let is_plain = self.params.temperature.to_bits() == 1.0f32.to_bits();
        is_plain.then_some((self.params.window, self.params.normaliser))
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
