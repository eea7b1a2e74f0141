//! A stack at work on one sequence: which token is where, when to evict, and carrying it out.
//!
//! Slot order is the stack's own (sinks, reserved, selected, recent), kept here as the replay keeps it; the cache stores
//! rows in time order, which attention does not mind.

use std::sync::Arc;

use kvlab_sim::{
    ledger::KeptSet,
    policy::{
        At, HeadData,
        compose::{HeadState, Stack},
        schedule::Moment,
    },
    replay::LayerEviction,
    types::{KvHead, LayerIdx, ModelShape, Pos, SeqIdx},
};

use super::{
    ClosedLoopError,
    known::Known,
    live::{LiveHead, QueryRing},
    prefix::Prefix,
};
use crate::{decode::Decoder, error::ExecutorError};

/// A stack under a seed, at work on one sequence.
#[derive(Debug)]
pub(super) struct Driver<'a> {
    stack: &'a Stack,
    seed: u64,
    shape: ModelShape,
    known: Arc<Known>,
    /// `[layer][kv_head]`
    heads: Vec<Vec<HeadState>>,
    /// `[layer][eviction]`
    evictions: Vec<Vec<LayerEviction>>,
}

impl<'a> Driver<'a> {
    /// A sequence that goes on from `prefix`.
    pub(super) fn new(stack: &'a Stack, seed: u64, shape: &ModelShape, seq: SeqIdx, prefix: &Prefix) -> Self {
        let start = |layer: LayerIdx, head: KvHead| {
            let mut state = stack.start(seq, layer, head, prefix.len);
            if let Some(mass) = prefix.mass.get(layer.idx()).and_then(|heads| heads.get(head.idx())) {
                state.set_mass(mass);
            }
            state
        };
        let heads = shape
            .layer_ids()
            .map(|layer| shape.kv_head_ids().map(|head| start(layer, head)).collect())
            .collect();
        let evictions = vec![Vec::new(); usize::from(shape.layers)];
        Self { stack, seed, shape: *shape, known: Arc::clone(&prefix.known), heads, evictions }
    }

    /// The token at `pos` is stored in every layer and KV head.
    pub(super) fn store(&mut self, pos: u32) {
        self.heads.iter_mut().flatten().for_each(|head| head.store(Pos::new(pos)));
    }

    /// Resident entries over all layers and KV heads.
    pub(super) fn entries(&self) -> u64 {
        self.heads.iter().flatten().map(|head| head.resident().len() as u64).sum()
    }

    /// The token stored last has attended.
    pub(super) fn attend(&mut self, decoder: &Decoder<'_>, queries: &QueryRing) -> Result<(), ExecutorError> {
        if !self.stack.accumulates() {
            return Ok(());
        }
        for (layer, heads) in self.heads.iter_mut().enumerate() {
            let cache = &decoder.cache().layers()[layer];
            for (kv_head, head) in heads.iter_mut().enumerate() {
                let live = LiveHead::new(cache, queries, layer, kv_head).with_known(&self.known);
                self.stack.attend(&live, head);
                at_hand(&live, self.stack, head)?;
            }
        }
        Ok(())
    }

    /// Evicts where it is due.
    pub(super) fn evict_if_due(
        &mut self,
        decoder: &mut Decoder<'_>,
        queries: &QueryRing,
        moment: Moment,
    ) -> Result<(), ExecutorError> {
        for (layer, heads) in self.heads.iter_mut().enumerate() {
            let Some(first) = heads.first().filter(|head| self.stack.is_due_for(head, moment)) else {
                continue;
            };
            let seen = first.at().seen;
            let cache = &decoder.cache().layers()[layer];
            let live: Vec<LiveHead<'_>> = (0..heads.len())
                .map(|kv_head| LiveHead::new(cache, queries, layer, kv_head).with_known(&self.known))
                .collect();
            let data: Vec<&dyn HeadData> = live.iter().map(|head| head as &dyn HeadData).collect();
            let mut states: Vec<&mut HeadState> = heads.iter_mut().collect();
            let evictions = self.stack.evict_heads(&self.shape, &data, &mut states, self.seed);
            live.iter().zip(heads.iter()).try_for_each(|(live, head)| at_hand(live, self.stack, head))?;
            let sets = evictions?.iter().map(|eviction| KeptSet::of(&eviction.kept)).collect();
            let kept: Vec<Vec<u32>> =
                heads.iter().map(|head| head.resident().iter().map(|pos| pos.get()).collect()).collect();
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

/// An error when the stack looked at something that was not there.
fn at_hand(live: &LiveHead<'_>, stack: &Stack, state: &HeadState) -> Result<(), ClosedLoopError> {
    let Some((quantity, pos)) = live.missed() else {
        return Ok(());
    };
    let (policy, At { layer, head, .. }) = (stack.label().to_owned(), state.at());
    Err(ClosedLoopError::NotAtHand { policy, quantity, layer, head, pos })
}
