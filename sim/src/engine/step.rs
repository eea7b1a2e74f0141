//! The loop: pop, decide, apply, check. It names no policy and decides nothing itself.

use super::admission::Admission;
use super::apply::Sink;
use super::clock::Clock;
use super::demand::{Demand, demands};
use super::handle::{Context, Effect, State, decide};
use super::{BranchTree, CostModel, EngineError, Event, EventKey, EventQueue, Observer, Workload};
use crate::ledger::{self, Ledger, Tracking};
use crate::types::{Nanos, ReqId, Tokens};
use std::collections::BTreeMap;

/// When the ledger's invariants are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checking {
    /// After every event that changed the ledger, and at the end.
    EachEvent,
    /// At the end.
    AtEnd,
}

/// Where a run is ended that might never end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most events; `None` = as many as the workload can cause.
    pub max_events: Option<u64>,
    /// Latest simulated time; `None` = no limit.
    pub max_time: Option<Nanos>,
}

/// How a run is carried out. Of these only `prefill_chunk` shows in results, and only in the log and its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most prompt tokens a pass; `None` = the whole prompt in one pass.
    pub prefill_chunk: Option<Tokens>,
    /// Where a run is ended that might never end.
    pub limits: Limits,
    /// Whether the ledger knows positions.
    pub tracking: Tracking,
    /// When invariants are checked.
    pub checking: Checking,
}

impl Default for Settings {
    /// Whole prompts, counts only; invariants are checked after each event in debug builds.
    fn default() -> Self {
        Self {
            prefill_chunk: None,
            limits: Limits::default(),
            tracking: Tracking::Counts,
            checking: if cfg!(debug_assertions) { Checking::EachEvent } else { Checking::AtEnd },
        }
    }
}

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Simulated time at the end.
    pub end: Nanos,
    /// Events handled.
    pub events: u64,
    /// Requests that could never fit, in the order of their refusal. The others ran to their end.
    pub refused: Vec<ReqId>,
}

/// Runs a workload to its end. Everything that happens goes to `observer`.
///
/// # Errors
/// When the workload makes no sense, a limit is reached, or an invariant is broken. A request that is larger than
/// the memory is no error: it is refused, recorded, and listed in the [`Summary`].
///
/// # Examples
/// One sequence of 8 tokens whose cache is cut to its last 2 tokens after 6 were seen:
/// ```
/// use kvlab_sim::engine::{Eviction, Request, Settings, UnitCost, Workload, run};
/// use kvlab_sim::ledger::{Kept, KeptSet};
/// use kvlab_sim::observe::{Fanout, LogDigest, Memory};
/// use kvlab_sim::types::{ModelShape, Nanos, Pos, ReqId};
///
/// let shape = ModelShape { layers: 1, q_heads: 2, kv_heads: 2, head_dim: 4, hidden: 8, vocab: 16 };
/// let kept = KeptSet::of(&[Pos::new(4), Pos::new(5)]);
/// let workload = Workload {
///     requests: vec![Request {
///         req: ReqId::new(0),
///         prompt_len: 4,
///         len: 8,
///         arrival: Nanos::ZERO,
///         evictions: vec![Eviction { seen: 6, kept: Kept::Sets(vec![kept; 2]) }],
///         forks: Vec::new(),
///     }],
///     shape,
///     block_tokens: 4,
///     bytes_per_scalar: 2,
///     capacity_blocks: None,
/// };
/// let (mut digest, mut memory) = (LogDigest::new(), Memory::new(&workload));
/// let mut observers = Fanout::new(vec![&mut digest, &mut memory]);
/// run(&workload, &Settings::default(), &UnitCost::default(), &mut observers)?;
/// let curve: Vec<_> = memory.report().curve.iter().map(|point| (point.seen, point.live_kv_tokens)).collect();
/// assert_eq!(curve, [(4, 4.0), (5, 5.0), (6, 6.0), (7, 3.0), (8, 4.0)]);
/// assert_eq!(digest.finish().len(), 16);
/// # Ok::<(), kvlab_sim::engine::EngineError>(())
/// ```
pub fn run(
    workload: &Workload,
    settings: &Settings,
    cost: &dyn CostModel,
    observer: &mut dyn Observer,
) -> Result<Summary, EngineError> {
    let demands = demands(workload, settings.tracking)?;
    let guard = Guard::new(settings.limits, &demands);
    let mut queue = first_events(workload)?;
    let mut state = State {
        requests: workload.requests.iter().map(|request| (request.req, request)).collect(),
        ledger: Ledger::new(
            &workload.shape,
            workload.block_tokens,
            workload.capacity_blocks,
            settings.tracking,
        ),
        tree: BranchTree::default(),
        admission: Admission::new(workload.capacity_blocks, demands),
        settled: 0,
        refused: Vec::new(),
    };
    let context = Context { cost, prefill_chunk: settings.prefill_chunk };
    let (mut clock, mut events, mut effects, mut last) = (Clock::default(), 0, Vec::new(), None);
    while let Some((key, event)) = queue.pop()? {
        events += 1;
        guard.check(key, events)?;
        clock.advance(key)?;
        decide(&state, &context, key, event, &mut effects)?;
        let changed = effects.iter().any(Effect::touches_ledger);
        for effect in effects.drain(..) {
            Sink { state: &mut state, queue: &mut queue, observer, key }.apply(effect)?;
        }
        if changed && settings.checking == Checking::EachEvent {
            ledger::check(&state.ledger).map_err(|source| EngineError::at(key, source))?;
        }
        last = Some((key, event));
    }
    match last {
        Some((_, Event::End)) => Ok(Summary { end: clock.now(), events, refused: state.refused }),
        _ => Err(stalled(&state, last)),
    }
}

/// All arrivals; the end, when there are none.
fn first_events(workload: &Workload) -> Result<EventQueue, EngineError> {
    let mut queue = EventQueue::new();
    for request in &workload.requests {
        queue.push(request.arrival, Event::RequestArrived { req: request.req })?;
    }
    if queue.is_empty() {
        queue.push(Nanos::ZERO, Event::End)?;
    }
    Ok(queue)
}

fn stalled(state: &State<'_>, last: Option<(EventKey, Event)>) -> EngineError {
    let key = last.map_or_else(|| EventKey::new(Nanos::ZERO, &Event::End, 0), |(key, _)| key);
    let detail = format!("{} of {} requests are over", state.settled, state.requests.len());
    EngineError::Invariant { rule: "events run out only at the end", key, detail }
}

/// Ends a run that makes no progress.
struct Guard {
    max_events: u64,
    max_time: Nanos,
}

impl Guard {
    fn new(limits: Limits, demands: &BTreeMap<ReqId, Demand>) -> Self {
        let possible = || demands.values().map(|demand| demand.events).sum::<u64>() + 1;
        Self {
            max_events: limits.max_events.unwrap_or_else(possible),
            max_time: limits.max_time.unwrap_or(Nanos::new(u64::MAX)),
        }
    }

    fn check(&self, key: EventKey, events: u64) -> Result<(), EngineError> {
        if events > self.max_events {
            return Err(EngineError::LimitReached { limit: "events", value: self.max_events, key });
        }
        if key.time > self.max_time {
            return Err(EngineError::LimitReached { limit: "time (ns)", value: self.max_time.get(), key });
        }
        Ok(())
    }
}
