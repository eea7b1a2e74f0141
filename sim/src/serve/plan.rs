//! What the device does next. Everything here reads the state and decides; [`super::run()`] applies.

use super::state::{Branch, Problem, Stage, Standing};
use super::{PartialPass, PrefixMemory, ServeError, ServeSettings};
use crate::ledger::{BranchKey, Ledger, LedgerError};
use crate::types::{KvHead, LayerIdx};

/// One sequence of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchRow {
    pub(super) key: BranchKey,
    pub(super) tokens: u32,
    /// Whether it takes over its parent's blocks first.
    pub(super) begins: bool,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Prefill chunks and decode steps in one pass.
    Batch(Vec<BatchRow>),
    /// The gates of a problem's branches.
    Gates { problem: usize, passes: Vec<(BranchKey, PartialPass)> },
    /// The verifier on a problem's branches.
    Verify { problem: usize, passes: Vec<PartialPass> },
    /// A problem is answered without the verifier.
    Skip { problem: usize },
    /// A branch loses its blocks.
    Preempt(BranchKey),
    /// Nothing can be done before somebody arrives.
    Nothing,
}

/// The state that decisions look at.
pub(super) struct Sight<'a, 'w> {
    pub(super) problems: &'a [Problem<'w>],
    /// Problems that are open, in order of arrival.
    pub(super) open: &'a [usize],
    pub(super) ledger: &'a Ledger,
    pub(super) settings: &'a ServeSettings,
}

impl Sight<'_, '_> {
    /// Gates and verifiers of the oldest problem first, then a batch of all that can go on.
    pub(super) fn next(&self) -> Result<Next, LedgerError> {
        for &at in self.open {
            let problem = &self.problems[at];
            let passes: Vec<_> = (problem.branches.iter())
                .filter(|branch| branch.gate_is_due && problem.is_ready(branch))
                .filter_map(|branch| {
                    let decided = problem.decisions.branches.get(branch.key.branch.idx().checked_sub(1)?)?;
                    Some((branch.key, decided.gate?))
                })
                .collect();
            if !passes.is_empty() {
                return Ok(Next::Gates { problem: at, passes });
            }
            if problem.is_generated() {
                let passes: Vec<PartialPass> =
                    problem.decisions.branches.iter().filter_map(|branch| branch.verify).collect();
                return Ok(if passes.is_empty() {
                    Next::Skip { problem: at }
                } else {
                    Next::Verify { problem: at, passes }
                });
            }
        }
        self.batch()
    }

    fn active(&self) -> impl Iterator<Item = (&Problem<'_>, &Branch)> {
        self.open.iter().flat_map(|&at| {
            let problem = &self.problems[at];
            problem.branches.iter().map(move |branch| (problem, branch))
        })
    }

    fn batch(&self) -> Result<Next, LedgerError> {
        let scheduler = &self.settings.scheduler;
        let mut free = self.ledger.pool().free_blocks();
        let mut tokens_left = scheduler.batch_tokens.unwrap_or(u32::MAX);
        let rows_most = scheduler.batch_rows.map_or(usize::MAX, |rows| rows.max(1) as usize);
        let mut rows: Vec<BatchRow> = Vec::new();
        // Those that generate come first, the oldest before the others.
        for (_, branch) in self.active().filter(|(_, branch)| branch.stage == Stage::Decode) {
            if rows.len() >= rows_most || tokens_left == 0 {
                break;
            }
            let needed = self.ledger.growth(branch.key, 1)?;
            if needed > free {
                return Ok(self.preempt(branch.key));
            }
            free -= needed;
            tokens_left -= 1;
            rows.push(BatchRow { key: branch.key, tokens: 1, begins: false });
        }
        let waiting =
            self.active().filter(|(_, branch)| matches!(branch.stage, Stage::Waiting | Stage::Prefill));
        for (problem, branch) in waiting {
            if rows.len() >= rows_most || tokens_left == 0 {
                break;
            }
            if !problem.is_ready(branch) || branch.gate_is_due {
                continue;
            }
            let (row, needed) = self.prefill(problem, branch, tokens_left)?;
            if needed > free {
                // The oldest one must go on, or nobody would; the others wait for blocks.
                if rows.is_empty() {
                    return Ok(self.preempt(branch.key));
                }
                break;
            }
            free -= needed;
            tokens_left -= row.tokens;
            rows.push(row);
        }
        Ok(if rows.is_empty() { Next::Nothing } else { Next::Batch(rows) })
    }

    /// The next chunk of a branch, and the blocks that it takes at most.
    fn prefill(
        &self,
        problem: &Problem<'_>,
        branch: &Branch,
        tokens_left: u32,
    ) -> Result<(BatchRow, u64), LedgerError> {
        let begins = branch.stage == Stage::Waiting;
        let taken = if begins { self.takes_over(problem, branch) } else { 0 };
        let start = if begins { taken } else { branch.seen };
        let chunk = self.settings.scheduler.prefill_chunk.unwrap_or(u32::MAX).max(1);
        let tokens = (branch.wanted() - start).min(chunk).min(tokens_left);
        let slots = if taken == 0 { 0 } else { self.resident_below(branch.parent, taken) };
        let size = u64::from(self.settings.scheduler.block_tokens.max(1));
        let blocks = |tokens: u32| u64::from(tokens).div_ceil(size);
        let needed = if !begins {
            self.ledger.growth(branch.key, tokens)?
        } else if self.settings.prefix == PrefixMemory::Replicated {
            blocks(slots + tokens)
        } else {
            // Full blocks are read by both; a last one that has room is copied.
            blocks(slots + tokens) - u64::from(slots) / size
        };
        Ok((BatchRow { key: branch.key, tokens, begins }, needed))
    }

    /// Tokens that a branch that begins now finds with its parent: all that were decided, or none when the parent is gone.
    pub(super) fn takes_over(&self, problem: &Problem<'_>, branch: &Branch) -> u32 {
        let Some(parent) = branch.parent.filter(|_| branch.reused > 0) else { return 0 };
        if self.ledger.seen(parent).is_err() {
            return 0;
        }
        branch.reused.min(problem.branch(parent).seen)
    }

    /// Tokens of `parent` below position `taken` that were not evicted.
    fn resident_below(&self, parent: Option<BranchKey>, taken: u32) -> u32 {
        let positions =
            parent.map_or(&[][..], |key| self.ledger.positions(key, LayerIdx::new(0), KvHead::new(0)));
        let count = positions.iter().filter(|pos| pos.get() < taken).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Who gives up its blocks so that `key` can go on: the youngest of those behind it; else the youngest that only keeps blocks for
    /// others; else `key` itself, because all others are older and go on.
    pub(super) fn preempt(&self, key: BranchKey) -> Next {
        let rank = |key: BranchKey| {
            let age = self.open.iter().position(|&at| self.problems[at].branches[0].key.req == key.req);
            (age, key.branch)
        };
        let holders = || self.ledger.branches().filter(|&other| other != key);
        let behind = holders().filter(|&other| rank(other) > rank(key)).max_by_key(|&other| rank(other));
        let idle = || {
            let is_idle = |other: &BranchKey| {
                let problem = self.problems.get(other.req.idx());
                problem.is_some_and(|problem| problem.branch(*other).stage == Stage::Complete)
            };
            holders().filter(is_idle).max_by_key(|&other| rank(other))
        };
        Next::Preempt(behind.or_else(idle).unwrap_or(key))
    }
}

/// Blocks that a problem needs at least, with its branches one after the other and nothing shared.
pub(super) fn least_blocks(problem: &Problem<'_>, settings: &ServeSettings) -> u64 {
    let size = u64::from(settings.scheduler.block_tokens.max(1));
    // With eviction too: after a preemption, all that was generated is computed again before anything goes.
    let alone = |branch: &Branch| u64::from(branch.prompt.saturating_add(branch.target)).div_ceil(size);
    problem.branches.iter().map(alone).max().unwrap_or(0)
}

/// Why nothing goes on.
pub(super) fn stuck(problems: &[Problem<'_>], ledger: &Ledger, nanos: u64) -> ServeError {
    ServeError::Stuck {
        nanos,
        open: problems.iter().filter(|problem| problem.standing == Standing::Open).count(),
        held: ledger.pool().held(),
        capacity: ledger.pool().capacity().map_or("unlimited".to_owned(), |blocks| blocks.to_string()),
    }
}
