//! A checked stack.

use super::{Granularity, KeepOrder, Knobs, Places, Reason, StackSpec};
use crate::policy::attend::Attend;
use crate::policy::budget::{Budget, Place};
use crate::policy::registry::{ATTENDS, BUDGETS, RESERVES, SCHEDULES, SCORES, SELECTS, STORES, find};
use crate::policy::reserve::Reserve;
use crate::policy::schedule::{Moment, Schedule, Tick};
use crate::policy::score::Score;
use crate::policy::score::window_mass::Normaliser;
use crate::policy::select::Select;
use crate::policy::store::Store;
use crate::policy::{Law, Needs, PolicyError, Randomness};
use crate::types::{KvHead, LayerIdx, ModelShape};

/// Beyond any budget that a study may have.
const MOST_BUDGET: u32 = 1 << 24;

/// One policy of each family that has a say in the cache, checked to fit together.
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
    pub(super) attend: Box<dyn Attend>,
    pub(super) store: Box<dyn Store>,
    places: Places,
    pub(super) granularity: Granularity,
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
            attend: (find(ATTENDS, "attend", &spec.attend.kind)?.build)(&spec.attend.params)?,
            store: (find(STORES, "store", &spec.store.kind)?.build)(&spec.store.params)?,
            places: spec.places,
            granularity: spec.granularity,
            label: spec.label,
            knobs: spec.knobs,
            order: spec.order,
        };
        if stack.select.takes_weights() && stack.score.can_be_negative() {
            let (policy, score) = (stack.select.spec().id, stack.score.spec().id);
            let reason = format!("it takes scores as weights, and those of `{score}` can be below 0");
            return Err(PolicyError::Refused { policy, reason });
        }
        stack.check_parts()?;
        stack.scorer = stack.scorer_key();
        if stack.can_evict() && stack.budget.is_studys() {
            stack.check_amounts()?;
        }
        Ok(stack)
    }

    /// The same stack with a selection that need not be registered: one with weights of its own, say.
    ///
    /// # Errors
    /// When the parts do not work together.
    pub fn attending(self, attend: Box<dyn Attend>) -> Result<Self, PolicyError> {
        let stack = Self { attend, ..self };
        stack.check_parts()?;
        Ok(stack)
    }

    /// What works alone and not together.
    fn check_parts(&self) -> Result<(), PolicyError> {
        let refused = |policy, reason| Err(PolicyError::Refused { policy, reason });
        let (score, attend) = (self.score.spec(), self.attend.spec());
        if self.attends_to_part() && self.accumulates() {
            let reason = format!(
                "it adds up the attention of every query on every resident token; under `{}` a query attends to some of \
                 them only",
                attend.id
            );
            return refused(score.id, reason);
        }
        if self.granularity.is_layer_wide() && self.budget.is_layer_wide() {
            let reason = "it moves room between KV heads, which keep the same tokens under this granularity";
            return refused(self.budget.spec().id, reason.to_owned());
        }
        if self.granularity.tokens() > 1 && self.reserve.spec().id != "none" {
            let reason = "it reserves single tokens; under a granularity of blocks use the reserve `none`";
            return refused(self.reserve.spec().id, reason.to_owned());
        }
        if self.places == Places::Original {
            return Ok(());
        }
        let needs = self.score.needs().and(self.reserve.spec().needs);
        let reason = if needs.queries || needs.keys {
            format!(
                "re-rotation turns the keys that `{}` looks at; only scores of positions or values go with it",
                score.id
            )
        } else if self.attends_to_part() {
            format!("re-rotation turns the keys that `{}` looks at; use one of them", attend.id)
        } else if !matches!(self.budget.spec().id, "uniform" | "share-of-seen") {
            format!(
                "re-rotation gives a query one place in all heads; under `{}` they hold different numbers of tokens",
                self.budget.spec().id
            )
        } else {
            return Ok(());
        };
        refused("rerotate", reason)
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

    /// Whether the amounts fit; budgets that an error offers work.
    fn check_amounts(&self) -> Result<(), PolicyError> {
        let Knobs { capacity, sinks, .. } = self.knobs;
        let most = self.reserve.reserved(MOST_BUDGET);
        if self.reserve.holds_sinks() && most > 0 && most < sinks {
            let policy = self.reserve.spec().id;
            let reason = format!(
                "{most} reserved tokens (N_v) cannot hold the {sinks} sinks that count among them, whatever the budget: reserve {sinks} or more, none at all, or protect {most} sinks or fewer"
            );
            return Err(PolicyError::Refused { policy, reason });
        }
        self.amounts_fit(capacity).map_err(|error| match error {
            PolicyError::BudgetTooSmall { capacity, demand, needed, .. } => {
                let works = self.smallest_budget(capacity.saturating_add(1));
                // Where a share must hold them, the amount is an estimate.
                let needed = works.map_or(needed, |works| works.min(needed));
                PolicyError::BudgetTooSmall { capacity, demand, needed, works }
            }
            PolicyError::PeriodMismatch { capacity, period, below, above } => PolicyError::PeriodMismatch {
                capacity,
                period,
                below: below.filter(|below| self.amounts_fit(*below).is_ok()),
                above: self.smallest_budget(above).unwrap_or(above),
            },
            other => other,
        })
    }

    /// The smallest budget from `least` on that works.
    fn smallest_budget(&self, least: u32) -> Option<u32> {
        /// Budgets that are tried, multiples of the period where there is one.
        const TRIES: u32 = 10_000;
        let step = self.period().unwrap_or(1).max(1);
        let first = least.div_ceil(step);
        let mut budgets = (first..first.saturating_add(TRIES)).map_while(|count| count.checked_mul(step));
        budgets.find(|&budget| self.amounts_fit(budget).is_ok())
    }

    fn amounts_fit(&self, capacity: u32) -> Result<(), PolicyError> {
        let Knobs { recent, sinks, .. } = self.knobs;
        let too_small = |demand: String, needed: u32| {
            Err(PolicyError::BudgetTooSmall { capacity, demand, needed, works: None })
        };
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
            return too_small(demand, needed);
        }
        if holds_sinks && reserved > 0 && reserved < sinks {
            let demand = format!("{sinks} sinks inside {reserved} reserved tokens (N_v)");
            return too_small(demand, capacity.saturating_mul(sinks).div_ceil(reserved));
        }
        let unit = self.granularity.tokens();
        // The blocks of the sinks and the one in which the recent tokens begin stay whole.
        let whole = recent + sinks.div_ceil(unit).saturating_mul(unit) + 2 * unit - 1;
        if unit > 1 && whole > capacity {
            let demand = format!(
                "{recent} recent tokens, the block in which they begin, those of {sinks} sinks and a block of {unit} to choose"
            );
            return too_small(demand, whole);
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

    /// The attention of the last queries that the scorer asks for; see [`Score::mean_attention`].
    #[must_use]
    pub fn mean_attention(&self) -> Option<(u32, Normaliser)> {
        self.score.mean_attention()
    }

    /// Whether the stack ever evicts.
    #[must_use]
    pub fn can_evict(&self) -> bool {
        self.schedule.spec().id != "never"
    }

    /// Whether a query may attend to less than what is resident.
    #[must_use]
    pub fn attends_to_part(&self) -> bool {
        self.attend.spec().id != "full"
    }

    /// Id of the selection.
    #[must_use]
    pub fn attend_id(&self) -> &'static str {
        self.attend.spec().id
    }

    /// Id of the store.
    #[must_use]
    pub fn store_id(&self) -> &'static str {
        self.store.spec().id
    }

    /// Whether what is stored is what the model made.
    #[must_use]
    pub fn keeps_exact(&self) -> bool {
        self.store.spec().id == "exact"
    }

    /// What is kept or evicted as one.
    #[must_use]
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// Which position a key is rotated at.
    #[must_use]
    pub fn places(&self) -> Places {
        self.places
    }

    /// Whether queries read something else than the resident tokens as they were made: a part of them, what a store gives
    /// back, or keys turned to other places.
    #[must_use]
    pub fn is_read_otherwise(&self) -> bool {
        self.attends_to_part() || !self.keeps_exact() || self.places == Places::Cache
    }

    /// Whether the stack is the full cache, whatever the sequence.
    #[must_use]
    pub fn is_full_cache(&self) -> bool {
        !self.can_evict() && !self.is_read_otherwise()
    }

    /// Whether the study's budget changes anything.
    #[must_use]
    pub fn is_budgeted(&self) -> bool {
        self.can_evict() || self.attend.takes_budget()
    }

    /// Whether a seed can change anything.
    #[must_use]
    pub fn is_random(&self) -> bool {
        let specs = [self.reserve.spec().randomness, self.select.spec().randomness, self.score.randomness()];
        self.can_evict() && specs.contains(&Randomness::Random)
    }

    /// Whether the selector draws by weights, and may have to fill up where too few have any.
    #[must_use]
    pub fn takes_weights(&self) -> bool {
        self.select.takes_weights()
    }

    /// Trace fields that the stack reads.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let needs = self.score.needs().and(self.reserve.spec().needs).and(self.select.spec().needs);
        let needs = needs.and(self.attend.spec().needs).and(self.store.spec().needs);
        let turned = if self.places == Places::Cache { needs.and(Needs::ROPE) } else { needs };
        // Accumulated attention is made of queries and keys.
        if self.accumulates() { turned.and(Needs::QK) } else { turned }
    }

    /// Whether every part claims `law`.
    #[must_use]
    pub fn claims(&self, law: Law) -> bool {
        let specs = [self.reserve.spec(), self.select.spec(), self.budget.spec()];
        // Means over heads depend on their order in the last bit, and blocks do not nest.
        self.granularity == Granularity::TokenHead
            && self.score.claims(law)
            && specs.iter().all(|spec| spec.laws.contains(&law))
    }

    /// The effective parameters of every part.
    #[must_use]
    pub fn params(&self) -> serde_json::Value {
        let mut params = self.eviction_params();
        if let Some(map) = params.as_object_mut() {
            // A stack says no more than what it does: rows from before these families existed keep their names.
            if self.attends_to_part() {
                let part =
                    serde_json::json!({ "kind": self.attend.spec().id, "params": self.attend.params() });
                map.insert("attend".to_owned(), part);
                if self.attend.takes_budget() {
                    map.insert("capacity".to_owned(), self.knobs.capacity.into());
                }
            }
            if !self.keeps_exact() {
                let part = serde_json::json!({ "kind": self.store.spec().id, "params": self.store.params() });
                map.insert("store".to_owned(), part);
            }
            if self.granularity != Granularity::TokenHead {
                map.insert("granularity".to_owned(), String::from(self.granularity).into());
            }
            if self.places == Places::Cache {
                map.insert("places".to_owned(), "cache".into());
            }
        }
        params
    }

    fn eviction_params(&self) -> serde_json::Value {
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
        self.score.is_layer_wide() || self.budget.is_layer_wide() || self.granularity.is_layer_wide()
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

    /// The word for a reason in tables: where one of the stack's policies decided, it says what it goes by.
    #[must_use]
    pub fn reason_word(&self, reason: Reason) -> &'static str {
        match reason {
            Reason::Sink => "sink",
            Reason::Reserved => self.reserve.reason(),
            Reason::Selected => self.select.reason(),
            Reason::Filled => "filled",
            Reason::Recent => "recent",
            Reason::Block => "block",
            Reason::Fits => "fits",
        }
    }

    /// What the scores of a token depend on, beside the tokens resident, the eviction and the seed.
    #[must_use]
    pub fn scorer(&self) -> &str {
        &self.scorer
    }
}
