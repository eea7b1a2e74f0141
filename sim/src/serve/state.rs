//! What changes during a run: how far each branch is, and which blocks it holds.

use super::{BranchDecisions, Follows, PhaseTimes, ProblemDecisions};
use crate::ledger::BranchKey;
use crate::types::{BranchId, Nanos, ReqId};

/// How far a branch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It holds nothing: it has not begun, or was pushed out.
    Waiting,
    /// Its prompt is being computed, or computed again with all it had generated.
    Prefill,
    /// It generates.
    Decode,
    /// All is generated.
    Complete,
    /// It holds nothing any more.
    Closed,
}

/// A branch, or the root of a problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Branch {
    pub(super) key: BranchKey,
    /// The branch it grows from; nothing for a root.
    pub(super) parent: Option<BranchKey>,
    pub(super) follows: Follows,
    pub(super) stage: Stage,
    /// Tokens taken over from the parent.
    pub(super) reused: u32,
    pub(super) prompt: u32,
    pub(super) target: u32,
    /// Tokens generated so far. The last one is not resident.
    pub(super) generated: u32,
    /// Tokens that are resident or were evicted: the length of the text computed so far.
    pub(super) seen: u32,
    /// The largest `seen` that it ever had: what lies below was computed before.
    pub(super) seen_before: u32,
    /// Slots at the front that were taken over.
    pub(super) shared_slots: u32,
    pub(super) gate_is_due: bool,
}

impl Branch {
    fn new(key: BranchKey, parent: Option<BranchKey>) -> Self {
        Self {
            key,
            parent,
            follows: Follows::Text,
            stage: Stage::Waiting,
            reused: 0,
            prompt: 0,
            target: 0,
            generated: 0,
            seen: 0,
            seen_before: 0,
            shared_slots: 0,
            gate_is_due: false,
        }
    }

    /// Tokens that must be there before the next one can be generated.
    pub(super) fn wanted(&self) -> u32 {
        self.prompt + self.generated.saturating_sub(1)
    }
}

/// Where a problem stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has not arrived.
    Expected,
    /// It runs.
    Open,
    /// It was refused, or is answered.
    Over,
}

/// A problem on its way.
#[derive(Clone, Debug)]
pub(super) struct Problem<'w> {
    pub(super) decisions: &'w ProblemDecisions,
    pub(super) standing: Standing,
    pub(super) arrival: Nanos,
    pub(super) end: Nanos,
    pub(super) phases: PhaseTimes,
    /// The phases account for the time up to here.
    pub(super) accounted: Nanos,
    pub(super) is_verified: bool,
    pub(super) is_refused: bool,
    /// The root, then the branches.
    pub(super) branches: Vec<Branch>,
    pub(super) computed: u64,
    /// Of those, tokens of prompts.
    pub(super) prefilled: u64,
    pub(super) gate_token_layers: u64,
    pub(super) verify_token_layers: u64,
    pub(super) recomputed: u64,
    pub(super) reused: u64,
}

impl<'w> Problem<'w> {
    pub(super) fn new(at: u32, decisions: &'w ProblemDecisions) -> Self {
        let key = |branch: u32| BranchKey { req: ReqId::new(at), branch: BranchId::new(branch) };
        let shares =
            decisions.branches.iter().any(|branch| branch.parent.is_none() && branch.reused_tokens > 0);
        let mut root = Branch::new(key(0), None);
        root.prompt = if shares || decisions.needs_root { decisions.root_tokens } else { 0 };
        if root.prompt == 0 {
            root.stage = Stage::Complete;
        }
        let mut branches = vec![root];
        for (index, branch) in (1_u32..).zip(&decisions.branches) {
            let BranchDecisions {
                parent, follows, prompt_tokens, reused_tokens, gate, generated_tokens, ..
            } = *branch;
            branches.push(Branch {
                follows,
                reused: reused_tokens,
                prompt: prompt_tokens,
                target: generated_tokens,
                gate_is_due: gate.is_some(),
                ..Branch::new(key(index), Some(key(parent.map_or(0, |parent| parent + 1))))
            });
        }
        Self {
            decisions,
            standing: Standing::Expected,
            arrival: Nanos::ZERO,
            end: Nanos::ZERO,
            phases: PhaseTimes::default(),
            accounted: Nanos::ZERO,
            is_verified: false,
            is_refused: false,
            branches,
            computed: 0,
            prefilled: 0,
            gate_token_layers: 0,
            verify_token_layers: 0,
            recomputed: 0,
            reused: 0,
        }
    }

    pub(super) fn branch(&self, key: BranchKey) -> &Branch {
        &self.branches[key.branch.idx()]
    }

    /// Whether everything is generated.
    pub(super) fn is_generated(&self) -> bool {
        self.branches.iter().all(|branch| matches!(branch.stage, Stage::Complete | Stage::Closed))
    }

    /// Whether `branch` may begin: what it grows from is there.
    pub(super) fn is_ready(&self, branch: &Branch) -> bool {
        let Some(parent) = branch.parent else { return true };
        let parent = self.branch(parent);
        let is_over = matches!(parent.stage, Stage::Complete | Stage::Closed);
        if branch.follows == Follows::Prompt {
            return is_over || parent.seen >= branch.reused;
        }
        // Its text is needed, its blocks, or its states. A root that nobody needs is complete from the beginning.
        let is_needed = branch.reused > 0 || parent.parent.is_some() || branch.gate_is_due;
        !is_needed || is_over
    }

    /// Whether `branch` keeps what it grows from in memory.
    pub(super) fn holds_parent(&self, branch: &Branch) -> bool {
        match branch.follows {
            Follows::Text => !matches!(branch.stage, Stage::Complete | Stage::Closed),
            // It has its own references once it has begun.
            Follows::Prompt => branch.stage == Stage::Waiting,
        }
    }
}
