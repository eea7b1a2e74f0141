//! Decisions about one problem: pure functions of recorded facts and policies.

use super::decode_exit::Cut;
use super::{TreeError, TreeFacts, TreeModel, TreeStack};
use crate::policy::PolicyError;
use crate::policy::confidence::Over;
use crate::policy::exit::{ExitView, Lens};
use crate::policy::share::{ShareView, Sharing};
use crate::policy::verify::VerifyView;
use crate::policy::winner::{Candidate, Winner};
use crate::trace::{Outcome, Prefix};

/// What was decided about a branch.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchDecision {
    /// Its index among the problem's branches.
    pub branch: usize,
    /// What it shares.
    pub sharing: Sharing,
    /// The confidence that the winner policy looks at.
    pub confidence: f64,
    /// Layers of its verification; absent when verification was skipped.
    pub layers_run: Option<u16>,
    /// The verifier's probability of yes where it stopped; absent when verification was skipped.
    pub score: Option<f64>,
    /// Whether that is on another side of ½ than at full depth; absent when verification was skipped, or the last layer's view is not known.
    pub is_flipped: Option<bool>,
    /// Tokens generated.
    pub generated: u32,
}

/// The branch that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Its index among the problem's branches; absent when there is none.
    pub winner: Option<usize>,
    /// What it answered.
    pub answer: Option<String>,
    /// Whether that is right; absent when nothing is expected.
    pub correct: Option<bool>,
}

/// Work in units of one token through one layer, and what it is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Prompts of all branches, computed each for itself.
    pub prefill_unshared: u64,
    /// Prompts as computed: the root's prefix, the gate, and what each branch does not reuse.
    pub prefill: u64,
    /// Of it, the root's prefix and the gate: what sharing costs before anything is shared.
    pub overhead: u64,
    /// What sharing would save if every branch shared the whole prefix of the root.
    pub shareable: u64,
    /// Prompt tokens of all branches, and how many of them were there already.
    pub prompt_tokens: (u64, u64),
    /// Verification of all branches to the last layer.
    pub verify_full: u64,
    /// Verification as run, each branch to its own exit.
    pub verify: u64,
    /// Tokens generated, and without a decode-level exit.
    pub generated: (u64, u64),
}

/// What was decided about a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct ProblemDecision {
    /// The branches, in their order.
    pub branches: Vec<BranchDecision>,
    /// Whether verification was skipped.
    pub skipped: bool,
    /// The answer.
    pub choice: Choice,
    /// What it would have been with verification skipped.
    pub if_skipped: Choice,
    /// What it would have been with verification; absent when the trace cannot tell.
    pub if_verified: Option<Choice>,
    /// Steps after which decoding was stopped for all branches.
    pub stopped_after: Option<u32>,
    /// Whether the answer follows from the recording. It does not when decoding was stopped and what follows depends on text that was
    /// never written; it then counts as wrong.
    pub is_determined: bool,
    /// Work done.
    pub work: Work,
}

/// A branch as it was decoded under a stack.
pub(super) struct Run<'a> {
    pub(super) branch: usize,
    pub(super) sharing: Sharing,
    pub(super) outcome: &'a Outcome,
    pub(super) cut: Option<Cut>,
}

impl Run<'_> {
    /// Whether something of it was never written.
    fn is_cut(&self) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.is_shorter)
    }

    fn answer(&self) -> Option<&str> {
        let is_lost = self.cut.as_ref().is_some_and(|cut| cut.is_shorter && !cut.has_answer);
        self.outcome.answer.as_deref().filter(|_| !is_lost)
    }

    fn generated(&self) -> u32 {
        self.cut.as_ref().map_or(self.outcome.generated, |cut| cut.steps)
    }
}

/// Replays a problem. `history` holds the exit layers of earlier verifications, for policies that look at them.
///
/// # Errors
/// When the trace lacks what a policy looks at.
pub fn replay_problem(
    stack: &TreeStack,
    facts: &TreeFacts,
    model: TreeModel,
    seed: u64,
    history: &[u16],
) -> Result<ProblemDecision, TreeError> {
    let of_policy = |source| TreeError::Policy { problem: facts.index, source };
    let mut runs = Vec::with_capacity(facts.leaves.len());
    for &branch in &facts.leaves {
        let view = ShareView { problem: &facts.problem, branch, layers: model.layers };
        let sharing = stack.share.decide(&view).map_err(of_policy)?;
        runs.push(Run { branch, sharing, outcome: facts.outcome(branch, sharing.prefix)?, cut: None });
    }
    let outcomes: Vec<&Outcome> = runs.iter().map(|run| run.outcome).collect();
    let mut stopped_after = None;
    if let Some(exit) = &stack.decode_exit {
        stopped_after = exit.stops_after(&outcomes).map_err(of_policy)?;
        if let Some(steps) = stopped_after {
            runs.iter_mut().for_each(|run| run.cut = Some(Cut::of(run.outcome, steps)));
        }
    }
    // Verify policies see what was decoded: cut outcomes have their own confidences and answers.
    let cut_outcomes: Vec<Outcome> = runs.iter().filter(|run| run.cut.is_some()).map(cut_outcome).collect();
    let seen: Vec<&Outcome> =
        if cut_outcomes.len() == runs.len() { cut_outcomes.iter().collect() } else { outcomes };
    let view = VerifyView { outcomes: &seen, problem: facts.index, seed };
    let skipped = stack.verify.skips(&view).map_err(of_policy)?;
    let confidences = confidences(stack.winner.as_ref(), &seen).map_err(of_policy)?;

    let verified = verify(stack, facts, model, &runs, history);
    let scores = match &verified {
        Ok(verified) => Some(verified.iter().map(|(_, score, _)| Some(*score)).collect::<Vec<_>>()),
        Err(_) => None,
    };
    let if_skipped = choose(stack.winner.as_ref(), &runs, &confidences, &vec![None; runs.len()]);
    let if_verified = scores.map(|scores| choose(stack.winner.as_ref(), &runs, &confidences, &scores));
    let verified = if skipped { None } else { Some(verified?) };
    let chosen = match (skipped, &if_verified) {
        (false, Some(choice)) => choice.clone(),
        _ => if_skipped.clone(),
    };
    let is_cut = runs.iter().any(Run::is_cut);
    let lost_answer = |choice: &Choice| {
        runs.iter().any(|run| Some(run.branch) == choice.winner && run.is_cut() && run.answer().is_none())
    };
    let reads_answers = stack.winner.votes() || stack.verify.spec().id == "majority";
    let is_any_lost = runs.iter().any(|run| run.is_cut() && run.answer().is_none());
    let is_determined = !is_cut || (skipped && !lost_answer(&chosen) && !(reads_answers && is_any_lost));
    let choice = if is_determined {
        chosen
    } else {
        Choice { winner: None, answer: None, correct: chosen.correct.map(|_| false) }
    };
    let work = work(stack, facts, model, &runs, verified.as_deref());
    Ok(ProblemDecision {
        branches: branch_decisions(&runs, confidences, verified.as_deref()),
        skipped,
        choice,
        if_skipped,
        if_verified,
        stopped_after,
        is_determined,
        work,
    })
}

/// What was decided about each of `runs`, with its confidence and, unless it was skipped, its verification.
pub(super) fn branch_decisions(
    runs: &[Run<'_>],
    confidences: Vec<f64>,
    verified: Option<&[Verification]>,
) -> Vec<BranchDecision> {
    let one = |(at, (run, confidence)): (usize, (&Run<'_>, f64))| {
        let verified = verified.map(|all| all[at]);
        BranchDecision {
            branch: run.branch,
            sharing: run.sharing,
            confidence,
            layers_run: verified.map(|(layers, _, _)| layers),
            score: verified.map(|(_, score, _)| score),
            is_flipped: verified.and_then(|(_, _, is_flipped)| is_flipped),
            generated: run.generated(),
        }
    };
    runs.iter().zip(confidences).enumerate().map(one).collect()
}

/// What the full pipeline chooses: nothing shared, every branch verified to the last layer with the final norm.
///
/// # Errors
/// When a branch has no outcome or verdict behind its own prefix.
pub fn full_pipeline(winner: &dyn Winner, facts: &TreeFacts) -> Result<Choice, TreeError> {
    let mut runs = Vec::with_capacity(facts.leaves.len());
    let mut scores = Vec::with_capacity(facts.leaves.len());
    for &branch in &facts.leaves {
        let outcome = facts.outcome(branch, Prefix::Own)?;
        let layers = facts.verdict(branch, Prefix::Own)?;
        scores.push(layers.last().and_then(|layer| layer.verdict(Lens::FinalNorm)));
        runs.push(Run { branch, sharing: Sharing::NOTHING, outcome, cut: None });
    }
    let outcomes: Vec<&Outcome> = runs.iter().map(|run| run.outcome).collect();
    let confidences = confidences(winner, &outcomes)
        .map_err(|source| TreeError::Policy { problem: facts.index, source })?;
    Ok(choose(winner, &runs, &confidences, &scores))
}

/// The confidences that a winner policy looks at, `[branch]`.
pub(crate) fn confidences(winner: &dyn Winner, outcomes: &[&Outcome]) -> Result<Vec<f64>, PolicyError> {
    winner.confidence().of(winner.spec().id, Over::Steps, outcomes)
}

pub(super) fn choose(
    winner: &dyn Winner,
    runs: &[Run<'_>],
    confidences: &[f64],
    scores: &[Option<f64>],
) -> Choice {
    let candidates: Vec<Candidate<'_>> = runs
        .iter()
        .zip(confidences)
        .zip(scores)
        .map(|((run, &confidence), &score)| Candidate { score, confidence, answer: run.answer() })
        .collect();
    let Some(run) = winner.choose(&candidates).and_then(|at| runs.get(at)) else {
        return Choice::default();
    };
    let answer = run.answer().map(str::to_owned);
    let correct = run.outcome.correct.map(|correct| correct && answer.is_some());
    Choice { winner: Some(run.branch), answer, correct }
}

/// Layers run, score, and whether the side flipped, where that is known.
pub(super) type Verification = (u16, f64, Option<bool>);

fn verify(
    stack: &TreeStack,
    facts: &TreeFacts,
    model: TreeModel,
    runs: &[Run<'_>],
    history: &[u16],
) -> Result<Vec<Verification>, TreeError> {
    let lens = stack.exit.lens();
    let one = |run: &Run<'_>| {
        let layers = facts.verdict(run.branch, run.sharing.prefix)?;
        let view = ExitView { history, ..ExitView::of(layers, model.vocab) };
        let layers_run = stack.exit.layers_run(&view).clamp(1, model.layers);
        let score = layers[usize::from(layers_run) - 1].verdict(lens);
        let full = layers.last().and_then(|layer| layer.verdict(Lens::FinalNorm));
        let (Some(score), Some(full)) = (score, full) else {
            return Err(TreeError::NoVerdict {
                problem: facts.index,
                branch: run.branch,
                prefix: run.sharing.prefix,
            });
        };
        Ok((layers_run, score, Some((score >= 0.5) != (full >= 0.5))))
    };
    runs.iter().map(one).collect()
}

/// An outcome that was cut, as a verify policy sees it.
fn cut_outcome(run: &Run<'_>) -> Outcome {
    let whole = run.outcome;
    let Some(cut) = &run.cut else { return whole.clone() };
    let answer = run.answer().map(str::to_owned);
    Outcome {
        correct: whole.correct.map(|correct| correct && answer.is_some()),
        answer,
        finish_reason: if cut.is_shorter { "stop".to_owned() } else { whole.finish_reason.clone() },
        generated: cut.steps,
        confidences: cut.confidences,
        steps: whole.steps[..cut.steps as usize].to_vec(),
        verdict: None,
    }
}

/// Work on prompts alone, for branches with what they share.
pub(crate) fn prompt_work(
    stack: &TreeStack,
    facts: &TreeFacts,
    model: TreeModel,
    shared: impl Iterator<Item = (usize, Sharing)>,
) -> Work {
    let layers = u64::from(model.layers);
    let gate = u64::from(stack.share.gate_layers(model.layers));
    let prefix = facts.problem.branches.first().map_or(0, |root| u64::from(root.prefix_len));
    let root = if stack.share.prefills_root() { prefix * layers } else { 0 };
    let mut work = Work { prefill: root, overhead: root, ..Work::default() };
    for (at, sharing) in shared {
        let branch = &facts.problem.branches[at];
        let prompt = branch.tokens.len() as u64;
        let suffix = prompt.saturating_sub(u64::from(branch.prefix_len));
        let reused = u64::from(sharing.reused_tokens);
        // Behind the root's prefix a branch computes its suffix; behind its own, what is not cached.
        let computed = match sharing.prefix {
            Prefix::Root => suffix,
            Prefix::Own => prompt.saturating_sub(reused),
        };
        work.prefill_unshared += prompt * layers;
        work.prefill += (prompt * gate) + computed * layers;
        work.overhead += prompt * gate;
        work.shareable += (prompt - suffix) * layers;
        work.prompt_tokens.0 += prompt;
        work.prompt_tokens.1 += reused.min(prompt);
    }
    work
}

fn work(
    stack: &TreeStack,
    facts: &TreeFacts,
    model: TreeModel,
    runs: &[Run<'_>],
    verified: Option<&[Verification]>,
) -> Work {
    let layers = u64::from(model.layers);
    let mut work = prompt_work(stack, facts, model, runs.iter().map(|run| (run.branch, run.sharing)));
    for (at, run) in runs.iter().enumerate() {
        let verifier = run.outcome.verdict.as_ref().map_or(0, |verdict| u64::from(verdict.prompt_tokens));
        work.verify_full += verifier * layers;
        work.verify += verified.map_or(0, |all| verifier * u64::from(all[at].0));
        work.generated.0 += u64::from(run.generated());
        work.generated.1 += u64::from(run.outcome.generated);
    }
    work
}
