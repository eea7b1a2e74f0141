//! One KV head under a stack, from the prompt on: what is resident and what the scorer has accumulated.
//!
//! Replay and executor drive it with the same calls: [`Stack::start`], [`Stack::attend_prompt`], then for each token
//! [`HeadState::store`], [`Stack::attend`] and, where [`Stack::is_due_for`] says so, [`Stack::evict_heads`].

use super::{Eviction, HeadInput, Stack};
use crate::num;
use crate::policy::attend::{AttendView, Attended};
use crate::policy::schedule::Moment;
use crate::policy::store::{StoreView, Stored};
use crate::policy::{At, HeadData, PolicyError};
use crate::types::{KvHead, LayerIdx, ModelShape, Pos, SeqIdx};

/// One KV head of one sequence under a stack.
///
/// The accumulated attention is one number a resident token: the attention probabilities that it received from every
/// query since it was stored, its own included, each taken over the tokens resident then, averaged over the query
/// heads of the group. What an evicted token received is dropped with it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadState {
    at: At,
    resident: Vec<Pos>,
    /// `[slot]`; nothing where the stack does not accumulate.
    mass: Option<Vec<f32>>,
    /// How each token is stored, `[slot]`; nothing where the stack keeps what the model made.
    held: Option<Vec<Stored>>,
    /// Tokens that a head with the mean budget would hold.
    stored: u32,
}

impl HeadState {
    /// Resident tokens in slot order, `[slot]`.
    #[must_use]
    pub fn resident(&self) -> &[Pos] {
        &self.resident
    }

    /// Where and when the next decision is taken.
    #[must_use]
    pub fn at(&self) -> At {
        self.at
    }

    /// Accumulated attention, `[slot]`; empty where the stack does not accumulate.
    #[must_use]
    pub fn mass(&self) -> &[f32] {
        self.mass.as_deref().unwrap_or_default()
    }

    /// How the token in `slot` is stored.
    #[must_use]
    pub fn held(&self, slot: usize) -> Stored {
        self.held.as_ref().and_then(|held| held.get(slot).copied()).unwrap_or(Stored::EXACT)
    }

    /// Sets the accumulated attention after the prompt, as [`prompt_mass`] gives it: prompts are shared between stacks.
    pub fn set_mass(&mut self, mass: &[f32]) {
        if self.mass.is_some() {
            self.mass = Some(mass.to_vec());
        }
    }

    /// The token at `pos` is stored.
    pub fn store(&mut self, pos: Pos) {
        self.resident.push(pos);
        if let Some(mass) = &mut self.mass {
            mass.push(0.0);
        }
        if let Some(held) = &mut self.held {
            held.push(Stored::EXACT);
        }
        self.stored += 1;
        self.at.seen = pos.get() + 1;
    }

    fn input<'a>(&'a self, data: &'a dyn HeadData, capacity: u32) -> HeadInput<'a> {
        HeadInput { data, at: self.at, resident: &self.resident, mass: self.mass(), capacity }
    }

    fn keep(&mut self, kept: &[Pos], mean_budget: u32) {
        if let Some(mass) = &mut self.mass {
            let mut by_pos: Vec<(Pos, f32)> =
                self.resident.iter().copied().zip(mass.iter().copied()).collect();
            by_pos.sort_unstable_by_key(|(pos, _)| *pos);
            let of = |pos: &Pos| by_pos.binary_search_by_key(pos, |(p, _)| *p).map_or(0.0, |at| by_pos[at].1);
            *mass = kept.iter().map(of).collect();
        }
        if let Some(held) = &mut self.held {
            let mut by_pos: Vec<(Pos, Stored)> =
                self.resident.iter().copied().zip(held.iter().copied()).collect();
            by_pos.sort_unstable_by_key(|(pos, _)| *pos);
            let of = |pos: &Pos| {
                by_pos.binary_search_by_key(pos, |(p, _)| *p).map_or(Stored::EXACT, |at| by_pos[at].1)
            };
            *held = kept.iter().map(of).collect();
        }
        self.resident = kept.to_vec();
        self.stored = self.stored.min(mean_budget);
        self.at.eviction += 1;
    }
}

/// Adds the attention of the query at `query_pos` on `resident` to `mass`, `[slot]`: mean over the group.
#[expect(clippy::cast_precision_loss, reason = "groups are small")]
pub fn accumulate(data: &dyn HeadData, query_pos: Pos, resident: &[Pos], mass: &mut [f32]) {
    let group = data.group();
    let mut row = Vec::with_capacity(resident.len());
    for member in 0..group {
        data.logits(member, query_pos, resident, &mut row);
        num::softmax(&mut row);
        num::add_scaled(mass, 1.0 / group as f32, &row);
    }
}

/// The accumulated attention of the first `len` tokens after all of them have attended, `[kv_pos]`.
#[must_use]
pub fn prompt_mass(data: &dyn HeadData, len: u32) -> Vec<f32> {
    let positions: Vec<Pos> = (0..len).map(Pos::new).collect();
    let mut mass = vec![0.0; positions.len()];
    for query in &positions {
        let seen = query.idx() + 1;
        accumulate(data, *query, &positions[..seen], &mut mass[..seen]);
    }
    mass
}

impl Stack {
    /// A KV head whose prompt of `prompt_len` tokens is stored.
    #[must_use]
    pub fn start(&self, seq: SeqIdx, layer: LayerIdx, head: KvHead, prompt_len: u32) -> HeadState {
        let at = At { seq, layer, head, eviction: 0, seen: prompt_len, prompt_len };
        let mass = self.accumulates().then(|| vec![0.0; prompt_len as usize]);
        let held = (!self.keeps_exact()).then(|| vec![Stored::EXACT; prompt_len as usize]);
        HeadState { at, resident: (0..prompt_len).map(Pos::new).collect(), mass, held, stored: prompt_len }
    }

    /// Takes in the attention of all prompt tokens; nothing to do where the stack does not accumulate.
    pub fn attend_prompt(&self, data: &dyn HeadData, state: &mut HeadState) {
        if state.mass.is_some() {
            state.mass = Some(prompt_mass(data, state.at.seen));
        }
    }

    /// Takes in the attention of the token stored last; nothing to do where the stack does not accumulate.
    pub fn attend(&self, data: &dyn HeadData, state: &mut HeadState) {
        if let (Some(mass), Some(&last)) = (&mut state.mass, state.resident.last()) {
            accumulate(data, last, &state.resident, mass);
        }
    }

    /// The slots that the query of the token stored last attends to, `[member]`. `data` has the resident tokens as they are
    /// stored, and that token as the model made it.
    ///
    /// # Errors
    /// When something that the policy needs is not at hand, or it breaks its contract.
    pub fn attended(
        &self,
        shape: &ModelShape,
        data: &dyn HeadData,
        state: &HeadState,
    ) -> Result<Attended, PolicyError> {
        if !self.attends_to_part() {
            return Ok(Attended::All);
        }
        let At { layer, head, seen, .. } = state.at;
        let budget = self.capacity(shape, layer, head, seen);
        let (resident, query) = (state.resident.as_slice(), Pos::new(seen.saturating_sub(1)));
        // Where everything fits, nothing is chosen, whatever the blocks.
        if self.attend.takes_budget() && resident.len() <= budget as usize {
            return Ok(Attended::All);
        }
        let attended = self.attend.attend(&AttendView { at: state.at, data, resident, query, budget })?;
        if let Attended::Slots(lists) = &attended {
            let is_list = |slots: &Vec<usize>| {
                let is_sorted = slots.windows(2).all(|pair| pair[0] < pair[1]);
                is_sorted && slots.last().is_some_and(|last| *last < resident.len())
            };
            if lists.len() != data.group() || !lists.iter().all(is_list) {
                let rule = "some resident slots for each query head, ascending";
                return Err(PolicyError::Contract { policy: self.attend.spec().id, rule });
            }
        }
        Ok(attended)
    }

    /// Scalars of metadata beside the cache of this head.
    #[must_use]
    pub fn metadata_scalars(&self, state: &HeadState, head_dim: usize) -> usize {
        self.attend.metadata_scalars(state.at.layer, state.resident.len(), head_dim)
    }

    /// Stores what is resident: the tokens that must be stored in fewer bits than they are now, with their precisions. A
    /// token never gets bits back. The caller replaces its vectors by what is read back of them.
    ///
    /// # Errors
    /// When a policy needs something that is not at hand, or breaks its contract.
    pub fn hold(
        &self,
        data: &dyn HeadData,
        state: &mut HeadState,
    ) -> Result<Vec<(Pos, Stored)>, PolicyError> {
        let Some(held) = &mut state.held else {
            return Ok(Vec::new());
        };
        let wanted = self.store.store(&StoreView { data, resident: &state.resident, held })?;
        if wanted.len() != held.len() {
            let rule = "a representation for each resident token";
            return Err(PolicyError::Contract { policy: self.store.spec().id, rule });
        }
        let mut changed = Vec::new();
        for ((held, wanted), pos) in held.iter_mut().zip(wanted).zip(&state.resident) {
            let lowered = held.lowered(wanted);
            if lowered != *held {
                *held = lowered;
                changed.push((*pos, lowered));
            }
        }
        Ok(changed)
    }

    /// Whether an eviction of this head is due: the answer is the same for all heads of a sequence.
    #[must_use]
    pub fn is_due_for(&self, state: &HeadState, moment: Moment) -> bool {
        self.is_due(moment, state.stored, state.at.seen, state.at.prompt_len)
    }

    /// Evicts the heads given, which are all KV heads of a layer in order where the stack is
    /// [layer-wide](Stack::is_layer_wide), and any of them otherwise.
    ///
    /// # Errors
    /// As [`Stack::evict`].
    pub fn evict_heads(
        &self,
        shape: &ModelShape,
        heads: &[&dyn HeadData],
        states: &mut [&mut HeadState],
        seed: u64,
    ) -> Result<Vec<Eviction>, PolicyError> {
        let inputs: Vec<HeadInput<'_>> = heads
            .iter()
            .zip(states.iter())
            .map(|(data, state)| {
                let At { layer, head, seen, .. } = state.at;
                state.input(*data, self.capacity(shape, layer, head, seen))
            })
            .collect();
        let evictions = self.evict_layer(&inputs, seed)?;
        for (state, eviction) in states.iter_mut().zip(&evictions) {
            let mean = self.mean_budget(state.at.seen);
            state.keep(&eviction.kept, mean);
        }
        Ok(evictions)
    }
}
