//! A problem as a run in the loop of a model went, in the terms of a replay.
//!
//! Responsible for what follows from what was run: the winner, the answer and the work. Not responsible for running.

use super::decide::{Run, Verification, branch_decisions, choose, confidences};
use super::{ProblemDecision, TreeFacts, TreeModel, TreeStack, prompt_work};
use crate::policy::PolicyError;
use crate::policy::exit::Lens;
use crate::policy::share::Sharing;
use crate::trace::Outcome;

/// A branch as it was run.
#[derive(Clone, Debug, PartialEq)]
pub struct LivedBranch {
    /// Its index among the problem's branches.
    pub branch: usize,
    /// What it shared.
    pub sharing: Sharing,
    /// What it wrote behind the prefix that it got, as far as it was decoded.
    pub outcome: Outcome,
    /// Tokens that it would have generated had nothing stopped it.
    pub whole_tokens: u32,
    /// Tokens of the verifier's prompt, whether or not it was run.
    pub verifier_tokens: u32,
    /// Layers that ran for its verification, and the verifier's probability of yes there; absent after a skip.
    pub verified: Option<(u16, f64)>,
}

/// A problem as it was run.
#[derive(Clone, Debug, PartialEq)]
pub struct LivedProblem {
    /// The branches, in their order.
    pub branches: Vec<LivedBranch>,
    /// Whether verification was skipped.
    pub skipped: bool,
    /// Steps after which decoding was stopped for all branches.
    pub stopped_after: Option<u32>,
}

impl LivedProblem {
    /// What was decided. `facts` needs prompts and no outcomes. What only another run could tell is absent: the choice with
    /// verification where it was skipped, and whether a verdict would have flipped behind its exit. A cut branch was verified as it stood, so every answer
    /// follows from what was run.
    ///
    /// # Errors
    /// When the winner policy cannot look at the branches.
    pub fn decided(
        &self,
        stack: &TreeStack,
        facts: &TreeFacts,
        model: TreeModel,
    ) -> Result<ProblemDecision, PolicyError> {
        let outcomes: Vec<&Outcome> = self.branches.iter().map(|branch| &branch.outcome).collect();
        let confidences = confidences(stack.winner.as_ref(), &outcomes)?;
        let runs: Vec<Run<'_>> = self
            .branches
            .iter()
            .map(|lived| Run {
                branch: lived.branch,
                sharing: lived.sharing,
                outcome: &lived.outcome,
                cut: None,
            })
            .collect();
        let scores: Vec<Option<f64>> =
            self.branches.iter().map(|branch| branch.verified.map(|(_, score)| score)).collect();
        let if_skipped = choose(stack.winner.as_ref(), &runs, &confidences, &vec![None; runs.len()]);
        let if_verified =
            (!self.skipped).then(|| choose(stack.winner.as_ref(), &runs, &confidences, &scores));
        let choice = if_verified.clone().unwrap_or_else(|| if_skipped.clone());
        let mut work =
            prompt_work(stack, facts, model, self.branches.iter().map(|lived| (lived.branch, lived.sharing)));
        for lived in &self.branches {
            let tokens = u64::from(lived.verifier_tokens);
            work.verify_full += tokens * u64::from(model.layers);
            work.verify += lived.verified.map_or(0, |(layers, _)| tokens * u64::from(layers));
            work.generated.0 += u64::from(lived.outcome.generated);
            work.generated.1 += u64::from(lived.whole_tokens);
        }
        // At full depth through the final norm the verdict is the last layer's own.
        let sees_all = |layers: u16| layers == model.layers && stack.exit.lens() == Lens::FinalNorm;
        let of = |lived: &LivedBranch| -> Option<Verification> {
            lived.verified.map(|(layers, score)| (layers, score, sees_all(layers).then_some(false)))
        };
        let verified: Option<Vec<Verification>> = self.branches.iter().map(of).collect();
        let branches = branch_decisions(&runs, confidences, verified.as_deref().filter(|_| !self.skipped));
        Ok(ProblemDecision {
            branches,
            skipped: self.skipped,
            choice,
            if_skipped,
            if_verified,
            stopped_after: self.stopped_after,
            is_determined: true,
            work,
        })
    }
}
