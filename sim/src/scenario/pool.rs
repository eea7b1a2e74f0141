//! The block-cache study of a scenario after every check, and its cells.

use super::checked::value;
use super::raw::RawPool;
use super::{Scenario, ScenarioErrorKind, ServeStudy};
use crate::policy::pool::Pool;
use crate::policy::{PolicyError, RawParams, registry};
use crate::pool::{Capacity, synth};

/// Policies × capacities over one stream of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolStudy {
    /// What is asked for.
    pub stream: StreamChoice,
    /// How much the cache may hold.
    pub capacities: Vec<Capacity>,
    /// Tokens of a block, where a stream can be cut; absent for its own size, or 16.
    pub block_tokens: Option<u32>,
    /// Requests that run at the same time.
    pub in_flight: u32,
    /// The policies.
    pub policies: Vec<PoolChoice>,
}

/// Where requests come from.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamChoice {
    /// The trace: its requests, branches or prompts.
    Trace,
    /// A generator of [`synth::STREAMS`]; every seed makes a stream of its own.
    Generated {
        /// Id of the generator.
        id: String,
        /// Its parameters, an object.
        params: serde_json::Value,
    },
}

/// One policy of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolChoice {
    /// Name in tables and plots.
    pub label: String,
    id: String,
    params: RawParams,
}

impl PoolChoice {
    /// The policy.
    ///
    /// # Errors
    /// When it is not known or its parameters do not fit.
    pub fn build(&self) -> Result<Box<dyn Pool>, PolicyError> {
        (registry::find(registry::POOLS, "pool", &self.id)?.build)(&self.params)
    }
}

/// One policy under one capacity.
#[derive(Clone, Copy, Debug)]
pub struct PoolPlan<'a> {
    /// The policy.
    pub choice: &'a PoolChoice,
    /// The limit.
    pub capacity: Capacity,
    /// Seed of the stream; absent for a trace.
    pub seed: Option<u64>,
}

impl Scenario {
    /// The cells of the block-cache study: by seed of the stream, then capacity, then policy.
    #[must_use]
    pub fn pool_cells(&self) -> Vec<PoolPlan<'_>> {
        let Some(study) = &self.pool else {
            return Vec::new();
        };
        let seeds: Vec<Option<u64>> = match study.stream {
            StreamChoice::Trace => vec![None],
            StreamChoice::Generated { .. } => self.seeds.iter().copied().map(Some).collect(),
        };
        let mut cells = Vec::new();
        for seed in seeds {
            for &capacity in &study.capacities {
                cells.extend(study.policies.iter().map(|choice| PoolPlan { choice, capacity, seed }));
            }
        }
        cells
    }

    /// Whether every study of it does without a trace.
    #[must_use]
    pub fn needs_no_trace(&self) -> bool {
        let is_generated = |pool: &PoolStudy| matches!(pool.stream, StreamChoice::Generated { .. });
        let takes_times = self.serve.as_ref().is_some_and(ServeStudy::takes_times_of_trace);
        let serves_recorded = self.serve.as_ref().is_some_and(ServeStudy::is_recorded);
        let reads = self.eviction.is_some()
            || self.exit.is_some()
            || self.trees.is_some()
            || serves_recorded
            || takes_times;
        !reads && self.pool.as_ref().is_none_or(is_generated)
    }
}

pub(super) fn checked(raw: RawPool) -> Result<PoolStudy, ScenarioErrorKind> {
    let mut capacities: Vec<Capacity> = Vec::new();
    if raw.capacities.is_empty() {
        return Err(value("pool.capacities", "an empty list", "at least one capacity"));
    }
    for text in &raw.capacities {
        let capacity: Capacity = text.parse().map_err(|_| {
            let accepted = "blocks (512), bytes (1.5GiB) or a share of all distinct blocks (0.25, 25%)";
            value("pool.capacities", &format!("`{text}`"), accepted)
        })?;
        if capacities.contains(&capacity) {
            return Err(value("pool.capacities", &format!("`{text}` twice"), "each capacity once"));
        }
        capacities.push(capacity);
    }
    for (path, amount) in
        [("pool.block_tokens", raw.block_tokens.unwrap_or(1)), ("pool.in_flight", raw.in_flight)]
    {
        if !(1..=1 << 24).contains(&amount) {
            return Err(value(path, &amount.to_string(), "1 to 16777216"));
        }
    }
    let stream = match raw.stream {
        None => StreamChoice::Trace,
        Some(part) if part.kind == "trace" => StreamChoice::Trace,
        Some(part) => {
            let known: Vec<&str> =
                ["trace"].into_iter().chain(synth::STREAMS.iter().map(|stream| stream.id)).collect();
            if !known.contains(&part.kind.as_str()) {
                return Err(value("pool.stream.kind", &format!("`{}`", part.kind), &known.join(", ")));
            }
            let path = || "pool.stream".to_owned();
            let wrap = |source| ScenarioErrorKind::Policy { path: path(), source };
            let params = part.params.parse::<serde_json::Value>(&part.kind).map_err(wrap)?;
            StreamChoice::Generated { id: part.kind, params }
        }
    };
    if raw.policies.is_empty() {
        return Err(value("pool.policies", "an empty list", "at least one policy"));
    }
    let mut policies: Vec<PoolChoice> = Vec::new();
    for (at, policy) in raw.policies.into_iter().enumerate() {
        let path = format!("pool.policies[{at}]");
        let label = policy.label.unwrap_or_else(|| policy.id.clone());
        if label.trim().is_empty() || label.chars().any(char::is_control) {
            return Err(value(&format!("{path}.label"), &format!("{label:?}"), "printable text"));
        }
        if policies.iter().any(|known| known.label == label) {
            return Err(value(&format!("{path}.label"), &format!("`{label}` twice"), "each label once"));
        }
        let choice = PoolChoice { label, id: policy.id, params: policy.params };
        choice.build().map_err(|source| ScenarioErrorKind::Policy { path, source })?;
        policies.push(choice);
    }
    Ok(PoolStudy { stream, capacities, block_tokens: raw.block_tokens, in_flight: raw.in_flight, policies })
}
