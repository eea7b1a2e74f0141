//! A checked stack, and the one function that turns proposals into an eviction.

use super::{KeepOrder, Knobs, StackSpec};
use crate::policy::budget::Budget;
use crate::policy::registry::{BUDGETS, RESERVES, SCHEDULES, SCORES, SELECTS, find};
use crate::policy::reserve::Reserve;
use crate::policy::schedule::{Moment, Schedule};
use crate::policy::score::Score;
use crate::policy::select::{Select, Selection};
use crate::policy::{At, Draws, HeadData, HeadView, Law, Needs, PolicyError, Randomness};
use crate::types::{KvHead, LayerIdx, ModelShape, Pos};
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
    /// In the recent buffer.
    Recent,
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
}

/// One policy of each eviction family, checked to fit together.
#[derive(Debug)]
pub struct Stack {
    label: String,
    scorer: String,
    knobs: Knobs,
    order: KeepOrder,
    score: Box<dyn Score>,
    reserve: Box<dyn Reserve>,
    select: Box<dyn Select>,
    budget: Box<dyn Budget>,
    schedule: Box<dyn Schedule>,
}

impl Stack {
    /// Builds the policies and checks that the amounts fit.
    ///
    /// # Errors
    /// When an id is unknown, a parameter is out of range, or the budget cannot hold what must be kept.
    pub fn checked(spec: StackSpec) -> Result<Self, PolicyError> {
        let mut stack = Self {
            scorer: String::new(),
            score: (find(SCORES, "score", &spec.score.kind)?.build)(&spec.score.params)?,
            reserve: (find(RESERVES, "reserve", &spec.reserve.kind)?.build)(&spec.reserve.params)?,
            select: (find(SELECTS, "select", &spec.select.kind)?.build)(&spec.select.params)?,
            budget: (find(BUDGETS, "budget", &spec.budget.kind)?.build)(&spec.budget.params)?,
            schedule: (find(SCHEDULES, "schedule", &spec.schedule.kind)?.build)(&spec.schedule.params)?,
            label: spec.label,
            knobs: spec.knobs,
            order: spec.order,
        };
        stack.scorer = format!("{} {} {}", stack.score.spec().id, stack.score.params(), stack.knobs.recent);
        if stack.can_evict() {
            stack.check_amounts()?;
        }
        Ok(stack)
    }

    fn check_amounts(&self) -> Result<(), PolicyError> {
        let Knobs { capacity, recent, sinks, .. } = self.knobs;
        let reserved = self.reserve.reserved(capacity);
        // Sinks sit inside the reserved slots where there are any.
        let chosen = sinks.max(reserved).max(1);
        let needed = recent.saturating_add(chosen);
        if needed > capacity {
            let demand = if reserved > sinks {
                format!("{recent} recent tokens and {reserved} reserved ones (N_v, {sinks} sinks among them)")
            } else {
                format!("{recent} recent tokens, {sinks} sinks and a token to choose")
            };
            return Err(PolicyError::BudgetTooSmall { capacity, demand, needed });
        }
        if reserved > 0 && reserved < sinks {
            return Err(PolicyError::BudgetTooSmall {
                capacity,
                demand: format!("{sinks} sinks inside {reserved} reserved tokens (N_v)"),
                needed: capacity.saturating_mul(sinks).div_ceil(reserved),
            });
        }
        self.schedule.check(capacity)
    }

    /// Name in tables and plots.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The amounts.
    #[must_use]
    pub fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    /// N_v: reserved tokens, sinks included.
    #[must_use]
    pub fn value_tokens(&self) -> u32 {
        self.reserve.reserved(self.knobs.capacity)
    }

    /// Eviction period, where the schedule has one.
    #[must_use]
    pub fn period(&self) -> Option<u32> {
        self.schedule.period()
    }

    /// Recent queries that the scorer looks at.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.score.window()
    }

    /// Whether the stack ever evicts.
    #[must_use]
    pub fn can_evict(&self) -> bool {
        self.schedule.spec().id != "never"
    }

    /// Whether a seed can change anything.
    #[must_use]
    pub fn is_random(&self) -> bool {
        let specs = [self.score.spec(), self.reserve.spec(), self.select.spec()];
        self.can_evict() && specs.iter().any(|spec| spec.randomness == Randomness::Random)
    }

    /// Trace fields that the stack reads.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.score.spec().needs.and(self.reserve.spec().needs).and(self.select.spec().needs)
    }

    /// Whether every part claims `law`.
    #[must_use]
    pub fn claims(&self, law: Law) -> bool {
        let specs = [self.score.spec(), self.reserve.spec(), self.select.spec(), self.budget.spec()];
        specs.iter().all(|spec| spec.laws.contains(&law))
    }

    /// The effective parameters of every part.
    #[must_use]
    pub fn params(&self) -> serde_json::Value {
        if !self.can_evict() {
            return serde_json::json!({ "schedule": { "kind": self.schedule.spec().id } });
        }
        serde_json::json!({
            "score": { "kind": self.score.spec().id, "params": self.score.params() },
            "reserve": { "kind": self.reserve.spec().id, "params": self.reserve.params() },
            "select": { "kind": self.select.spec().id, "params": self.select.params() },
            "budget": { "kind": self.budget.spec().id, "params": self.budget.params() },
            "schedule": { "kind": self.schedule.spec().id, "params": self.schedule.params() },
            "capacity": self.knobs.capacity,
            "recent": self.knobs.recent,
            "sinks": self.knobs.sinks,
            "order": self.order,
        })
    }

    /// Tokens that this head keeps at an eviction.
    #[must_use]
    pub fn capacity(&self, shape: &ModelShape, layer: LayerIdx, head: KvHead) -> u32 {
        self.budget.share(shape, layer, head, self.knobs.capacity)
    }

    /// Whether an eviction is due. The schedule looks at the mean budget, so all heads evict at the same steps.
    #[must_use]
    pub fn is_due(&self, moment: Moment, stored: u32) -> bool {
        self.schedule.is_due(moment, stored, self.knobs.capacity)
    }

    /// Tokens seen at each eviction of a sequence with `prompt_len` prompt tokens and `len` tokens in all, ascending.
    #[must_use]
    pub fn evictions(&self, prompt_len: u32, len: u32) -> Vec<u32> {
        let mut evictions = Vec::new();
        // Tokens that a head with the mean budget holds.
        let mut stored = prompt_len;
        for seen in prompt_len..=len {
            let moment = if seen == prompt_len { Moment::PrefillDone } else { Moment::DecodeStep };
            stored += u32::from(moment == Moment::DecodeStep);
            if self.is_due(moment, stored) {
                evictions.push(seen);
                stored = stored.min(self.knobs.capacity);
            }
        }
        evictions
    }

    /// What the scores of a token depend on, beside the tokens resident, the eviction and the seed.
    #[must_use]
    pub fn scorer(&self) -> &str {
        &self.scorer
    }

    /// Evicts down to `capacity` tokens: protects sinks and recent tokens, asks the policies about the rest.
    ///
    /// `resident` is in slot order, its most recent tokens last, in time order.
    ///
    /// # Errors
    /// When a score is NaN or a policy breaks its contract.
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
    /// the same [scorer](Stack::scorer), if there are any; scores that are computed are left behind.
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
        if resident.len() <= capacity as usize {
            return Ok(Eviction { kept: resident.to_vec(), reasons: self.reasons_of(resident), tied: false });
        }
        let recent = (self.knobs.recent as usize).min(resident.len());
        let window = at.seen.saturating_sub(self.window())..at.seen;
        let view = HeadView { at, data, resident, recent, window };
        let draws = Draws::new(seed, at);
        let is_sink = |slot: &usize| view.scored()[*slot].get() < self.knobs.sinks;
        let (sinks, mut choice): (Vec<usize>, Vec<usize>) = (0..view.scored().len()).partition(is_sink);
        let room = (capacity as usize).saturating_sub(recent + sinks.len());

        let reservable = (self.value_tokens() as usize).saturating_sub(sinks.len()).min(room);
        let reserved = self.reserve.reserve(&view, &choice, reservable, &draws)?;
        check_choice(self.reserve.spec().id, &reserved, &choice, reservable, view.scored().len())?;
        take_out(&mut choice, &reserved);

        let count = (room - reserved.len()).min(choice.len());
        let selection = self.selection(&view, &choice, count, &draws, scores)?;

        let scored = view.scored();
        let mut tokens: Vec<(Pos, Reason)> = Vec::with_capacity(capacity as usize);
        tokens.extend(sinks.iter().map(|&slot| (scored[slot], Reason::Sink)));
        tokens.extend(reserved.iter().map(|&slot| (scored[slot], Reason::Reserved)));
        tokens.extend(selection.slots.iter().map(|&slot| (scored[slot], Reason::Selected)));
        if self.order == KeepOrder::Position {
            tokens.sort_unstable();
        }
        tokens.extend(resident[resident.len() - recent..].iter().map(|&pos| (pos, Reason::Recent)));
        let (kept, reasons) = tokens.into_iter().unzip();
        Ok(Eviction { kept, reasons, tied: selection.tied })
    }

    fn selection(
        &self,
        view: &HeadView<'_>,
        choice: &[usize],
        count: usize,
        draws: &Draws,
        shared: &mut Option<Rc<Vec<f32>>>,
    ) -> Result<Selection, PolicyError> {
        if count == 0 {
            return Ok(Selection::default());
        }
        let scores = match shared.take() {
            Some(scores) => scores,
            None => Rc::new(self.scores(view, draws)?),
        };
        *shared = Some(scores.clone());
        let selection = self.select.select(view, &scores, choice, count, draws)?;
        check_choice(self.select.spec().id, &selection.slots, choice, count, view.scored().len())?;
        if selection.slots.len() != count {
            let policy = self.select.spec().id;
            return Err(PolicyError::Contract { policy, rule: "as many tokens as there is room for" });
        }
        Ok(selection)
    }

    /// One checked score for each scored token.
    fn scores(&self, view: &HeadView<'_>, draws: &Draws) -> Result<Vec<f32>, PolicyError> {
        let mut scores = Vec::new();
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

    fn reasons_of(&self, resident: &[Pos]) -> Vec<Reason> {
        resident
            .iter()
            .map(|pos| if pos.get() < self.knobs.sinks { Reason::Sink } else { Reason::Recent })
            .collect()
    }
}

/// A proposal must be a set of at most `count` members of `choice`, which are slots below `slots`.
fn check_choice(
    policy: &'static str,
    proposed: &[usize],
    choice: &[usize],
    count: usize,
    slots: usize,
) -> Result<(), PolicyError> {
    let mut is_free = vec![false; slots];
    choice.iter().for_each(|slot| is_free[*slot] = true);
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

fn take_out(choice: &mut Vec<usize>, taken: &[usize]) {
    if taken.is_empty() {
        return;
    }
    let mut taken = taken.to_vec();
    taken.sort_unstable();
    choice.retain(|slot| taken.binary_search(slot).is_err());
}
