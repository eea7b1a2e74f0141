//! A stack at work on one sequence: which token is where, when to evict, and carrying it out.
//!
//! Slot order is the stack's own (sinks, reserved, selected, recent), kept here as the replay keeps it; the cache stores
//! rows in time order, which attention does not mind.

use kvlab_sim::{
    ledger::KeptSet,
    policy::{
        At,
        compose::{Eviction, Stack},
        schedule::Moment,
    },
    replay::LayerEviction,
    types::{ModelShape, Pos, SeqIdx},
};

use super::{
    ClosedLoopError,
    live::{LiveHead, QueryRing},
};
use crate::{decode::Decoder, error::ExecutorError};

/// One KV head of one layer.
#[derive(Debug)]
struct HeadState {
    capacity: u32,
    /// Resident tokens in the stack's slot order, `[slot]`.
    resident: Vec<Pos>,
    at: At,
}

/// A stack under a seed, at work on one sequence.
#[derive(Debug)]
pub(super) struct Driver<'a> {
    stack: &'a Stack,
    seed: u64,
    /// `[layer][kv_head]`
    heads: Vec<Vec<HeadState>>,
    /// `[layer][eviction]`
    evictions: Vec<Vec<LayerEviction>>,
}

impl<'a> Driver<'a> {
    /// A sequence whose first `prompt_len` tokens are stored.
    pub(super) fn new(stack: &'a Stack, seed: u64, shape: &ModelShape, seq: SeqIdx, prompt_len: u32) -> Self {
        let heads = shape
            .layer_ids()
            .map(|layer| {
                let state = |head| HeadState {
                    capacity: stack.capacity(shape, layer, head),
                    resident: (0..prompt_len).map(Pos::new).collect(),
                    at: At { seq, layer, head, eviction: 0, seen: prompt_len },
                };
                shape.kv_head_ids().map(state).collect()
            })
            .collect();
        Self { stack, seed, heads, evictions: vec![Vec::new(); usize::from(shape.layers)] }
    }

    /// The token at `pos` is stored in every layer and KV head.
    pub(super) fn store(&mut self, pos: u32) {
        self.heads.iter_mut().flatten().for_each(|head| head.resident.push(Pos::new(pos)));
    }

    /// Resident entries over all layers and KV heads.
    pub(super) fn entries(&self) -> u64 {
        self.heads.iter().flatten().map(|head| head.resident.len() as u64).sum()
    }

    /// Evicts where it is due, with `seen` tokens seen.
    pub(super) fn evict_if_due(
        &mut self,
        decoder: &mut Decoder<'_>,
        queries: &QueryRing,
        moment: Moment,
        seen: u32,
    ) -> Result<(), ExecutorError> {
        for (layer, heads) in self.heads.iter_mut().enumerate() {
            let cache = &decoder.cache().layers()[layer];
            let mut sets = Vec::with_capacity(heads.len());
            for (kv_head, head) in heads.iter_mut().enumerate() {
                let stored = u32::try_from(head.resident.len()).unwrap_or(u32::MAX);
                if !self.stack.is_due(moment, stored) {
                    continue;
                }
                head.at.seen = seen;
                let live = LiveHead::new(cache, queries, layer, kv_head);
                let eviction = self.stack.evict(&live, head.at, &head.resident, head.capacity, self.seed);
                if let Some((quantity, pos)) = live.missed() {
                    let (policy, At { layer, head, .. }) = (self.stack.label().to_owned(), head.at);
                    return Err(ClosedLoopError::NotAtHand { policy, quantity, layer, head, pos }.into());
                }
                let Eviction { kept, .. } = eviction?;
                sets.push(KeptSet::of(&kept));
                head.at.eviction += 1;
                head.resident = kept;
            }
            if sets.is_empty() {
                continue;
            }
            let kept: Vec<Vec<u32>> =
                heads.iter().map(|head| head.resident.iter().map(|pos| pos.get()).collect()).collect();
            decoder.retain(layer, &kept)?;
            self.evictions[layer].push(LayerEviction { seen, heads: sets });
        }
        Ok(())
    }

    /// Evictions in order, `[layer][eviction]`.
    pub(super) fn into_evictions(self) -> Vec<Vec<LayerEviction>> {
        self.evictions
    }
}
