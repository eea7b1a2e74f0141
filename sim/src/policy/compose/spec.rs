//! A stack as data: which policies, with which parameters, under which budget.

use super::{Granularity, Stack};
use crate::policy::{ParamDoc, PolicyError, PolicySpec, RawParams};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The amounts that every stack of a study shares unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// C: tokens resident per layer and KV head right after an eviction. C = K + B.
    pub capacity: u32,
    /// B (= R): most recent tokens, always kept.
    pub recent: u32,
    /// First tokens of the sequence, always kept, inside K.
    pub sinks: u32,
    /// Eviction period in tokens.
    pub period: u32,
    /// W: recent queries that attention scorers look at.
    pub window: u32,
}

/// One policy of a stack: its id and parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Id in the family's registry.
    pub kind: String,
    /// Its parameters.
    pub params: RawParams,
}

impl Part {
    /// A policy with its default parameters.
    #[must_use]
    pub fn plain(kind: &str) -> Self {
        Self { kind: kind.to_owned(), params: RawParams::default() }
    }

    /// A policy with parameters given in code.
    ///
    /// # Errors
    /// When the parameters cannot be represented.
    pub fn with<P: Serialize>(kind: &str, params: &P) -> Result<Self, PolicyError> {
        Ok(Self { kind: kind.to_owned(), params: RawParams::from_params(params)? })
    }
}

/// The order of kept tokens in the compacted cache. It matters to policies that pool over slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KeepOrder {
    /// Sinks, reserved tokens, then the selector's order, as VaSE's final code has it.
    #[default]
    Selector,
    /// By original position.
    Position,
}

/// When a composition evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// In periods of the study, as VaSE drives its rivals.
    #[default]
    Periodic,
    /// Whenever the budget is exceeded: after the prompt, then one token a step.
    PerStep,
    /// Once, after the prompt.
    Prefill,
}

/// Everything that decides what a cache holds and what is read of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StackSpec {
    /// Name in tables and plots.
    pub label: String,
    /// Amounts.
    pub knobs: Knobs,
    /// What a token is worth.
    pub score: Part,
    /// What is kept before scores are looked at.
    pub reserve: Part,
    /// Which tokens are kept, given their worth.
    pub select: Part,
    /// How the budget is shared out.
    pub budget: Part,
    /// When an eviction is due.
    pub schedule: Part,
    /// Order of the kept tokens.
    pub order: KeepOrder,
    /// Which resident tokens a query attends to.
    pub attend: Part,
    /// In which representation tokens are stored.
    pub store: Part,
    /// Which position a key is rotated at.
    pub places: Places,
    /// What is kept or evicted as one.
    pub granularity: Granularity,
}

/// Which position a resident key is rotated at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Places {
    /// The one at which its token stood in the text.
    #[default]
    Original,
    /// Its place in the cache in time order, and the query's is the last: StreamingLLM's re-rotation.
    Cache,
}

impl StackSpec {
    /// A stack that evicts in periods of `knobs.period`, keeps the highest scores and reserves nothing.
    ///
    /// # Errors
    /// Never in practice; see [`Part::with`].
    pub fn periodic(label: &str, knobs: Knobs, score: Part) -> Result<Self, PolicyError> {
        Ok(Self {
            label: label.to_owned(),
            knobs,
            score,
            reserve: Part::plain("none"),
            select: Part::plain("top-k"),
            budget: Part::plain("uniform"),
            schedule: Part::with(
                "every-n",
                &crate::policy::schedule::every_n::Params { period: knobs.period },
            )?,
            order: KeepOrder::Selector,
            attend: Part::plain("full"),
            store: Part::plain("exact"),
            places: Places::Original,
            granularity: Granularity::TokenHead,
        })
    }
}

impl StackSpec {
    /// A stack that evicts nothing.
    ///
    /// # Errors
    /// Never in practice; see [`Part::with`].
    pub fn keeping_all(label: &str, knobs: Knobs) -> Result<Self, PolicyError> {
        Ok(Self { schedule: Part::plain("never"), ..Self::periodic(label, knobs, Part::plain("recency"))? })
    }

    /// The same stack under another driver.
    #[must_use]
    pub fn driven(self, driver: Driver) -> Self {
        let schedule = match driver {
            Driver::Periodic => return self,
            Driver::PerStep => Part::plain("on-overflow"),
            Driver::Prefill => Part::plain("end-of-prefill"),
        };
        Self { schedule, ..self }
    }
}

impl Knobs {
    /// With so many sinks, or the study's.
    #[must_use]
    pub fn with_sinks(self, sinks: Option<u32>) -> Self {
        Self { sinks: sinks.unwrap_or(self.sinks), ..self }
    }
}

/// A registry line of a composition.
#[derive(Debug)]
pub struct CompositionEntry {
    /// Identity and capabilities.
    pub spec: &'static PolicySpec,
    /// Builds the stack from the study's amounts and the composition's own parameters.
    pub build: fn(&Knobs, &RawParams) -> Result<StackSpec, PolicyError>,
    /// The composition's own parameters with their defaults.
    pub defaults: fn() -> serde_json::Value,
    /// What each parameter means.
    pub docs: &'static [ParamDoc],
}

impl CompositionEntry {
    /// The checked stack.
    ///
    /// # Errors
    /// When parameters or amounts do not fit.
    pub fn stack(&self, knobs: &Knobs, params: &RawParams) -> Result<Stack, PolicyError> {
        Stack::checked((self.build)(knobs, params)?)
    }
}
