//! Attend policies: keep every token, attend to some of them.
//!
//! Memory stays that of the full cache; compare at an equal number of attended tokens. Blocks and pages are runs of
//! slots, so they are runs of positions where nothing was evicted.

pub mod full;
pub mod gate_file;
pub mod oracle_block;
pub mod oracle_top_k;
pub mod quest;
pub mod seer_gate;

use super::{At, HeadData, PolicyError, PolicySpec};
use crate::num;
use crate::types::{LayerIdx, Pos};
use serde::{Deserialize, Serialize};

/// One KV head when the query at `query` is about to attend. The query's own token is resident.
#[derive(Clone)]
pub struct AttendView<'a> {
    /// Where and when.
    pub at: At,
    /// Vectors by original position.
    pub data: &'a dyn HeadData,
    /// Resident tokens in slot order, `[slot]`.
    pub resident: &'a [Pos],
    /// Position of the query.
    pub query: Pos,
    /// Tokens that may be attended to where the policy's own parameters do not say: the head's budget.
    pub budget: u32,
}

impl std::fmt::Debug for AttendView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttendView").field("at", &self.at).field("query", &self.query).finish_non_exhaustive()
    }
}

/// What a query attends to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attended {
    /// Every resident token.
    All,
    /// Slots in ascending order, for each query head of the group, `[member]`.
    Slots(Vec<Vec<usize>>),
}

/// Chooses the resident tokens that a query attends to.
pub trait Attend: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// The slots that the query heads of the group attend to.
    ///
    /// # Errors
    /// When something that the policy needs is not at hand.
    fn attend(&self, view: &AttendView<'_>) -> Result<Attended, PolicyError>;

    /// Whether [`AttendView::budget`] is looked at.
    fn takes_budget(&self) -> bool {
        false
    }

    /// Scalars of metadata that a KV head of `layer` keeps beside the cache when `resident` tokens are stored. Every step
    /// reads them all.
    fn metadata_scalars(&self, layer: LayerIdx, resident: usize, head_dim: usize) -> usize {
        let _ = (layer, resident, head_dim);
        0
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}

/// Who chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Granularity {
    /// Each query head for itself.
    QueryHead,
    /// The query heads of a group together.
    #[default]
    KvHead,
}

/// Attention of the query on every resident token, `[member][slot]`.
fn attention(view: &AttendView<'_>) -> Vec<Vec<f32>> {
    (0..view.data.group())
        .map(|member| {
            let mut row = Vec::new();
            view.data.logits(member, view.query, view.resident, &mut row);
            num::softmax(&mut row);
            row
        })
        .collect()
}

/// The mean of `rows` where the group chooses together, and the rows themselves otherwise: one row a choice.
#[expect(clippy::cast_precision_loss, reason = "groups are small")]
fn choices(rows: Vec<Vec<f32>>, granularity: Granularity) -> Vec<Vec<f32>> {
    let Some(first) = rows.first().filter(|_| granularity == Granularity::KvHead) else {
        return rows;
    };
    let mut mean = vec![0.0; first.len()];
    rows.iter().for_each(|row| num::add_scaled(&mut mean, 1.0 / rows.len() as f32, row));
    vec![mean]
}

/// The same slots for every query head where one choice stands for the group.
fn shared_out(mut chosen: Vec<Vec<usize>>, group: usize) -> Attended {
    if let (1, Some(one)) = (chosen.len(), chosen.first().cloned()) {
        chosen.resize(group, one);
    }
    Attended::Slots(chosen)
}

/// Slots of the `count` best blocks of `size` slots, ascending. Ties go to the earlier block.
fn slots_of_blocks(scores: &[f32], count: usize, size: usize, resident: usize) -> Vec<usize> {
    let mut blocks: Vec<u32> =
        num::top(scores.iter().copied().zip(0u32..).collect(), count).into_iter().map(|(_, b)| b).collect();
    blocks.sort_unstable();
    blocks
        .into_iter()
        .flat_map(|block| {
            let begin = block as usize * size;
            begin..(begin + size).min(resident)
        })
        .collect()
}

/// A number of tokens that must not be 0 where it is given.
fn tokens_or_budget(kind: &'static str, tokens: Option<u32>) -> Result<(), PolicyError> {
    tokens.map_or(Ok(()), |tokens| at_least_one(kind, "tokens", tokens))
}

/// A parameter that must not be 0.
fn at_least_one(kind: &'static str, param: &'static str, found: u32) -> Result<(), PolicyError> {
    if found > 0 {
        return Ok(());
    }
    Err(PolicyError::OutOfRange { kind, param, found: "0".to_owned(), accepted: "1 or more" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::PlainHead;
    use crate::policy::{RawParams, registry};
    use crate::types::{KvHead, SeqIdx};

    /// Two query heads over 20 tokens in two channels; the token at position 7 is looked at most by both.
    fn head() -> PlainHead {
        let key =
            |i: u8| if i == 7 { vec![4.0, 4.0] } else { vec![0.3 * f32::from(i % 5), -0.1 * f32::from(i)] };
        let keys: Vec<Vec<f32>> = (0..20).map(key).collect();
        let queries = vec![vec![vec![1.0, 1.0]; 20], vec![vec![2.0, 0.5]; 20]];
        PlainHead { queries, values: keys.clone(), keys, ..PlainHead::default() }
    }

    fn attend(kind: &str, layer: u16, params: serde_json::Value) -> Attended {
        let (head, resident): (PlainHead, Vec<Pos>) = (head(), (0..20).map(Pos::new).collect());
        let (seq, layer) = (SeqIdx::new(0), LayerIdx::new(layer));
        let at = At { seq, layer, head: KvHead::new(0), eviction: 0, seen: 20, prompt_len: 5 };
        let view = AttendView { at, data: &head, resident: &resident, query: Pos::new(19), budget: 4 };
        let raw = RawParams::from_params(&params).unwrap();
        (registry::find(registry::ATTENDS, "attend", kind).unwrap().build)(&raw)
            .unwrap()
            .attend(&view)
            .unwrap()
    }

    fn slots(attended: Attended) -> Vec<Vec<usize>> {
        match attended {
            Attended::All => panic!("all tokens"),
            Attended::Slots(slots) => slots,
        }
    }

    #[test]
    fn everything_that_chooses_attends_to_what_matters_most() {
        for (kind, params) in [
            ("oracle-block", serde_json::json!({ "block": 4, "tokens": 4 })),
            ("oracle-top-k", serde_json::json!({ "tokens": 4 })),
            ("quest", serde_json::json!({ "page": 4, "tokens": 12, "dense_layers": 0 })),
        ] {
            for granularity in ["kv-head", "query-head"] {
                let mut params = params.clone();
                params["granularity"] = granularity.into();
                let chosen = slots(attend(kind, 3, params));
                assert_eq!(chosen.len(), 2, "{kind}: one list a query head");
                for slots in &chosen {
                    assert!(slots.contains(&7), "{kind}: {slots:?}");
                    assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "{kind}: {slots:?}");
                    assert!(slots.len() <= 12 && slots.iter().all(|slot| *slot < 20), "{kind}: {slots:?}");
                }
                assert!(granularity == "query-head" || chosen[0] == chosen[1], "{kind}");
            }
        }
        assert_eq!(attend("full", 0, serde_json::json!({})), Attended::All);
        assert_eq!(
            attend("quest", 1, serde_json::json!({})),
            Attended::All,
            "the first two layers are dense"
        );
    }

    #[test]
    fn the_oracle_attends_to_the_most_attended_tokens() {
        let chosen =
            slots(attend("oracle-top-k", 0, serde_json::json!({ "tokens": 3, "granularity": "query-head" })));
        let (head, resident): (PlainHead, Vec<Pos>) = (head(), (0..20).map(Pos::new).collect());
        for (member, slots) in chosen.iter().enumerate() {
            let mut row = Vec::new();
            head.logits(member, Pos::new(19), &resident, &mut row);
            let least = slots.iter().map(|&slot| row[slot]).fold(f32::MAX, f32::min);
            assert_eq!(slots.len(), 3);
            assert!((0..20).filter(|slot| !slots.contains(slot)).all(|slot| row[slot] <= least));
        }
    }
}
