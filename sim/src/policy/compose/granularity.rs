//! How fine a choice is: a token of a KV head, a token of a layer, or a block of a layer.
//!
//! Under `token-layer` and `block:N` all KV heads of a layer keep the same tokens: a token's score is the mean over the heads,
//! and reserved tokens are taken from the heads' lists in turn. Under `block:N` the choice is between runs of N
//! positions that begin at multiples of N, by the mean score of their resident tokens; a run that holds a protected token or is not
//! complete yet stays whole.

use super::evict::{Eviction, HeadInput, Prepared, Reason, take};
use super::{KeepOrder, Stack};
use crate::policy::select::Selection;
use crate::policy::{Draws, HeadView, PolicyError};
use crate::types::Pos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What is kept or evicted as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^(token-head|token-layer|block:[0-9]+)$"))]
pub enum Granularity {
    /// A token of one KV head; each head has a block table of its own.
    #[default]
    TokenHead,
    /// A token in all KV heads of a layer, which share one block table.
    TokenLayer,
    /// So many consecutive positions in all KV heads of a layer: a physical block, freed without moving a token.
    Block(u32),
}

impl TryFrom<String> for Granularity {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let blocks = text.strip_prefix("block:").and_then(|count| count.parse::<u32>().ok());
        match (text.as_str(), blocks) {
            ("token-head", _) => Ok(Self::TokenHead),
            ("token-layer", _) => Ok(Self::TokenLayer),
            (_, Some(count)) if (1..=1_000_000).contains(&count) => Ok(Self::Block(count)),
            _ => Err(format!(
                "granularity is `{text}`; accepted: `token-head`, `token-layer`, `block:N` with N from 1 to 1000000"
            )),
        }
    }
}

impl From<Granularity> for String {
    fn from(granularity: Granularity) -> Self {
        match granularity {
            Granularity::TokenHead => "token-head".to_owned(),
            Granularity::TokenLayer => "token-layer".to_owned(),
            Granularity::Block(count) => format!("block:{count}"),
        }
    }
}

impl Granularity {
    /// Whether all KV heads of a layer keep the same tokens.
    #[must_use]
    pub fn is_layer_wide(self) -> bool {
        self != Self::TokenHead
    }

    /// Tokens of a unit.
    #[must_use]
    pub fn tokens(self) -> u32 {
        if let Self::Block(count) = self { count } else { 1 }
    }
}

impl Stack {
    /// One choice for all KV heads of a layer, from what each of them says.
    pub(super) fn evict_together(
        &self,
        heads: &[HeadInput<'_>],
        prepared: Vec<Prepared>,
        seed: u64,
    ) -> Result<Vec<Eviction>, PolicyError> {
        let broken = |rule| PolicyError::Contract { policy: "granularity", rule };
        let Some(first) = heads.first() else {
            return Ok(Vec::new());
        };
        if heads.iter().any(|head| head.resident != first.resident || head.capacity != first.capacity) {
            return Err(broken("all KV heads of a layer hold the same tokens"));
        }
        let merged = merged(prepared).ok_or_else(|| broken("one proposal a head"))?;
        let Prepared { recent, sinks, reserved, choice, mut is_free, room, scores } = merged;
        let scored = &first.resident[..first.resident.len() - recent];
        let units = Units::of(scored, &choice, first.at.seen, self.granularity.tokens());
        let room = room.saturating_sub(units.forced.len()) / self.granularity.tokens() as usize;
        let room = room.min(units.slots.len());
        let first_slots: Vec<usize> = units.slots.keys().copied().collect();
        let scores = units.scores(&scores, scored.len());
        let view = HeadView { choice: &first_slots, room, ..self.view(first, recent, &[]) };
        let selection = if room == 0 {
            Selection::default()
        } else {
            self.select.select(&view, &scores, &first_slots, room, &Draws::new(seed, first.at))?
        };
        is_free.fill(false);
        first_slots.iter().for_each(|slot| is_free[*slot] = true);
        take(self.select.spec().id, &selection.slots, &first_slots, room, &mut is_free)?;
        if selection.slots.len() != room {
            return Err(broken("as many units as there is room for"));
        }
        let mut tokens: Vec<(Pos, Reason)> = Vec::with_capacity(first.capacity as usize);
        let mut keep =
            |slots: &[usize], reason| tokens.extend(slots.iter().map(|&slot| (scored[slot], reason)));
        keep(&sinks, Reason::Sink);
        keep(&reserved, Reason::Reserved);
        keep(&units.forced, Reason::Block);
        let (selected, filled) = selection.parts();
        for (slots, reason) in [(selected, Reason::Selected), (filled, Reason::Filled)] {
            slots.iter().for_each(|slot| keep(units.slots.get(slot).map_or(&[], Vec::as_slice), reason));
        }
        let filled: usize = filled.iter().filter_map(|slot| units.slots.get(slot)).map(Vec::len).sum();
        let filled = u32::try_from(filled).unwrap_or(u32::MAX);
        if self.order == KeepOrder::Position {
            tokens.sort_unstable();
        }
        let newest = &first.resident[first.resident.len() - recent..];
        tokens.extend(newest.iter().map(|&pos| (pos, Reason::Recent)));
        let (kept, reasons) = tokens.into_iter().unzip();
        Ok(vec![Eviction { kept, reasons, tied: selection.tied, filled }; heads.len()])
    }
}

/// What the heads say, as one: mean scores, and reserved slots from their lists in turn.
#[expect(clippy::cast_precision_loss, reason = "heads are few")]
fn merged(prepared: Vec<Prepared>) -> Option<Prepared> {
    let heads = prepared.len() as f32;
    let first = prepared.first()?;
    let count = first.reserved.len();
    let mut choice: Vec<usize> = first.choice.iter().chain(&first.reserved).copied().collect();
    choice.sort_unstable();
    let room = first.room + count;
    let mut reserved: Vec<usize> = Vec::with_capacity(count);
    for at in 0..count {
        for slot in prepared.iter().filter_map(|head| head.reserved.get(at)) {
            if reserved.len() < count && !reserved.contains(slot) {
                reserved.push(*slot);
            }
        }
    }
    choice.retain(|slot| !reserved.contains(slot));
    let mut scores = vec![0.0; prepared.iter().map(|head| head.scores.len()).max().unwrap_or(0)];
    for head in &prepared {
        crate::num::add_scaled(&mut scores, 1.0 / heads, &head.scores);
    }
    let (recent, sinks, is_free) = (first.recent, first.sinks.clone(), first.is_free.clone());
    let room = room.saturating_sub(reserved.len()).min(choice.len());
    Some(Prepared { recent, sinks, reserved, choice, is_free, room, scores: Rc::new(scores) })
}

/// Slots that stay or go together.
struct Units {
    /// By their first slot: all slots, ascending.
    slots: BTreeMap<usize, Vec<usize>>,
    /// Slots that are up for choice by themselves and stay, since others of their unit do.
    forced: Vec<usize>,
}

impl Units {
    fn of(scored: &[Pos], choice: &[usize], seen: u32, tokens: u32) -> Self {
        let unit = |slot: usize| scored[slot].get() / tokens;
        let mut by_unit: BTreeMap<u32, (Vec<usize>, usize)> = BTreeMap::new();
        for slot in 0..scored.len() {
            let entry = by_unit.entry(unit(slot)).or_default();
            entry.1 += 1;
            if choice.binary_search(&slot).is_ok() {
                entry.0.push(slot);
            }
        }
        let (mut slots, mut forced) = (BTreeMap::new(), Vec::new());
        // The unit in which the recent tokens begin is cut by them.
        let newest = scored.iter().map(|pos| pos.get()).max().map_or(0, |pos| pos + 1);
        for (unit, (free, all)) in by_unit {
            let end = u64::from(unit + 1) * u64::from(tokens);
            let is_whole = free.len() == all && end <= u64::from(newest.min(seen));
            match free.first() {
                Some(&first) if is_whole || tokens == 1 => drop(slots.insert(first, free)),
                _ => forced.extend(free),
            }
        }
        forced.sort_unstable();
        Self { slots, forced }
    }

    /// The mean score of each unit, at its first slot, `[slot]`.
    #[expect(clippy::cast_precision_loss, reason = "blocks are small")]
    fn scores(&self, scores: &[f32], len: usize) -> Vec<f32> {
        let mut of_units = vec![0.0; len];
        for (first, slots) in &self.slots {
            let sum = slots.iter().fold(0.0, |sum, slot| sum + scores.get(*slot).copied().unwrap_or(0.0));
            of_units[*first] = sum / slots.len() as f32;
        }
        of_units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_blocks_are_read_and_written() {
        for text in ["token-head", "token-layer", "block:16"] {
            let read: Granularity = serde_json::from_value(text.into()).unwrap();
            assert_eq!(serde_json::to_value(read).unwrap(), text);
        }
        for text in ["block:0", "block:", "head", "block:-1"] {
            let error = Granularity::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains(text) && error.contains("token-layer"), "{error}");
        }
    }

    // Twelve tokens in blocks of four: slot 0 is protected, and the tokens after slot 9 are recent.
    #[test]
    fn a_block_that_holds_a_protected_or_a_recent_token_is_not_up_for_choice() {
        let scored: Vec<Pos> = (0..10).map(Pos::new).collect();
        let choice: Vec<usize> = (1..10).collect();
        let units = Units::of(&scored, &choice, 12, 4);
        assert_eq!(units.slots.into_iter().collect::<Vec<_>>(), [(4, vec![4, 5, 6, 7])]);
        assert_eq!(units.forced, [1, 2, 3, 8, 9]);
        let tokens = Units::of(&scored, &choice, 12, 1);
        assert_eq!((tokens.slots.len(), tokens.forced.len()), (9, 0));
    }
}
