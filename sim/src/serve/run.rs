//! The loop: who arrives, what the device does next, what a pass left behind.
//!
//! Two things can happen: a pass ends, or a problem arrives. At one instant passes end first, then problems arrive in their order; after each the
//! device is given its next pass if it is idle. [`super::plan`] decides, this file applies; nothing else changes state.

use super::plan::{BatchRow, Next, Sight, least_blocks, stuck};
use super::state::{Branch, Problem, Stage, Standing};
use super::workload::check;
use super::{
    Arrivals, Growth, PartialPass, PrefixMemory, ProblemDecisions, ProblemOutcome, ServeError, ServeReport,
    ServeSettings, SharedEviction,
};
use crate::cost::{BatchCost, Row, Work};
use crate::engine::{Observer, PassKind, Phase, Record, Stamp};
use crate::ledger::{self, BranchKey, Change, Kept, KeptSet, Ledger, LedgerError, Tracking};
use crate::types::{KvHead, LayerIdx, ModelShape, Nanos, Pos, ReqId, Tokens};

/// One layer with one KV head: a block holds its tokens for all layers and heads.
const UNIT: ModelShape = ModelShape { layers: 1, q_heads: 1, kv_heads: 1, head_dim: 1, hidden: 1, vocab: 1 };
/// Simulated time ends here, nanoseconds: three years. Sums of a run's times stay far from what a number holds.
const LATEST: u64 = 100_000_000_000_000_000;
/// First tokens that an eviction leaves in place.
const SINKS: usize = 4;

/// What the device is doing.
enum Pass {
    Batch(Vec<BatchRow>),
    Gates { problem: usize },
    Verify { problem: usize },
}

struct Run<'w, 'o> {
    settings: &'w ServeSettings,
    cost: &'w dyn BatchCost,
    observer: &'o mut dyn Observer,
    arrivals: Vec<Option<Nanos>>,
    problems: Vec<Problem<'w>>,
    /// Open problems, in order of arrival.
    open: Vec<usize>,
    ledger: Ledger,
    now: Nanos,
    report: ServeReport,
    /// Passes that the work can need, generously.
    most_passes: u64,
}

/// Serves `problems` to their ends. Everything that happens goes to `observer`.
///
/// # Errors
/// When decisions contradict each other, or an invariant is broken. A problem with a branch that is larger than the memory is no error: it is
/// refused, recorded and marked.
pub fn run(
    problems: &[ProblemDecisions],
    arrivals: &Arrivals,
    settings: &ServeSettings,
    cost: &dyn BatchCost,
    observer: &mut dyn Observer,
) -> Result<ServeReport, ServeError> {
    problems.iter().try_for_each(check)?;
    let (block_tokens, capacity) = (settings.scheduler.block_tokens, settings.scheduler.capacity_blocks);
    let work: u64 = problems
        .iter()
        .flat_map(|problem| &problem.branches)
        .map(|branch| u64::from(branch.prompt_tokens) + u64::from(branch.generated_tokens) + 8)
        .sum();
    if let Arrivals::Recorded { millis } = arrivals
        && millis.len() < problems.len()
    {
        return Err(ServeError::Arrivals { given: millis.len(), problems: problems.len() });
    }
    let arrivals = arrivals.times(problems.len());
    if let Some(late) = arrivals.iter().flatten().find(|time| time.get() > LATEST) {
        return Err(ServeError::TooLong { nanos: late.get(), latest: LATEST });
    }
    let mut run = Run {
        settings,
        cost,
        observer,
        arrivals,
        problems: (0_u32..).zip(problems).map(|(at, decisions)| Problem::new(at, decisions)).collect(),
        open: Vec::new(),
        ledger: Ledger::new(&UNIT, block_tokens, capacity, Tracking::Positions),
        now: Nanos::ZERO,
        report: ServeReport::default(),
        most_passes: work.saturating_mul(64).saturating_add(1024),
    };
    run.serve()?;
    run.finish()
}

impl Run<'_, '_> {
    fn serve(&mut self) -> Result<(), ServeError> {
        let mut running: Option<(Nanos, Pass)> = None;
        let mut next_arrival = 0;
        loop {
            let arrival = self.arrivals.get(next_arrival).copied().flatten();
            match (running.take(), arrival) {
                (Some((end, pass)), arrival) if arrival.is_none_or(|at| end <= at) => {
                    self.now = end;
                    self.account(&pass);
                    self.complete(pass)?;
                }
                (still, Some(at)) => {
                    running = still;
                    self.now = self.now.max(at);
                    self.arrive(next_arrival);
                    next_arrival += 1;
                }
                (still, None) => {
                    // Nothing runs and nobody comes by the clock.
                    running = still;
                    if next_arrival == self.problems.len() {
                        return Ok(());
                    }
                    self.arrivals[next_arrival] = Some(self.now);
                    continue;
                }
            }
            self.check()?;
            while running.is_none() {
                let sight = Sight {
                    problems: &self.problems,
                    open: &self.open,
                    ledger: &self.ledger,
                    settings: self.settings,
                };
                let next = sight.next().map_err(|source| self.ledger_error(source))?;
                match next {
                    Next::Nothing if self.open.is_empty() => break,
                    Next::Nothing => return Err(stuck(&self.problems, &self.ledger, self.now.get())),
                    Next::Skip { problem } => {
                        let req = self.problems[problem].branches[0].key.req;
                        self.note(Phase::Decision, &Record::VerifySkipped { req });
                        self.answer(problem)?;
                    }
                    Next::Preempt(key) => self.preempt(key)?,
                    next => running = self.launch(next)?,
                }
                self.check()?;
            }
        }
    }

    fn finish(mut self) -> Result<ServeReport, ServeError> {
        ledger::check(&self.ledger).map_err(|source| self.ledger_error(source))?;
        if self.ledger.pool().held() != 0 || !self.open.is_empty() {
            return Err(stuck(&self.problems, &self.ledger, self.now.get()));
        }
        let refused = self.problems.iter().filter(|problem| problem.is_refused).count();
        let allocated_blocks = self.ledger.pool().allocated();
        let refused = u32::try_from(refused).unwrap_or(u32::MAX);
        self.note(Phase::End, &Record::Ended { refused, allocated_blocks });
        let problems = self.problems.iter().map(|problem| ProblemOutcome {
            item: problem.decisions.item.clone(),
            arrival: problem.arrival,
            end: problem.end,
            generated_tokens: problem.branches.iter().map(|branch| u64::from(branch.generated)).sum(),
            computed_tokens: problem.computed,
            prefill_tokens: problem.prefilled,
            gate_token_layers: problem.gate_token_layers,
            verify_token_layers: problem.verify_token_layers,
            recomputed_tokens: problem.recomputed,
            reused_tokens: problem.reused,
            phases: problem.phases,
            is_verified: problem.is_verified,
            is_refused: problem.is_refused,
        });
        Ok(ServeReport { problems: problems.collect(), end: self.now, allocated_blocks, ..self.report })
    }

    fn arrive(&mut self, at: usize) {
        let needed = least_blocks(&self.problems[at], self.settings);
        let problem = &mut self.problems[at];
        (problem.arrival, problem.end, problem.accounted) = (self.now, self.now, self.now);
        let (req, root) = (problem.branches[0].key.req, problem.branches[0].prompt);
        let len = problem.branches.iter().map(|branch| branch.prompt + branch.target).max().unwrap_or(0);
        let capacity = self.settings.scheduler.capacity_blocks;
        let refused = capacity.filter(|&blocks| needed > u64::from(blocks));
        problem.standing = if refused.is_some() { Standing::Over } else { Standing::Open };
        problem.is_refused = refused.is_some();
        self.note(Phase::Arrival, &Record::Arrived { req, prompt_len: root, len });
        match refused {
            Some(capacity_blocks) => {
                let record = Record::Refused { req, needed_blocks: needed, capacity_blocks };
                self.note(Phase::Arrival, &record);
            }
            None => self.open.push(at),
        }
    }

    /// Begins a pass: blocks are taken now, results are there when it ends.
    fn launch(&mut self, next: Next) -> Result<Option<(Nanos, Pass)>, ServeError> {
        let all = self.cost.layers().unwrap_or(u16::MAX);
        let (work, pass) = match next {
            Next::Batch(rows) => {
                let mut work = Work { layers: all, head_products: 1, ..Work::default() };
                for row in &rows {
                    self.begin_row(row, &mut work)?;
                }
                (work, Pass::Batch(rows))
            }
            Next::Gates { problem, passes } => {
                let passes: Vec<PartialPass> = passes.into_iter().map(|(_, pass)| pass).collect();
                self.problems[problem].gate_token_layers += PartialPass::token_layers(&passes, all);
                (PartialPass::together(&passes, all), Pass::Gates { problem })
            }
            Next::Verify { problem, passes } => {
                let work = PartialPass::together(&passes, all);
                self.problems[problem].verify_token_layers += PartialPass::token_layers(&passes, all);
                let branches = u32::try_from(passes.len()).unwrap_or(u32::MAX);
                let (req, layers) = (self.problems[problem].branches[0].key.req, work.layers);
                self.note(Phase::Scheduling, &Record::Verifying { req, branches, layers });
                (work, Pass::Verify { problem })
            }
            _ => return Ok(None),
        };
        self.report.passes += 1;
        if self.report.passes > self.most_passes {
            return Err(ServeError::Endless { passes: self.report.passes, nanos: self.now.get() });
        }
        let duration = self.cost.duration(&work);
        let until = self.now.get().saturating_add(duration.get().max(1));
        if until > LATEST {
            return Err(ServeError::TooLong { nanos: until, latest: LATEST });
        }
        let until = Nanos::new(until);
        self.report.busy += duration;
        let rows = u32::try_from(work.rows.len()).unwrap_or(u32::MAX);
        self.note(Phase::Scheduling, &Record::Batched { rows, tokens: work.new_tokens(), until });
        Ok(Some((until, pass)))
    }

    fn begin_row(&mut self, row: &BatchRow, work: &mut Work) -> Result<(), ServeError> {
        let key = row.key;
        if row.begins {
            self.begin_branch(key, work)?;
        }
        let live = self.live(key);
        let branch = self.branch(key);
        let is_decode = branch.stage == Stage::Decode;
        let ends_prefill = branch.seen + row.tokens == branch.wanted() && branch.target > 0;
        work.rows.push(Row { new_tokens: row.tokens, context_tokens: live });
        work.heads += u32::from(is_decode || ends_prefill);
        if is_decode && self.settings.growth == Growth::Concatenated {
            work.copied_tokens += u64::from(live);
        }
        let change = self.ledger.append(key, row.tokens).map_err(|source| self.ledger_error(source))?;
        self.note_change(key, change);
        Ok(())
    }

    /// A branch begins, or begins again, with what its parent still has for it.
    fn begin_branch(&mut self, key: BranchKey, work: &mut Work) -> Result<(), ServeError> {
        let problem = &self.problems[key.req.idx()];
        let branch = *problem.branch(key);
        let sight = Sight {
            problems: &self.problems,
            open: &self.open,
            ledger: &self.ledger,
            settings: self.settings,
        };
        let taken = sight.takes_over(problem, &branch);
        let mut slots = 0;
        if taken == 0 {
            self.ledger.open(key).map_err(|source| self.ledger_error(source))?;
        } else if let Some(parent) = branch.parent {
            slots = self.take_over(parent, key, taken, work)?;
            self.note(
                Phase::Structure,
                &Record::Forked {
                    req: key.req,
                    branch: key.branch,
                    parent: parent.branch,
                    seen: Tokens::new(taken),
                },
            );
        }
        let problem = &mut self.problems[key.req.idx()];
        problem.reused += u64::from(taken);
        let branch = &mut problem.branches[key.branch.idx()];
        branch.stage = Stage::Prefill;
        branch.seen = taken;
        branch.shared_slots = slots;
        // What the parent had computed and gave up is computed again.
        branch.seen_before = branch.seen_before.max(if taken == 0 { branch.reused } else { 0 });
        Ok(())
    }

    /// Gives `child` the tokens of `parent` below `taken`; how many are resident.
    fn take_over(
        &mut self,
        parent: BranchKey,
        child: BranchKey,
        taken: u32,
        work: &mut Work,
    ) -> Result<u32, ServeError> {
        let kept = self.positions(parent).iter().filter(|pos| pos.get() < taken).count();
        let slots = u32::try_from(kept).unwrap_or(u32::MAX);
        let changes = match self.settings.prefix {
            PrefixMemory::Shared => {
                let forked = self.ledger.fork(parent, child).map_err(|source| self.ledger_error(source))?;
                self.note_change(child, forked);
                // What the parent computed behind is its own.
                self.ledger.rewind(child, taken).map_err(|source| self.ledger_error(source))?
            }
            PrefixMemory::Replicated => {
                self.ledger.open(child).map_err(|source| self.ledger_error(source))?;
                work.copied_tokens += u64::from(slots);
                self.ledger.append(child, slots).map_err(|source| self.ledger_error(source))?
            }
        };
        self.note_change(child, changes);
        Ok(slots)
    }

    /// Books the time since the last pass to the phase that each open problem was in.
    fn account(&mut self, pass: &Pass) {
        for at in self.open.clone() {
            let problem = &mut self.problems[at];
            let elapsed = Nanos::new(self.now.get() - problem.accounted.get());
            problem.accounted = self.now;
            let phases = &mut problem.phases;
            let phase = match pass {
                Pass::Gates { problem: of } if *of == at => &mut phases.gate,
                Pass::Verify { problem: of } if *of == at => &mut phases.verify,
                Pass::Gates { .. } | Pass::Verify { .. } => &mut phases.waiting,
                Pass::Batch(rows) => {
                    let branches = &problem.branches;
                    let mut of_problem = rows.iter().filter(|row| row.key.req.idx() == at).peekable();
                    let generates = |row: &&BatchRow| branches[row.key.branch.idx()].stage == Stage::Decode;
                    if of_problem.peek().is_none() {
                        &mut phases.waiting
                    } else if of_problem.all(|row| generates(&row)) {
                        &mut phases.decode
                    } else {
                        &mut phases.prefill
                    }
                }
            };
            *phase += elapsed;
        }
    }

    fn complete(&mut self, pass: Pass) -> Result<(), ServeError> {
        match pass {
            Pass::Batch(rows) => rows.iter().try_for_each(|row| self.complete_row(row)),
            Pass::Gates { problem } => {
                let problem = &mut self.problems[problem];
                let ready: Vec<bool> = problem
                    .branches
                    .iter()
                    .map(|branch| branch.gate_is_due && problem.is_ready(branch))
                    .collect();
                for (branch, was_ready) in problem.branches.iter_mut().zip(ready) {
                    branch.gate_is_due &= !was_ready;
                }
                Ok(())
            }
            Pass::Verify { problem } => {
                self.problems[problem].is_verified = true;
                self.answer(problem)
            }
        }
    }

    fn complete_row(&mut self, row: &BatchRow) -> Result<(), ServeError> {
        let key = row.key;
        let problem = &mut self.problems[key.req.idx()];
        let branch = &mut problem.branches[key.branch.idx()];
        if matches!(branch.stage, Stage::Waiting | Stage::Closed) {
            // It lost its blocks to another row of the same pass: what it computed is lost.
            problem.recomputed += u64::from(row.tokens);
            return Ok(());
        }
        let first = branch.seen;
        let kind = if branch.stage == Stage::Decode { PassKind::Decode } else { PassKind::Prefill };
        branch.seen += row.tokens;
        let again = branch.seen_before.min(branch.seen).saturating_sub(first);
        branch.seen_before = branch.seen_before.max(branch.seen);
        problem.recomputed += u64::from(again);
        problem.computed += u64::from(row.tokens - again);
        if kind == PassKind::Prefill {
            problem.prefilled += u64::from(row.tokens - again);
        }
        if branch.seen == branch.wanted() {
            // The last position's logits give the next token; after a preemption it is known already.
            branch.generated = branch.generated.max(1).min(branch.target);
            branch.stage = Stage::Decode;
        } else if kind == PassKind::Decode {
            branch.generated += 1;
        }
        if branch.stage == Stage::Decode && branch.generated >= branch.target {
            branch.stage = Stage::Complete;
        }
        let (seen, is_complete, is_root) =
            (branch.seen, branch.stage == Stage::Complete, branch.parent.is_none());
        let (req, id) = (key.req, key.branch);
        let tokens = Tokens::new(row.tokens);
        self.note(
            Phase::Completion,
            &Record::PassDone { req, branch: id, kind, first: Pos::new(first), tokens },
        );
        let held = self.ledger.occupancy(key).map_err(|source| self.ledger_error(source))?;
        let (live_entries, blocks) = (held.live_entries, held.blocks);
        self.note(
            Phase::Arrival,
            &Record::Stored { req, branch: id, kind, seen: Tokens::new(seen), live_entries, blocks },
        );
        if is_complete && is_root {
            self.compress_prefix(key)?;
        } else if !is_complete && kind == PassKind::Decode {
            self.evict(key)?;
        }
        if is_complete {
            self.close_finished(key.req)?;
        }
        Ok(())
    }

    /// A prefix that would fill every branch's budget is cut to half of it, once.
    fn compress_prefix(&mut self, root: BranchKey) -> Result<(), ServeError> {
        let Some(cut) = self.settings.eviction.filter(|cut| cut.shared == SharedEviction::ReadOnlyPrefix)
        else {
            return Ok(());
        };
        let positions = self.positions(root);
        if positions.len() < cut.budget as usize {
            return Ok(());
        }
        self.cut(root, &recent(&positions, SINKS, cut.budget as usize / 2))
    }

    /// Evicts when it is due.
    fn evict(&mut self, key: BranchKey) -> Result<(), ServeError> {
        let Some(cut) = self.settings.eviction else { return Ok(()) };
        let live = self.live(key);
        if live <= cut.budget || !live.is_multiple_of(cut.period.max(1)) {
            return Ok(());
        }
        let positions = self.positions(key);
        let fixed = match cut.shared {
            // The most recent tokens stay in any case, even where a parent's part alone would fill the budget.
            SharedEviction::ReadOnlyPrefix => {
                self.branch(key).shared_slots.min(cut.budget.saturating_sub(cut.period)) as usize
            }
            SharedEviction::CopyOnEvict => SINKS,
        };
        self.cut(key, &recent(&positions, fixed, cut.budget as usize))
    }

    /// Keeps these positions; makes room first when blocks that others read must be copied.
    fn cut(&mut self, key: BranchKey, kept: &[Pos]) -> Result<(), ServeError> {
        let lists = Kept::Positions(vec![kept.to_vec()]);
        let change = loop {
            match self.ledger.keep_only(key, &lists) {
                Ok(change) => break change,
                Err(LedgerError::OutOfBlocks { .. }) => {
                    let sight = Sight {
                        problems: &self.problems,
                        open: &self.open,
                        ledger: &self.ledger,
                        settings: self.settings,
                    };
                    let Next::Preempt(victim) = sight.preempt(key) else {
                        return Err(stuck(&self.problems, &self.ledger, self.now.get()));
                    };
                    self.preempt(victim)?;
                    if victim == key {
                        return Ok(());
                    }
                }
                Err(source) => return Err(self.ledger_error(source)),
            }
        };
        self.report.evictions += 1;
        self.note_change(key, change);
        let held = self.ledger.occupancy(key).map_err(|source| self.ledger_error(source))?;
        let (seen, sets) = (Tokens::new(self.branch(key).seen), [KeptSet::of(kept)]);
        self.note(
            Phase::Decision,
            &Record::Evicted {
                req: key.req,
                branch: key.branch,
                seen,
                live_entries: held.live_entries,
                blocks: held.blocks,
                kept: &sets,
            },
        );
        Ok(())
    }

    /// Takes the blocks of a branch away. One that was complete only loses what it kept for others.
    fn preempt(&mut self, key: BranchKey) -> Result<(), ServeError> {
        let tokens = Tokens::new(self.live(key));
        self.note(Phase::Decision, &Record::Preempted { req: key.req, branch: key.branch, tokens });
        let change = self.ledger.close(key).map_err(|source| self.ledger_error(source))?;
        self.note_change(key, change);
        self.report.preemptions += 1;
        let branch = &mut self.problems[key.req.idx()].branches[key.branch.idx()];
        branch.stage = if branch.stage == Stage::Complete { Stage::Closed } else { Stage::Waiting };
        branch.seen = 0;
        branch.shared_slots = 0;
        Ok(())
    }

    /// Closes the complete branches of a problem that nobody will take anything over from.
    fn close_finished(&mut self, req: ReqId) -> Result<(), ServeError> {
        loop {
            let problem = &self.problems[req.idx()];
            let is_done = |branch: &&Branch| {
                let needs = |child: &Branch| child.parent == Some(branch.key) && problem.holds_parent(child);
                branch.stage == Stage::Complete && !problem.branches.iter().any(needs)
            };
            let Some(key) = problem.branches.iter().find(is_done).map(|branch| branch.key) else {
                return Ok(());
            };
            self.problems[req.idx()].branches[key.branch.idx()].stage = Stage::Closed;
            if self.ledger.seen(key).is_ok() {
                let change = self.ledger.close(key).map_err(|source| self.ledger_error(source))?;
                self.note_change(key, change);
                self.note(Phase::Release, &Record::Released { req, branch: key.branch });
            }
        }
    }

    /// The problem is answered.
    fn answer(&mut self, at: usize) -> Result<(), ServeError> {
        let req = self.problems[at].branches[0].key.req;
        self.close_finished(req)?;
        let problem = &mut self.problems[at];
        problem.standing = Standing::Over;
        problem.end = self.now;
        let winner = problem.decisions.winner.map_or(0, |branch| branch + 1);
        let branch = problem.branches[winner as usize].key.branch;
        self.open.retain(|&other| other != at);
        self.note(Phase::Decision, &Record::Selected { req, branch });
        Ok(())
    }

    fn branch(&self, key: BranchKey) -> &Branch {
        self.problems[key.req.idx()].branch(key)
    }

    fn live(&self, key: BranchKey) -> u32 {
        self.ledger.live(key, LayerIdx::new(0), KvHead::new(0))
    }

    fn positions(&self, key: BranchKey) -> Vec<Pos> {
        self.ledger.positions(key, LayerIdx::new(0), KvHead::new(0)).to_vec()
    }

    fn check(&self) -> Result<(), ServeError> {
        if self.settings.checks_each_event {
            ledger::check(&self.ledger).map_err(|source| self.ledger_error(source))?;
        }
        Ok(())
    }

    fn ledger_error(&self, source: LedgerError) -> ServeError {
        ServeError::Ledger { nanos: self.now.get(), source }
    }

    fn note(&mut self, phase: Phase, record: &Record<'_>) {
        self.observer.note(Stamp { time: self.now, phase }, record);
    }

    fn note_change(&mut self, BranchKey { req, branch }: BranchKey, change: Change) {
        let Change { allocated, copied, shared, freed } = change;
        self.report.copied_blocks += copied;
        self.report.peak_blocks = self.report.peak_blocks.max(self.ledger.pool().held());
        for (blocks, record) in [
            (allocated, Record::Allocated { req, branch, blocks: allocated }),
            (copied, Record::Copied { req, branch, blocks: copied }),
            (shared, Record::Shared { req, branch, blocks: shared }),
            (freed, Record::Freed { req, branch, blocks: freed }),
        ] {
            if blocks > 0 {
                self.note(Phase::Arrival, &record);
            }
        }
    }
}

/// The first `fixed` positions and the last ones, `budget` in all. Which tokens stay does not matter for time and memory.
fn recent(positions: &[Pos], fixed: usize, budget: usize) -> Vec<Pos> {
    let fixed = fixed.min(budget).min(positions.len());
    let rest = (budget - fixed).min(positions.len() - fixed);
    positions[..fixed].iter().chain(&positions[positions.len() - rest..]).copied().collect()
}
