//! The one function that turns proposals into an eviction.

use super::{KeepOrder, Stack};
use crate::policy::budget::Demand;
use crate::policy::select::{Selection, keep_where};
use crate::policy::{At, Draws, HeadData, HeadView, Peer, PolicyError, lists};
use crate::types::Pos;
use std::rc::Rc;

/// Why a token was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// One of the first tokens, protected.
    Sink,
    /// Reserved before scores were looked at.
    Reserved,
    /// Chosen by the selector.
    Selected,
    /// Taken by the selector since nothing with weight was left.
    Filled,
    /// In the recent buffer.
    Recent,
    /// In a block that holds a protected token, where blocks are kept whole.
    Block,
    /// There was room for everything: nothing was decided.
    Fits,
}

/// The outcome of an eviction of one KV head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Kept tokens in their new slot order, `[slot]`.
    pub kept: Vec<Pos>,
    /// Why each was kept, `[slot]`.
    pub reasons: Vec<Reason>,
    /// Whether the last kept and the first dropped candidate had equal scores.
    pub tied: bool,
    /// Kept tokens whose reason is [`Reason::Filled`].
    pub filled: u32,
}

/// One KV head that is to be evicted.
#[derive(Clone, Copy)]
pub struct HeadInput<'a> {
    /// Vectors by original position.
    pub data: &'a dyn HeadData,
    /// Where and when.
    pub at: At,
    /// Resident tokens in slot order, the most recent ones last, in time order.
    pub resident: &'a [Pos],
    /// Accumulated attention, `[slot]`; empty where the stack does not [accumulate](Stack::accumulates).
    pub mass: &'a [f32],
    /// Tokens to keep.
    pub capacity: u32,
}

impl std::fmt::Debug for HeadInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeadInput")
            .field("at", &self.at)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// What is decided about a head before its room may be moved.
pub(super) struct Prepared {
    pub(super) recent: usize,
    pub(super) sinks: Vec<usize>,
    pub(super) reserved: Vec<usize>,
    pub(super) choice: Vec<usize>,
    /// Whether a slot is in `choice`, `[scored]`.
    pub(super) is_free: Vec<bool>,
    pub(super) room: usize,
    /// `[scored]`; empty when nothing is chosen.
    pub(super) scores: Rc<Vec<f32>>,
}

impl Stack {
    /// Evicts one KV head down to `capacity` tokens: protects sinks and recent tokens, asks the policies about the rest.
    /// The recent buffer, sinks and one token more always stay, whatever `capacity` says.
    ///
    /// `resident` is in slot order, its most recent tokens last, in time order. For a stack that is
    /// [layer-wide](Stack::is_layer_wide) the head counts as the only one of its layer.
    ///
    /// # Errors
    /// When a score is NaN, something that a policy needs is not at hand, or a policy breaks its contract.
    pub fn evict(
        &self,
        data: &dyn HeadData,
        at: At,
        resident: &[Pos],
        capacity: u32,
        seed: u64,
    ) -> Result<Eviction, PolicyError> {
        self.evict_sharing(data, at, resident, capacity, seed, &mut None)
    }

    /// As [`Stack::evict`], with the scores of an earlier call on the same head, tokens, eviction and seed by a stack with
    /// the same [scorer](Stack::scorer), if there are any; scores that are computed are left behind. Nothing is shared by
    /// stacks that are [layer-wide](Stack::is_layer_wide).
    ///
    /// # Errors
    /// As [`Stack::evict`].
    pub fn evict_sharing(
        &self,
        data: &dyn HeadData,
        at: At,
        resident: &[Pos],
        capacity: u32,
        seed: u64,
        scores: &mut Option<Rc<Vec<f32>>>,
    ) -> Result<Eviction, PolicyError> {
        let head = HeadInput { data, at, resident, mass: &[], capacity };
        if !self.is_layer_wide() {
            return self.evict_alone(&head, seed, scores);
        }
        let broken = PolicyError::Contract { policy: "stack", rule: "one eviction a head" };
        self.evict_layer(&[head], seed)?.into_iter().next().ok_or(broken)
    }

    /// Evicts the KV heads of a layer, in order; see [`Stack::evict`].
    ///
    /// # Errors
    /// As [`Stack::evict`].
    pub fn evict_layer(&self, heads: &[HeadInput<'_>], seed: u64) -> Result<Vec<Eviction>, PolicyError> {
        if !self.is_layer_wide() {
            return heads.iter().map(|head| self.evict_alone(head, seed, &mut None)).collect();
        }
        let peers: Vec<Peer<'_>> =
            heads.iter().map(|head| Peer { data: head.data, resident: head.resident }).collect();
        if self.granularity.is_layer_wide() {
            return self.evict_units(heads, &peers, seed);
        }
        if !self.budget.is_layer_wide() {
            let evict = |head: &HeadInput<'_>| match self.keeps_all(head) {
                Some(eviction) => Ok(eviction),
                None => self
                    .prepare(head, &peers, seed, &mut None)
                    .and_then(|p| self.finish(head, &peers, seed, p)),
            };
            return heads.iter().map(evict).collect();
        }
        let mut prepared = heads
            .iter()
            .map(|head| self.prepare(head, &peers, seed, &mut None))
            .collect::<Result<Vec<Prepared>, PolicyError>>()?;
        let scores: Vec<Vec<f32>> = prepared
            .iter()
            .map(|p| p.choice.iter().map(|&slot| p.scores.get(slot).copied().unwrap_or(0.0)).collect())
            .collect();
        let demands: Vec<Demand<'_>> =
            prepared.iter().zip(&scores).map(|(p, scores)| Demand { scores, room: p.room }).collect();
        let rooms = self.budget.rooms(&demands);
        let is_sum_kept = rooms.len() == heads.len()
            && rooms.iter().sum::<usize>() == demands.iter().map(|d| d.room).sum::<usize>()
            && rooms.iter().zip(&scores).all(|(room, scores)| *room <= scores.len());
        if !is_sum_kept {
            let policy = self.budget.spec().id;
            return Err(PolicyError::Contract { policy, rule: "room is moved between heads, not made" });
        }
        prepared.iter_mut().zip(rooms).for_each(|(p, room)| p.room = room);
        heads.iter().zip(prepared).map(|(head, p)| self.finish(head, &peers, seed, p)).collect()
    }

    fn evict_units(
        &self,
        heads: &[HeadInput<'_>],
        peers: &[Peer<'_>],
        seed: u64,
    ) -> Result<Vec<Eviction>, PolicyError> {
        let all: Vec<Eviction> = heads.iter().filter_map(|head| self.keeps_all(head)).collect();
        if all.len() == heads.len() {
            return Ok(all);
        }
        let prepared = heads
            .iter()
            .map(|head| self.prepare(head, peers, seed, &mut None))
            .collect::<Result<Vec<Prepared>, PolicyError>>()?;
        self.evict_together(heads, prepared, seed)
    }

    fn evict_alone(
        &self,
        head: &HeadInput<'_>,
        seed: u64,
        shared: &mut Option<Rc<Vec<f32>>>,
    ) -> Result<Eviction, PolicyError> {
        match self.keeps_all(head) {
            Some(eviction) => Ok(eviction),
            None => self.prepare(head, &[], seed, shared).and_then(|p| self.finish(head, &[], seed, p)),
        }
    }

    /// The eviction of a head that holds no more than it may.
    fn keeps_all(&self, head: &HeadInput<'_>) -> Option<Eviction> {
        let reason = |pos: &Pos| if pos.get() < self.knobs.sinks { Reason::Sink } else { Reason::Fits };
        (head.resident.len() <= head.capacity as usize).then(|| Eviction {
            kept: head.resident.to_vec(),
            reasons: head.resident.iter().map(reason).collect(),
            tied: false,
            filled: 0,
        })
    }

    pub(super) fn view<'a>(
        &self,
        head: &HeadInput<'a>,
        recent: usize,
        peers: &'a [Peer<'a>],
    ) -> HeadView<'a> {
        let window = head.at.seen.saturating_sub(self.window())..head.at.seen;
        let view = HeadView::new(head.at, head.data, head.resident, recent, window);
        HeadView { mass: head.mass, peers, ..view }
    }

    fn prepare(
        &self,
        head: &HeadInput<'_>,
        peers: &[Peer<'_>],
        seed: u64,
        shared: &mut Option<Rc<Vec<f32>>>,
    ) -> Result<Prepared, PolicyError> {
        let recent = (self.knobs.recent as usize).min(head.resident.len());
        let mut view = self.view(head, recent, peers);
        let draws = Draws::new(seed, head.at);
        let mut sinks: Vec<usize> = lists::take(head.data);
        let mut choice: Vec<usize> = lists::take(head.data);
        let mut is_free: Vec<bool> = lists::take(head.data);
        is_free.extend(view.scored().iter().map(|pos| pos.get() >= self.knobs.sinks));
        // Sinks come first, as a rule: then the rest is a range.
        let first = is_free.iter().position(|is_free| *is_free).unwrap_or(is_free.len());
        sinks.extend(0..first);
        if is_free[first..].iter().all(|is_free| *is_free) {
            choice.extend(first..is_free.len());
        } else {
            for (slot, is_free) in is_free.iter().enumerate().skip(first) {
                if *is_free { choice.push(slot) } else { sinks.push(slot) }
            }
        }
        let room = (head.capacity as usize).saturating_sub(recent + sinks.len());
        let room = room.max(usize::from(recent + sinks.len() == 0)).min(choice.len());

        let wanted = self.reserve.wanted(self.mean_budget(head.at.seen), &view) as usize;
        let taken = if self.reserve.holds_sinks() { sinks.len() } else { 0 };
        let reservable = wanted.saturating_sub(taken).min(room);
        let reserved = self.reserve.reserve(&view, &choice, reservable, &draws)?;
        take(self.reserve.spec().id, &reserved, &choice, reservable, &mut is_free)?;
        if !reserved.is_empty() {
            keep_where(&mut choice, |slot| is_free[slot]);
        }

        let room = (room - reserved.len()).min(choice.len());
        (view.choice, view.room) = (&choice, room);
        let is_asked = room > 0 || self.budget.is_layer_wide();
        let scores = if !is_asked {
            Rc::new(Vec::new())
        } else if let Some(scores) = shared.take() {
            scores
        } else {
            Rc::new(self.scores(&view, &draws)?)
        };
        *shared = is_asked.then(|| scores.clone());
        Ok(Prepared { recent, sinks, reserved, choice, is_free, room, scores })
    }

    fn scores(&self, view: &HeadView<'_>, draws: &Draws) -> Result<Vec<f32>, PolicyError> {
        let mut scores = lists::take(view.data);
        if self.score.accumulates() && view.mass.len() != view.resident.len() {
            let (policy, what) = (self.score.spec().id, "the accumulated attention of every resident token");
            return Err(PolicyError::Missing { policy, what });
        }
        self.score.score(view, draws, &mut scores)?;
        let policy = self.score.spec().id;
        if scores.len() != view.scored().len() {
            return Err(PolicyError::Contract { policy, rule: "one score for each scored token" });
        }
        if let Some(slot) = scores.iter().position(|score| score.is_nan()) {
            let At { seq, layer, head, .. } = view.at;
            return Err(PolicyError::NotANumber { policy, seq, layer, head, pos: view.scored()[slot] });
        }
        Ok(scores)
    }

    fn finish(
        &self,
        head: &HeadInput<'_>,
        peers: &[Peer<'_>],
        seed: u64,
        prepared: Prepared,
    ) -> Result<Eviction, PolicyError> {
        let Prepared { recent, sinks, reserved, choice, mut is_free, room, scores } = prepared;
        let view = HeadView { choice: &choice, room, ..self.view(head, recent, peers) };
        let selection = if room == 0 {
            Selection::default()
        } else {
            self.select.select(&view, &scores, &choice, room, &Draws::new(seed, head.at))?
        };
        let policy = self.select.spec().id;
        take(policy, &selection.slots, &choice, room, &mut is_free)?;
        if selection.slots.len() != room {
            return Err(PolicyError::Contract { policy, rule: "as many tokens as there is room for" });
        }
        let resident = head.resident;
        let scored = &resident[..resident.len() - recent];
        let (selected, filled) = selection.parts();
        let chosen = [
            (&sinks[..], Reason::Sink),
            (&reserved, Reason::Reserved),
            (selected, Reason::Selected),
            (filled, Reason::Filled),
        ];
        let filled = u32::try_from(filled.len()).unwrap_or(u32::MAX);
        // Room for what is stored until the next eviction, too: the list grows on.
        let (mut kept, mut reasons): (Vec<Pos>, Vec<Reason>) =
            (lists::take(head.data), lists::take(head.data));
        kept.reserve(resident.len());
        reasons.reserve(resident.len());
        for (slots, reason) in chosen {
            kept.extend(slots.iter().map(|&slot| scored[slot]));
            reasons.resize(kept.len(), reason);
        }
        if self.order == KeepOrder::Position {
            let mut tokens: Vec<(Pos, Reason)> = kept.drain(..).zip(reasons.drain(..)).collect();
            tokens.sort_unstable();
            (kept, reasons) = tokens.into_iter().unzip();
        }
        kept.extend_from_slice(&resident[resident.len() - recent..]);
        reasons.resize(kept.len(), Reason::Recent);
        for list in [sinks, choice, reserved, selection.slots] {
            lists::give_back(head.data, list);
        }
        lists::give_back(head.data, is_free);
        Ok(Eviction { kept, reasons, tied: selection.tied, filled })
    }
}

/// Takes a proposal out of what is free, `[slot]`. It must be a set of at most `count` members of `choice`, the free slots.
pub(super) fn take(
    policy: &'static str,
    proposed: &[usize],
    choice: &[usize],
    count: usize,
    is_free: &mut [bool],
) -> Result<(), PolicyError> {
    for slot in proposed {
        match is_free.get_mut(*slot) {
            Some(free) if *free => *free = false,
            _ if choice.contains(slot) => {
                return Err(PolicyError::Contract { policy, rule: "no token twice" });
            }
            _ => return Err(PolicyError::Contract { policy, rule: "only tokens that are up for choice" }),
        }
    }
    if proposed.len() > count {
        return Err(PolicyError::Contract { policy, rule: "no more tokens than there is room for" });
    }
    Ok(())
}
