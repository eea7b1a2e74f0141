//! Keep what the last query looks at: TOVA's scorer.
//!
//! `layer` averages the attention of the last query over all query heads of the layer, so that all KV heads get the
//! same scores; a token that a KV head no longer holds gets nothing from its query heads. Paper: Oren et al. 2024,
//! "Transformers are Multi-State RNNs" (arXiv 2401.06104); code schwartz-lab-NLP/TOVA `src/tova_cache.py`, NVIDIA/kvpress
//! `kvpress/presses/tova_press.py`. `group` averages over the query heads of the KV head only. `group-max` takes the
//! maximum over the group on logits and leaves the last token out of the softmax: what Zefan-Cai/R-KV calls H2O. Needs:
//! q, k. Cost: O(q_heads · n · head_dim) a head.

use super::Score;
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, Peer, PolicyError, PolicySpec, Randomness};
use crate::types::Pos;
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "last-attention",
    family: Family::Score,
    summary: "attention of the last query, mean over the layer's query heads (TOVA)",
    citation: "Oren et al. 2024, arXiv 2401.06104; NVIDIA/kvpress kvpress/presses/tova_press.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(LastAttention { params: raw.parse(SPEC.id)? })),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

/// Which query heads are looked at, and how they are brought together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// Mean over all query heads of the layer.
    #[default]
    Layer,
    /// Mean over the query heads of the group.
    Group,
    /// Maximum over the group on logits, the last token left out of the softmax.
    GroupMax,
}

params! {
    /// Query heads: `layer` (TOVA), `group`, or `group-max` (called H2O in Zefan-Cai/R-KV).
    over: Over = Over::Layer,
}

#[derive(Debug)]
struct LastAttention {
    params: Params,
}

/// Adds the attention of `peer`'s query heads on its resident tokens to the scores of the same tokens.
fn add_peer(peer: &Peer<'_>, query: Pos, slots: &[(Pos, usize)], out: &mut [f32]) {
    let mut row = Vec::new();
    for member in 0..peer.data.group() {
        peer.data.logits(member, query, peer.resident, &mut row);
        num::softmax(&mut row);
        for (pos, mass) in peer.resident.iter().zip(&row) {
            if let Ok(found) = slots.binary_search_by_key(pos, |(pos, _)| *pos) {
                out[slots[found].1] += mass;
            }
        }
    }
}

impl LastAttention {
    fn group_max(view: &HeadView<'_>, query: Pos, out: &mut Vec<f32>) {
        // The last token is the newest: the last slot.
        let earlier = &view.resident[..view.resident.len() - 1];
        let mut row = Vec::new();
        let mut most = vec![f32::NEG_INFINITY; earlier.len()];
        for member in 0..view.data.group() {
            view.data.logits(member, query, earlier, &mut row);
            // A NaN wins, so that it is seen.
            most.iter_mut().zip(&row).for_each(|(m, x)| *m = if *m > *x { *m } else { *x });
        }
        num::softmax(&mut most);
        let count = view.scored().len();
        out.extend(most.iter().copied().chain([0.0]).take(count));
    }
}

impl Score for LastAttention {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_precision_loss, reason = "heads are few")]
    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        out.clear();
        let Some(query) = view.last_queries(1).next() else {
            out.resize(view.scored().len(), 0.0);
            return Ok(());
        };
        if self.params.over == Over::GroupMax {
            Self::group_max(view, query, out);
            return Ok(());
        }
        out.resize(view.scored().len(), 0.0);
        let mut slots: Vec<(Pos, usize)> = view.scored().iter().copied().zip(0..).collect();
        slots.sort_unstable();
        let alone = [Peer { data: view.data, resident: view.resident }];
        let peers =
            if self.params.over == Over::Layer && !view.peers.is_empty() { view.peers } else { &alone };
        peers.iter().for_each(|peer| add_peer(peer, query, &slots, out));
        let heads = peers.iter().map(|peer| peer.data.group()).sum::<usize>().max(1) as f32;
        out.iter_mut().for_each(|score| *score /= heads);
        Ok(())
    }

    fn window(&self) -> u32 {
        1
    }

    fn is_layer_wide(&self) -> bool {
        self.params.over == Over::Layer
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
