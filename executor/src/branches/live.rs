//! The pipeline run live: branches share, are decoded, skipped or verified as a stack decides, and layers behind an exit do not run.
//!
//! Responsible for doing what a replay of the recorded trees says would be done, so that both can be compared. Decisions are made by the same
//! policy objects as in the replay, on facts computed here. Facts come from single rows where the recording looks at all layers at once:
//! they agree to rounding, so decisions are the same unless a threshold lies within rounding of an observed value.

use kvlab_sim::policy::PolicyError;
use kvlab_sim::policy::confidence::Over;
use kvlab_sim::policy::exit::{ExitView, LayerFacts};
use kvlab_sim::policy::share::{ShareView, Sharing};
use kvlab_sim::policy::verify::VerifyView;
use kvlab_sim::policy::winner::Candidate;
use kvlab_sim::trace::{Branch, Outcome, Prefix, Problem};
use kvlab_sim::trees::TreeStack;

use super::look::Looked;
use super::{BranchPlan, BranchWords, Recorder, TreeItem, count, ids};
use crate::{
    decode::{DecodeError, Flow, LayerDone, Taps},
    error::ExecutorError,
    model::Model,
    record,
};

/// What was done with a branch.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveBranch {
    /// What it shared.
    pub sharing: Sharing,
    /// What it wrote, without a verdict.
    pub outcome: Outcome,
    /// Layers that ran for its verification; absent after a skip.
    pub layers_run: Option<u16>,
    /// The verifier's probability of yes there; absent after a skip.
    pub score: Option<f64>,
}

/// What was done with a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveProblem {
    /// The branches, in their order.
    pub branches: Vec<LiveBranch>,
    /// Whether verification was skipped.
    pub skipped: bool,
    /// The branch that answers, from 0; absent when there is none.
    pub winner: Option<usize>,
    /// What it answers.
    pub answer: Option<String>,
    /// Whether that is right; absent when nothing is expected.
    pub correct: Option<bool>,
}

/// Solves a problem under a stack. `index` is its place among the problems, for policies that draw, and `history` holds the zero-based exit layers of
/// earlier verifications, for policies that remember.
///
/// # Errors
/// A stack with a decode-level exit, which is not run live; a policy that cannot decide; and as
/// [`super::record_branches`].
pub fn solve_live(
    model: &mut Model,
    item: &TreeItem,
    plan: &BranchPlan,
    stack: &TreeStack,
    (index, seed): (u32, u64),
    history: &[u16],
) -> Result<LiveProblem, ExecutorError> {
    if stack.decode_exit.is_some() {
        let reason = "a decode-level exit is replayed, not run live".to_owned();
        return Err(PolicyError::Refused { policy: "decode-exit", reason }.into());
    }
    let words = (super::word(model, plan.verdict_words.0)?, super::word(model, plan.verdict_words.1)?);
    let mut recorder = Recorder { model, plan, item, verdict_tokens: words };
    let decoded = recorder.decode_all(stack)?;
    let outcomes: Vec<&Outcome> = decoded.iter().map(|(_, outcome, _)| outcome).collect();
    let skipped = stack.verify.skips(&VerifyView { outcomes: &outcomes, problem: index, seed })?;
    let confidences = stack.winner.confidence().of(stack.winner.spec().id, Over::Steps, &outcomes)?;
    let mut branches = Vec::with_capacity(decoded.len());
    for ((sharing, outcome, text), words) in decoded.into_iter().zip(&item.branches) {
        let shown = match sharing.prefix {
            Prefix::Own => words,
            Prefix::Root => &item.root,
        };
        let verified = if skipped { None } else { Some(recorder.verify_live(shown, &text, stack, history)?) };
        let (layers_run, score) = verified.unzip();
        branches.push(LiveBranch { sharing, outcome, layers_run, score });
    }
    let candidates: Vec<Candidate<'_>> = branches
        .iter()
        .zip(confidences)
        .map(|(branch, confidence)| Candidate {
            score: branch.score,
            confidence,
            answer: branch.outcome.answer.as_deref(),
        })
        .collect();
    let winner = stack.winner.choose(&candidates);
    let chosen = winner.map(|at| &branches[at].outcome);
    let answer = chosen.and_then(|outcome| outcome.answer.clone());
    let correct = chosen.and_then(|outcome| outcome.correct).map(|correct| correct && answer.is_some());
    Ok(LiveProblem { skipped, winner, answer, correct, branches })
}

/// A branch as it was decoded: what it shared, what came of it, and its text.
type Decoded = (Sharing, Outcome, String);

impl Recorder<'_> {
    /// Decodes every branch behind the prefix that the stack gives it, and behind no other.
    fn decode_all(&mut self, stack: &TreeStack) -> Result<Vec<Decoded>, ExecutorError> {
        let item = self.item;
        let layers = u16::try_from(self.model.config().layers).unwrap_or(u16::MAX);
        let root = self.tokens(&item.root)?;
        let needs_states = stack.needs().similarity;
        let root_states = if needs_states { Some(self.states(&root)?.0) } else { None };
        let shared = self.prefix_cache(&root.prefix)?;
        let mut problem = Problem {
            item: item.item.clone(),
            expected_answer: item.expected_answer.clone(),
            branches: vec![bare(&item.root, &root, None)],
        };
        let mut decoded = Vec::with_capacity(item.branches.len());
        for words in &item.branches {
            let tokens = self.tokens(words)?;
            let mut branch = bare(words, &tokens, Some(0));
            let mut own = None;
            if let Some(root_states) = &root_states {
                let (states, begun) = self.states(&tokens)?;
                branch.similarity = root_states.similarity(&states);
                own = Some(begun);
            }
            problem.branches.push(branch);
            let view = ShareView { problem: &problem, branch: problem.branches.len() - 1, layers };
            let sharing = stack.share.decide(&view)?;
            let ended = match sharing.prefix {
                Prefix::Root => self.decoding(shared.clone())?.run(&tokens.suffix, &item.stops)?,
                Prefix::Own => {
                    let (cache, last) = match own {
                        Some(begun) => begun,
                        None => self.states(&tokens)?.1,
                    };
                    self.decoding(cache)?.run_from(&last, &item.stops)?
                }
            };
            let graded =
                item.expected_answer.as_deref().map(|expected| (self.plan.grader)(&ended.text, expected));
            let text = ended.text.clone();
            let outcome = ended.outcome(self.model.codec()?, graded, None, true)?;
            decoded.push((sharing, outcome, text));
        }
        Ok(decoded)
    }

    /// Shows a text to the verifier until the stack says stop: layers run, and the probability of yes there.
    fn verify_live(
        &mut self,
        shown: &BranchWords,
        text: &str,
        stack: &TreeStack,
        history: &[u16],
    ) -> Result<(u16, f64), ExecutorError> {
        let prompt = self.model.codec()?.encode(&(self.item.verify)(shown.wording, text))?;
        record::check_context(self.model, &self.item.item, prompt.len(), 0)?;
        let (yes_no, chunk) = (self.verdict_tokens, self.plan.chunk.get());
        let mut decoder = self.model.decoder()?;
        let config = decoder.config();
        let (layers, vocab) = (config.layers, u32::try_from(config.vocab).unwrap_or(u32::MAX));
        let model_layers = u16::try_from(layers).unwrap_or(u16::MAX);
        // Only the last chunk holds the position that decides; those before it run whole.
        let begin = (prompt.len().saturating_sub(1) / chunk) * chunk;
        for part in prompt[..begin].chunks(chunk) {
            decoder.forward(part, Taps::NONE)?;
        }
        let last = *prompt.last().ok_or(DecodeError::NoTokens)?;
        let embedded = decoder.embedding(last);
        let mut looked = Looked::at_start(decoder.head(), embedded)?;
        let mut facts: Vec<LayerFacts> = Vec::with_capacity(layers);
        let mut gate = |done: LayerDone<'_>| {
            let state = done.hidden.row(done.hidden.nrows() - 1).to_vec();
            facts.push(LayerFacts::from(&looked.at_layer(done.head, state, yes_no)?));
            // A layer that is yet to come says nothing: the policy stops here, or at a layer that it has not seen.
            let mut view = facts.clone();
            view.resize(layers, unknown());
            let view = ExitView { layers: &view, vocab, history, model_layers, step: None };
            let stops = usize::from(stack.exit.layers_run(&view)) <= facts.len();
            Ok(if stops { Flow::Stop } else { Flow::Continue })
        };
        let pass = decoder.forward_gated(&prompt[begin..], Taps::NONE, &mut gate)?;
        debug_assert_eq!(pass.layers_run, facts.len());
        let exit = facts.last().and_then(|facts| facts.verdict(stack.exit.lens()));
        let score = exit.ok_or(DecodeError::NoTokens)?;
        Ok((u16::try_from(pass.layers_run).unwrap_or(u16::MAX), score))
    }
}

/// A layer about which nothing is known: no rule stops there on account of it.
fn unknown() -> LayerFacts {
    LayerFacts {
        entropy_nats: f32::NAN,
        raw_entropy_nats: f32::NAN,
        top1: kvlab_sim::types::TokenId::new(u32::MAX),
        top1_prob: f32::NAN,
        top2_prob: None,
        cos_previous: None,
        js_previous_nats: None,
        p_yes: None,
        raw_p_yes: None,
    }
}

/// A branch before anything is known of it but its prompt.
fn bare(words: &BranchWords, tokens: &super::PromptTokens, parent: Option<u32>) -> Branch {
    Branch {
        parent,
        seq: None,
        wording: words.wording,
        wording_level: words.wording_level,
        hint: words.hint,
        prefix_len: count(tokens.prefix.len()),
        tokens: ids(&tokens.all()),
        similarity: Vec::new(),
        own: None,
        root: None,
    }
}
