//! Recorded problems under a stack: the exact replay of branch trees as work for the serving engine.

use super::super::RunError;
use super::super::context::Context;
use super::super::lint::Found;
use super::super::trees::{self, TreeMeasures};
use crate::policy::PolicyError;
use crate::policy::share::common;
use crate::scenario::TreePlan;
use crate::serve::{BranchDecisions, Follows, PartialPass, ProblemDecisions};
use crate::trace::Prefix;
use crate::trees::{
    BranchDecision, Choice, ProblemDecision, TreeError, TreeFacts, TreeModel, TreeStack, replay_all,
};

/// The problems of a trace, read once for all arms.
pub(super) struct Recorded {
    pub(super) trees: Vec<TreeFacts>,
    pub(super) model: TreeModel,
    pub(super) measures: TreeMeasures,
}

/// What a stack decided about all problems, and the work that follows, `[problem]`.
pub(super) struct Decided {
    pub(super) decisions: Vec<(ProblemDecision, Choice)>,
    pub(super) work: Vec<ProblemDecisions>,
}

impl Recorded {
    pub(super) fn read(context: &Context<'_>) -> Result<Self, RunError> {
        let trees = trees::read(context)?;
        let model = trees::model(context);
        let measures = TreeMeasures::new(model.layers, trees.iter().map(|facts| facts.problem.item.as_str()));
        Ok(Self { trees, model, measures })
    }

    /// What is to be said about the thresholds of these stacks, `[stack]`. Those that differ in thresholds only are one group, so that one can repeat another.
    pub(super) fn found(&self, stacks: impl Iterator<Item = Result<TreeStack, PolicyError>>) -> Vec<Found> {
        let label = || "serving arms".to_owned();
        let plan = |stack| TreePlan { label: label(), seed: None, swept: Vec::new(), stack };
        trees::found(&stacks.map(plan).collect::<Vec<_>>(), &self.trees, self.model)
    }

    /// # Errors
    /// When the trace lacks what a policy looks at, or the work cannot be served.
    pub(super) fn decide(&self, stack: &TreeStack, seed: u64) -> Result<Decided, TreeError> {
        let decisions = replay_all(stack, &self.trees, self.model, seed)?;
        let pairs = decisions.iter().zip(&self.trees);
        let work = pairs.map(|((decision, _), facts)| work(stack, facts, decision, self.model));
        Ok(Decided { work: work.collect::<Result<_, _>>()?, decisions })
    }
}

/// What has to be done about a problem when a stack decided this about it. The branches are those that may answer, in their order.
///
/// # Errors
/// When a branch takes tokens over from one that is not decoded.
pub(super) fn work(
    stack: &TreeStack,
    facts: &TreeFacts,
    decision: &ProblemDecision,
    model: TreeModel,
) -> Result<ProblemDecisions, TreeError> {
    let root_tokens = facts.problem.branches.first().map_or(0, |root| root.prefix_len);
    let needs_root = stack.share.prefills_root();
    let branches = (0..decision.branches.len()).map(|at| branch(stack, facts, decision, at, model));
    let place = |winner: usize| decision.branches.iter().position(|branch| branch.branch == winner);
    Ok(ProblemDecisions {
        item: facts.problem.item.clone(),
        root_tokens,
        needs_root,
        branches: branches.collect::<Result<_, _>>()?,
        winner: decision.choice.winner.and_then(place).and_then(|at| u32::try_from(at).ok()),
    })
}

fn branch(
    stack: &TreeStack,
    facts: &TreeFacts,
    decision: &ProblemDecision,
    at: usize,
    model: TreeModel,
) -> Result<BranchDecisions, TreeError> {
    let BranchDecision { branch, sharing, layers_run, generated, .. } = decision.branches[at];
    let recorded = &facts.problem.branches[branch];
    let own = crate::num::count(recorded.tokens.len());
    let prompt_tokens = match sharing.prefix {
        Prefix::Own => own,
        Prefix::Root => sharing.reused_tokens + own.saturating_sub(recorded.prefix_len),
    };
    // The logits of the last prompt token give the first generated one: it is computed in any case.
    let reused_tokens = sharing.reused_tokens.min(prompt_tokens.saturating_sub(1));
    let parent = source(stack, facts, decision, at, reused_tokens)?;
    let verify = match layers_run {
        None => None,
        Some(layers) => {
            let verdict = facts.outcome(branch, sharing.prefix)?.verdict.as_ref();
            let tokens = verdict.map_or(0, |verdict| verdict.prompt_tokens);
            Some(PartialPass { tokens, layers, heads: stack.exit.heads(layers) })
        }
    };
    let gate = stack.share.gate_layers(model.layers);
    Ok(BranchDecisions {
        parent,
        follows: if parent.is_some() { Follows::Prompt } else { Follows::Text },
        prompt_tokens,
        reused_tokens,
        gate: (gate > 0).then_some(PartialPass { tokens: own, layers: gate, heads: 0 }),
        generated_tokens: generated,
        verify,
    })
}

/// The branch whose first tokens a branch takes over: the first one before it that has as many of them. Nothing for the root.
fn source(
    stack: &TreeStack,
    facts: &TreeFacts,
    decision: &ProblemDecision,
    at: usize,
    reused_tokens: u32,
) -> Result<Option<u32>, TreeError> {
    if reused_tokens == 0 || stack.share.prefills_root() {
        return Ok(None);
    }
    let tokens = |at: usize| &facts.problem.branches[decision.branches[at].branch].tokens;
    let has_them = |&earlier: &usize| common(tokens(earlier), tokens(at)) >= reused_tokens as usize;
    let found = (0..at).find(has_them).and_then(|earlier| u32::try_from(earlier).ok());
    found.map(Some).ok_or(TreeError::NotServed {
        problem: facts.index,
        branch: decision.branches[at].branch,
        reused: reused_tokens,
    })
}
