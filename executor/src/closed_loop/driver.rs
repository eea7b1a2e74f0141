//! A stack at work on one sequence: which token is where, when to evict, and carrying it out.
//!
//! A store's representation is what is read back of it: vectors are replaced in the cache when they are stored, and by nothing
//! smaller in memory. Slot order is the stack's own (sinks, reserved, selected, recent), kept here as the replay keeps it; the cache stores
//! rows in time order, which attention does not mind.

use std::{collections::BTreeMap, sync::Arc};

use kvlab_sim::{
    ledger::KeptSet,
    policy::{
        At, HeadData, Needs, PolicyError,
        attend::Attended,
        compose::{HeadState, Places, Stack},
        schedule::Moment,
        store::Stored,
    },
    replay::LayerEviction,
    types::{KvHead, LayerIdx, ModelShape, Pos, SeqIdx},
};

use super::{
    ClosedLoopError,
    asked::AskedHead,
    known::Known,
    live::{LiveHead, QueryRing},
    prefix::Prefix,
    run::LiveCell,
};
use crate::{
    decode::{Ask, Attending, Decoder, Quantity},
    error::ExecutorError,
    runtime::RuntimeError,
};

/// Which tokens evictions kept, `[layer][eviction][kv_head][slot]`.
pub type KeptTokens = Vec<Vec<Vec<Vec<u32>>>>;

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
    /// Tokens that query heads attended to, summed over heads, layers and steps.
    attended: u64,
    /// Bits read, summed over steps.
    read_bits: u64,
    exact_bits: usize,
    /// What stayed; nothing unless it is listed.
    kept: Option<KeptTokens>,
}

impl<'a> Driver<'a> {
    /// A sequence that goes on from `prefix`.
    pub(super) fn new(cell: LiveCell<'a>, shape: &ModelShape, seq: SeqIdx, prefix: &Prefix) -> Self {
        let LiveCell { stack, seed, bytes_per_scalar } = cell;
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
        Self {
            stack,
            seed,
            shape: *shape,
            known: Arc::clone(&prefix.known),
            heads,
            evictions,
            attended: 0,
            read_bits: 0,
            exact_bits: bytes_per_scalar as usize * 8,
            kept: None,
        }
    }

    /// Lists which tokens every eviction from here on keeps.
    pub(super) fn list_kept(&mut self) {
        self.kept = Some(vec![Vec::new(); self.heads.len()]);
    }

    /// What was listed.
    pub(super) fn take_kept(&mut self) -> KeptTokens {
        self.kept.take().unwrap_or_default()
    }

    /// The token at `pos` is stored in every layer and KV head.
    pub(super) fn store(&mut self, pos: u32) {
        self.heads.iter_mut().flatten().for_each(|head| head.store(Pos::new(pos)));
    }

    /// Resident entries over all layers and KV heads.
    pub(super) fn entries(&self) -> u64 {
        self.heads.iter().flatten().map(|head| head.resident().len() as u64).sum()
    }

    /// Bits of what is held in the representation of the store, selection metadata included.
    pub(super) fn held_bits(&self) -> u64 {
        let of = |head: &HeadState| self.bits(head, 0..head.resident().len());
        self.heads.iter().flatten().map(of).sum()
    }

    /// Bits of the tokens in `slots` and of the metadata beside them.
    fn bits(&self, head: &HeadState, slots: impl Iterator<Item = usize>) -> u64 {
        let width = usize::from(self.shape.head_dim);
        let tokens: usize = slots.map(|slot| head.held(slot).bits(width, self.exact_bits)).sum();
        (tokens + self.stack.metadata_scalars(head, width) * self.exact_bits) as u64
    }

    /// The place at which a new token is rotated, where that is not its position: behind all that is stored.
    pub(super) fn place(&self) -> Option<u32> {
        let stored = self.heads.first()?.first()?.resident().len();
        (self.stack.places() == Places::Cache).then(|| u32::try_from(stored).unwrap_or(u32::MAX))
    }

    /// What the token stored last attends to in the layer at hand; nothing for everything.
    pub(super) fn select(&mut self, ask: &Ask<'_>) -> Result<Option<Attending>, ExecutorError> {
        let mut all = Vec::new();
        let mut is_part = false;
        for (kv_head, state) in self.heads[ask.layer].iter().enumerate() {
            let asked = AskedHead::new(ask, kv_head, &self.known);
            let attended = self.stack.attended(&self.shape, &asked, state);
            at_hand(asked.missed(), self.stack, state)?;
            let resident = state.resident();
            let (lists, slots) = match attended? {
                Attended::All => (vec![(0..resident.len()).collect(); ask.group()], resident.len()),
                Attended::Slots(lists) => {
                    is_part = true;
                    let most = lists.iter().map(Vec::len).max().unwrap_or(0);
                    (lists, most)
                }
            };
            self.attended += lists.iter().map(|list: &Vec<usize>| list.len() as u64).sum::<u64>();
            let mut read: Vec<usize> = Vec::with_capacity(slots);
            lists.iter().for_each(|list| read.extend(list));
            read.sort_unstable();
            read.dedup();
            self.read_bits += self.bits(state, read.into_iter());
            let positions = |list: &Vec<usize>| list.iter().map(|slot| resident[*slot].get()).collect();
            all.push(lists.iter().map(positions).collect());
        }
        Ok(is_part.then_some(all))
    }

    /// Counts a step in which every query attended to everything.
    pub(super) fn count_all(&mut self) {
        for head in self.heads.iter().flatten() {
            self.attended += head.resident().len() as u64 * u64::from(self.shape.group());
            self.read_bits += self.bits(head, 0..head.resident().len());
        }
    }

    /// Stores what is resident as the stack says.
    pub(super) fn hold(
        &mut self,
        decoder: &mut Decoder<'_>,
        queries: &QueryRing,
    ) -> Result<(), ExecutorError> {
        if self.stack.keeps_exact() {
            return Ok(());
        }
        for (layer, heads) in self.heads.iter_mut().enumerate() {
            let cache = &decoder.cache().layers()[layer];
            let mut changed: Vec<BTreeMap<u32, Stored>> = Vec::with_capacity(heads.len());
            for (kv_head, head) in heads.iter_mut().enumerate() {
                let live = LiveHead::new(cache, queries, layer, kv_head)?.with_known(&self.known);
                let tokens = self.stack.hold(&live, head);
                at_hand(live.missed(), self.stack, head)?;
                changed.push(tokens?.into_iter().map(|(pos, stored)| (pos.get(), stored)).collect());
            }
            if changed.iter().all(BTreeMap::is_empty) {
                continue;
            }
            decoder.rewrite(layer, &mut |head, pos, key, value| {
                if let Some(stored) = changed[head].get(&pos) {
                    key.copy_from_slice(&stored.key.read_back(key));
                    value.copy_from_slice(&stored.value.read_back(value));
                }
            })?;
        }
        Ok(())
    }

    /// The token stored last has attended.
    pub(super) fn attend(&mut self, decoder: &Decoder<'_>, queries: &QueryRing) -> Result<(), ExecutorError> {
        if !self.stack.accumulates() {
            return Ok(());
        }
        for (layer, heads) in self.heads.iter_mut().enumerate() {
            let cache = &decoder.cache().layers()[layer];
            for (kv_head, head) in heads.iter_mut().enumerate() {
                let live =
                    LiveHead::looking(cache, queries, layer, kv_head, Needs::QK)?.with_known(&self.known);
                self.stack.attend(&live, head);
                at_hand(live.missed(), self.stack, head)?;
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
        let needs = self.stack.needs();
        for (layer, heads) in self.heads.iter_mut().enumerate() {
            let Some(first) = heads.first().filter(|head| self.stack.is_due_for(head, moment)) else {
                continue;
            };
            let seen = first.at().seen;
            let cache = &decoder.cache().layers()[layer];
            let live: Vec<LiveHead<'_>> = (0..heads.len())
                .map(|kv_head| {
                    let head = LiveHead::looking(cache, queries, layer, kv_head, needs)?;
                    Ok(head.with_known(&self.known))
                })
                .collect::<Result<_, RuntimeError>>()?;
            let data: Vec<&dyn HeadData> = live.iter().map(|head| head as &dyn HeadData).collect();
            let mut states: Vec<&mut HeadState> = heads.iter_mut().collect();
            let evictions = self.stack.evict_heads(&self.shape, &data, &mut states, self.seed);
            live.iter()
                .zip(heads.iter())
                .try_for_each(|(live, head)| at_hand(live.missed(), self.stack, head))?;
            let sets = evictions?.iter().map(|eviction| KeptSet::of(&eviction.kept)).collect();
            let kept: Vec<Vec<u32>> =
                heads.iter().map(|head| head.resident().iter().map(|pos| pos.get()).collect()).collect();
            if self.stack.places() == Places::Cache {
                turn(decoder, layer, &kept, &self.known)?;
            }
            decoder.retain(layer, &kept)?;
            if let Some(lists) = &mut self.kept {
                lists[layer].push(kept);
            }
            self.evictions[layer].push(LayerEviction { seen, heads: sets });
        }
        Ok(())
    }

    /// Tokens attended to, summed over query heads, layers and steps, and bits read, summed over steps.
    pub(super) fn reads(&self) -> (u64, u64) {
        (self.attended, self.read_bits)
    }

    /// Evictions in order, `[layer][eviction]`.
    pub(super) fn into_evictions(self) -> Vec<Vec<LayerEviction>> {
        self.evictions
    }
}

/// Turns the keys that will stay from their places in time order to those that they will have.
fn turn(
    decoder: &mut Decoder<'_>,
    layer: usize,
    kept: &[Vec<u32>],
    known: &Known,
) -> Result<(), ExecutorError> {
    let rope =
        known.rope().ok_or(PolicyError::Missing { policy: "rerotate", what: "the rotation of the model" })?;
    let cache = &decoder.cache().layers()[layer];
    // `[kv_head]`: places now and then, by position.
    let places: Vec<BTreeMap<u32, (u32, u32)>> = kept
        .iter()
        .enumerate()
        .map(|(head, kept)| {
            let mut now: Vec<u32> = cache.resident(head).collect();
            let mut then = kept.clone();
            now.sort_unstable();
            then.sort_unstable();
            let place = |pos: &u32| now.binary_search(pos).ok().and_then(|at| u32::try_from(at).ok());
            then.iter().zip(0..).filter_map(|(pos, to)| Some((*pos, (place(pos)?, to)))).collect()
        })
        .collect();
    decoder.rewrite(layer, &mut |head, pos, key, _| {
        if let Some((from, to)) = places[head].get(&pos).filter(|(from, to)| from != to) {
            rope.at(Pos::new(*from)).unrotate(key);
            rope.at(Pos::new(*to)).rotate(key);
        }
    })?;
    Ok(())
}

/// An error when the stack looked at something that was not there.
fn at_hand(missed: Option<(Quantity, Pos)>, stack: &Stack, state: &HeadState) -> Result<(), ClosedLoopError> {
    let Some((quantity, pos)) = missed else {
        return Ok(());
    };
    let (policy, At { layer, head, .. }) = (stack.label().to_owned(), state.at());
    Err(ClosedLoopError::NotAtHand { policy, quantity, layer, head, pos })
}
