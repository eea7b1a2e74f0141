//! What each event leads to. Handlers read the state and return effects; they change nothing.

use super::admission::{Admission, Verdict};
use super::clock::{INSTANT, after};
use super::error::EngineError;
use super::{BranchError, BranchTree, CostModel, Event, EventKey, Node, Pass, PassKind, Record, Request};
use crate::ledger::{BranchKey, Ledger};
use crate::types::{BranchId, Nanos, Pos, ReqId, Tokens};
use std::collections::BTreeMap;

/// Everything that changes during a run, besides the queue and the clock.
pub(super) struct State<'w> {
    pub(super) requests: BTreeMap<ReqId, &'w Request>,
    pub(super) ledger: Ledger,
    pub(super) tree: BranchTree<'w>,
    pub(super) admission: Admission,
    /// Requests that are over: refused, or released entirely.
    pub(super) settled: usize,
    pub(super) refused: Vec<ReqId>,
}

/// One change, decided by a handler and made by [`super::apply`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    Schedule {
        time: Nanos,
        event: Event,
    },
    Report(Record<'static>),
    Admit(ReqId),
    Wait(ReqId),
    Refuse(ReqId),
    Store {
        branch: BranchKey,
        pass: Pass,
    },
    Evict(BranchKey),
    Fork {
        parent: BranchKey,
        child: BranchId,
    },
    Release(BranchKey),
    /// The last branch of a request is gone.
    Settle(ReqId),
    Finish,
}

impl Effect {
    /// Whether the ledger is another one afterwards.
    pub(super) fn touches_ledger(&self) -> bool {
        matches!(
            self,
            Self::Admit(_) | Self::Store { .. } | Self::Evict(_) | Self::Fork { .. } | Self::Release(_)
        )
    }
}

/// What a handler needs besides the state.
pub(super) struct Context<'a> {
    pub(super) cost: &'a dyn CostModel,
    /// Most prompt tokens a pass; `None` = the whole prompt.
    pub(super) prefill_chunk: Option<Tokens>,
}

type Effects = Vec<Effect>;

/// Appends to `effects` what `event` leads to.
pub(super) fn decide(
    state: &State<'_>,
    context: &Context<'_>,
    key: EventKey,
    event: Event,
    effects: &mut Effects,
) -> Result<(), EngineError> {
    match event {
        Event::RequestArrived { req } => request_arrived(state, key, req, effects),
        Event::StepDue { branch } => step_due(state, context, key, branch, effects),
        Event::PassFinished { branch, pass } => pass_finished(key, branch, pass, effects),
        Event::TokensArrived { branch, pass } => tokens_arrived(state, key, branch, pass, effects),
        Event::EvictDue { branch } => {
            effects.push(Effect::Evict(branch));
            Ok(())
        }
        Event::BranchForked { parent, child } => branch_forked(key, parent, child, effects),
        Event::ReleaseDue { branch } => release_due(state, key, branch, effects),
        Event::End => {
            effects.push(Effect::Finish);
            Ok(())
        }
    }
}

fn schedule(effects: &mut Effects, time: Nanos, event: Event) {
    effects.push(Effect::Schedule { time, event });
}

fn node<'s, 'w>(state: &'s State<'w>, key: EventKey, branch: BranchKey) -> Result<&'s Node<'w>, EngineError> {
    state.tree.node(branch).map_err(|source| EngineError::Branch { key, source })
}

fn request_arrived(
    state: &State<'_>,
    key: EventKey,
    req: ReqId,
    effects: &mut Effects,
) -> Result<(), EngineError> {
    let Some(request) = state.requests.get(&req) else {
        let source = BranchError::Unknown { branch: BranchKey::root(req) };
        return Err(EngineError::Branch { key, source });
    };
    effects.push(Effect::Report(Record::Arrived { req, prompt_len: request.prompt_len, len: request.len }));
    let needed_blocks = state.admission.needed(req);
    match state.admission.judge(req) {
        Verdict::Admit => admit(key, req, effects),
        Verdict::Wait { unreserved } => {
            effects.push(Effect::Report(Record::Waiting {
                req,
                needed_blocks,
                unreserved_blocks: unreserved,
            }));
            effects.push(Effect::Wait(req));
        }
        Verdict::Refuse { capacity } => {
            effects.push(Effect::Report(Record::Refused { req, needed_blocks, capacity_blocks: capacity }));
            effects.push(Effect::Refuse(req));
            end_after_last(state, key, effects);
        }
    }
    Ok(())
}

fn admit(key: EventKey, req: ReqId, effects: &mut Effects) {
    effects.push(Effect::Admit(req));
    schedule(effects, key.time, Event::StepDue { branch: BranchKey::root(req) });
}

/// Ends the run when the request that is being settled now is the last one.
fn end_after_last(state: &State<'_>, key: EventKey, effects: &mut Effects) {
    if state.settled + 1 == state.requests.len() {
        schedule(effects, key.time, Event::End);
    }
}

fn step_due(
    state: &State<'_>,
    context: &Context<'_>,
    key: EventKey,
    branch: BranchKey,
    effects: &mut Effects,
) -> Result<(), EngineError> {
    let node = node(state, key, branch)?;
    let soon = after(key, INSTANT)?;
    let forks =
        node.request.forks.iter().filter(|fork| fork.parent == branch.branch && fork.at_seen == node.seen);
    let is_parent = forks.clone().next().is_some();
    for fork in forks {
        schedule(effects, soon, Event::BranchForked { parent: branch, child: fork.child });
    }
    if node.is_complete() {
        // A release at the time of the forks would come before them.
        let release = if is_parent { after(key, Nanos::new(2 * INSTANT.get()))? } else { soon };
        schedule(effects, release, Event::ReleaseDue { branch });
        return Ok(());
    }
    let pass = next_pass(node, context.prefill_chunk);
    let live = state.ledger.occupancy(branch).map_err(|source| EngineError::at(key, source))?.live_entries;
    let finished = after(key, context.cost.pass(&pass, live))?;
    schedule(effects, finished, Event::PassFinished { branch, pass });
    Ok(())
}

/// The next pass of a branch that is not complete. A prefill pass never runs past an eviction.
fn next_pass(node: &Node<'_>, prefill_chunk: Option<Tokens>) -> Pass {
    let first = Pos::new(node.seen);
    if node.seen >= node.request.prompt_len {
        return Pass { kind: PassKind::Decode, first, tokens: Tokens::new(1) };
    }
    let to_prompt_end = node.request.prompt_len - node.seen;
    let to_eviction = node.evictions.first().map_or(to_prompt_end, |eviction| eviction.seen - node.seen);
    let chunk = prefill_chunk.map_or(to_prompt_end, |chunk| chunk.get().max(1));
    Pass { kind: PassKind::Prefill, first, tokens: Tokens::new(to_prompt_end.min(to_eviction).min(chunk)) }
}

fn pass_finished(
    key: EventKey,
    branch: BranchKey,
    pass: Pass,
    effects: &mut Effects,
) -> Result<(), EngineError> {
    let Pass { kind, first, tokens } = pass;
    let BranchKey { req, branch: id } = branch;
    effects.push(Effect::Report(Record::PassDone { req, branch: id, kind, first, tokens }));
    schedule(effects, key.time, Event::TokensArrived { branch, pass });
    Ok(())
}

fn tokens_arrived(
    state: &State<'_>,
    key: EventKey,
    branch: BranchKey,
    pass: Pass,
    effects: &mut Effects,
) -> Result<(), EngineError> {
    let node = node(state, key, branch)?;
    if pass.first.get() != node.seen {
        let detail = format!("tokens from position {} on, {} are seen", pass.first, node.seen);
        return Err(EngineError::Invariant { rule: "tokens arrive in order of position", key, detail });
    }
    effects.push(Effect::Store { branch, pass });
    let seen = node.seen + pass.tokens.get();
    if node.evictions.first().is_some_and(|eviction| eviction.seen == seen) {
        schedule(effects, key.time, Event::EvictDue { branch });
    }
    schedule(effects, key.time, Event::StepDue { branch });
    Ok(())
}

fn branch_forked(
    key: EventKey,
    parent: BranchKey,
    child: BranchId,
    effects: &mut Effects,
) -> Result<(), EngineError> {
    effects.push(Effect::Fork { parent, child });
    schedule(effects, key.time, Event::StepDue { branch: BranchKey { req: parent.req, branch: child } });
    Ok(())
}

fn release_due(
    state: &State<'_>,
    key: EventKey,
    branch: BranchKey,
    effects: &mut Effects,
) -> Result<(), EngineError> {
    effects.push(Effect::Release(branch));
    if state.tree.of_request(branch.req).any(|other| other != branch) {
        return Ok(());
    }
    effects.push(Effect::Settle(branch.req));
    for req in state.admission.next_after(branch.req) {
        admit(key, req, effects);
    }
    end_after_last(state, key, effects);
    Ok(())
}
