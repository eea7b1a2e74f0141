//! A checked stack.

use super::{KeepOrder, Knobs, StackSpec};
use crate::policy::budget::{Budget, Place};
use crate::policy::registry::{BUDGETS, RESERVES, SCHEDULES, SCORES, SELECTS, find};
use crate::policy::reserve::Reserve;
use crate::policy::schedule::{Moment, Schedule, Tick};
use crate::policy::score::Score;
use crate::policy::select::Select;
use crate::policy::{Law, Needs, PolicyError, Randomness};
use crate::types::{KvHead, LayerIdx, ModelShape};

/// One policy of each eviction family, checked to fit together.
#[derive(Debug)]
pub struct Stack {
    label: String,
    scorer: String,
    pub(super) knobs: Knobs,
    pub(super) order: KeepOrder,
    pub(super) score: Box<dyn Score>,
    pub(super) reserve: Box<dyn Reserve>,
    pub(super) select: Box<dyn Select>,
    pub(super) budget: Box<dyn Budget>,
    schedule: Box<dyn Schedule>,
}

impl Stack {
    /// Builds the policies and checks that the amounts fit.
    ///
    /// # Errors
    /// When an id is unknown, a parameter is out of range, or the budget cannot hold what must be kept.
    pub fn checked(spec: StackSpec) -> Result<Self, PolicyError> {
        let score = (find(SCORES, "score", &spec.score.kind)?.build)(&spec.score.params)?;
        Self::with_score(spec, score)
    }

    /// As [`Stack::checked`], with a scorer that need not be registered; `spec.score` is not looked at.
    ///
    /// # Errors
    /// As [`Stack::checked`].
    pub fn with_score(spec: StackSpec, score: Box<dyn Score>) -> Result<Self, PolicyError> {
        let mut stack = Self {
            scorer: String::new(),
            score,
            reserve: (find(RESERVES, "reserve", &spec.reserve.kind)?.build)(&spec.reserve.params)?,
            select: (find(SELECTS, "select", &spec.select.kind)?.build)(&spec.select.params)?,
            budget: (find(BUDGETS, "budget", &spec.budget.kind)?.build)(&spec.budget.params)?,
            schedule: (find(SCHEDULES, "schedule", &spec.schedule.kind)?.build)(&spec.schedule.params)?,
            label: spec.label,
            knobs: spec.knobs,
            order: spec.order,
        };
        if stack.select.takes_weights() && stack.score.can_be_negative() {
            let (policy, score) = (stack.select.spec().id, stack.score.spec().id);
            let reason = format!("it takes scores as weights, and those of `{score}` can be below 0");
            return Err(PolicyError::Refused { policy, reason });
        }
        stack.scorer = stack.scorer_key();
        if stack.can_evict() && stack.budget.is_studys() {
            stack.check_amounts()?;
        }
        Ok(stack)
    }

    /// Stacks with equal keys give equal scores for equal residents, eviction and seed.
    fn scorer_key(&self) -> String {
        let (id, params) = (self.score.spec().id, self.score.params());
        let Knobs { capacity, recent, sinks, .. } = self.knobs;
        if !self.score.looks_at_choice() {
            return format!("{id} {params} {recent}");
        }
        let reserve = format!("{} {}", self.reserve.spec().id, self.reserve.params());
        let budget = format!("{} {}", self.budget.spec().id, self.budget.params());
        format!("{id} {params} {recent} {sinks} {capacity} {reserve} {budget}")
    }

    fn check_amounts(&self) -> Result<(), PolicyError> {
        let Knobs { capacity, recent, sinks, .. } = self.knobs;
        let reserved = self.reserve.reserved(capacity);
        // Sinks sit inside the reserved slots where there are any, unless the reserve says otherwise.
        let holds_sinks = self.reserve.holds_sinks();
        let chosen = if holds_sinks { sinks.max(reserved) } else { sinks.saturating_add(reserved) }.max(1);
        let needed = recent.saturating_add(chosen);
        if needed > capacity {
            let demand = if !holds_sinks {
                format!("{recent} recent tokens, {sinks} sinks and {reserved} reserved tokens (N_v)")
            } else if reserved > sinks {
                format!("{recent} recent tokens and {reserved} reserved ones (N_v, {sinks} sinks among them)")
            } else {
                format!("{recent} recent tokens, {sinks} sinks and a token to choose")
            };
            return Err(PolicyError::BudgetTooSmall { capacity, demand, needed });
        }
        if holds_sinks && reserved > 0 && reserved < sinks {
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
        let specs = [self.reserve.spec().randomness, self.select.spec().randomness, self.score.randomness()];
        self.can_evict() && specs.contains(&Randomness::Random)
    }

    /// Trace fields that the stack reads.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let needs = self.score.needs().and(self.reserve.spec().needs).and(self.select.spec().needs);
        // Accumulated attention is made of queries and keys.
        if self.accumulates() { needs.and(Needs::QK) } else { needs }
    }

    /// Whether every part claims `law`.
    #[must_use]
    pub fn claims(&self, law: Law) -> bool {
        let specs = [self.reserve.spec(), self.select.spec(), self.budget.spec()];
        self.score.claims(law) && specs.iter().all(|spec| spec.laws.contains(&law))
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
    pub fn capacity(&self, shape: &ModelShape, layer: LayerIdx, head: KvHead, seen: u32) -> u32 {
        let place = Place { shape, layer, head, seen, recent: self.knobs.recent };
        self.budget.share(place, self.mean_budget(seen))
    }

    /// The mean budget over all heads once `seen` tokens were seen.
    #[must_use]
    pub fn mean_budget(&self, seen: u32) -> u32 {
        self.budget.mean(self.knobs.capacity, seen)
    }

    /// Whether all KV heads of a layer must be evicted together.
    #[must_use]
    pub fn is_layer_wide(&self) -> bool {
        self.score.is_layer_wide() || self.budget.is_layer_wide()
    }

    /// Whether the scorer needs the attention of every query, prompt included.
    #[must_use]
    pub fn accumulates(&self) -> bool {
        self.can_evict() && self.score.accumulates()
    }

    /// Whether an eviction is due. The schedule looks at what a head with the mean budget would hold (`stored`), so all
    /// heads of all layers evict at the same steps.
    #[must_use]
    pub fn is_due(&self, moment: Moment, stored: u32, seen: u32, prompt_len: u32) -> bool {
        let capacity = self.mean_budget(seen);
        self.schedule.is_due(Tick { moment, stored, capacity, steps: seen.saturating_sub(prompt_len) })
    }

    /// Tokens seen at each eviction of a sequence with `prompt_len` prompt tokens and `len` tokens in all, ascending.
    #[must_use]
    pub fn evictions(&self, prompt_len: u32, len: u32) -> Vec<u32> {
        let mut evictions = Vec::new();
        let mut stored = prompt_len;
        for seen in prompt_len..=len {
            let moment = if seen == prompt_len { Moment::PrefillDone } else { Moment::DecodeStep };
            stored += u32::from(moment == Moment::DecodeStep);
            if self.is_due(moment, stored, seen, prompt_len) {
                evictions.push(seen);
                stored = stored.min(self.mean_budget(seen));
            }
        }
        evictions
    }

    /// What the scores of a token depend on, beside the tokens resident, the eviction and the seed.
    #[must_use]
    pub fn scorer(&self) -> &str {
        &self.scorer
    }
}
