//! The pipeline run live: branches share, are decoded, skipped or verified as a stack decides, and layers behind an exit do not run.
//!
//! Responsible for doing what a replay of the recorded trees says would be done, so that both can be compared. Decisions are made by the same
//! policy objects as in the replay, on facts computed here. Facts come from single rows where the recording looks at all layers at once:
//! they agree to rounding, so decisions are the same unless a threshold lies within rounding of an observed value.

use kvlab_sim::policy::exit::{ExitView, LayerFacts};
use kvlab_sim::policy::share::{ShareView, Sharing};
use kvlab_sim::policy::verify::VerifyView;
use kvlab_sim::trace::{Branch, Outcome, Prefix, Problem};
use kvlab_sim::trees::{LivedBranch, LivedProblem, ProblemDecision, TreeFacts, TreeModel, TreeStack};

use super::decode::Ended;
use super::look::Looked;
use super::{BranchPlan, BranchWords, Recorder, TreeItem, count, ids};
use crate::{
    decode::{DecodeError, Flow, LayerDone, Taps},
    error::ExecutorError,
    model::Model,
    record,
};

/// What was done with a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveProblem {
    /// Its prompts and, where the stack looks at them, how similar their states are to the root's; without outcomes.
    pub problem: Problem,
    /// What was run.
    pub lived: LivedProblem,
    /// What was decided.
    pub decision: ProblemDecision,
}

/// Solves a problem under a stack. `index` is its place among the problems, for policies that draw, and `history` holds the zero-based exit layers of
/// earlier verifications, for policies that remember.
///
/// With a decode-level exit the branches are decoded one after the other and cut where all of them would have stopped: a step depends on its own
/// branch alone, so that is what decoding them together would have written. The verifier then sees the cut texts.
///
/// # Errors
/// A policy that cannot decide; and as [`super::record_branches`].
pub fn solve_live(
    model: &mut Model,
    item: &TreeItem,
    plan: &BranchPlan,
    stack: &TreeStack,
    (index, seed): (u32, u64),
    history: &[u16],
) -> Result<LiveProblem, ExecutorError> {
    let words = (super::word(model, plan.verdict_words.0)?, super::word(model, plan.verdict_words.1)?);
    let of_model = layers_and_vocab(model);
    let mut recorder = Recorder { model, plan, item, verdict_tokens: words };
    let (problem, mut decoded) = recorder.decode_all(stack, of_model.layers)?;
    let whole_tokens: Vec<u32> = decoded.iter().map(|(_, ended)| ended.made()).collect();
    let mut outcomes = recorder.outcomes(&decoded)?;
    let mut stopped_after = None;
    if let Some(exit) = &stack.decode_exit {
        stopped_after = exit.stops_after(&outcomes.iter().collect::<Vec<_>>())?;
        if let Some(steps) = stopped_after {
            for (_, ended) in &mut decoded {
                ended.cut(recorder.model.codec()?, steps)?;
            }
            outcomes = recorder.outcomes(&decoded)?;
        }
    }
    let seen: Vec<&Outcome> = outcomes.iter().collect();
    let skipped = stack.verify.skips(&VerifyView { outcomes: &seen, problem: index, seed })?;
    let mut branches = Vec::with_capacity(decoded.len());
    let each = decoded.iter().zip(outcomes).zip(item.branches.iter().zip(whole_tokens));
    for (at, (((sharing, ended), outcome), (words, whole_tokens))) in each.enumerate() {
        let shown = match sharing.prefix {
            Prefix::Own => words,
            Prefix::Root => &item.root,
        };
        let prompt = recorder.verifier_prompt(shown, &ended.text)?;
        let verified =
            if skipped { None } else { Some(recorder.verify_live(&prompt, of_model, stack, history)?) };
        branches.push(LivedBranch {
            branch: at + 1,
            sharing: *sharing,
            outcome,
            whole_tokens,
            verifier_tokens: count(prompt.len()),
            verified,
        });
    }
    let facts = TreeFacts::new(index, problem);
    let lived = LivedProblem { branches, skipped, stopped_after };
    let decision = lived.decided(stack, &facts, of_model)?;
    Ok(LiveProblem { problem: facts.problem, lived, decision })
}

/// What policies over branch trees want to know of a model.
pub(crate) fn layers_and_vocab(model: &Model) -> TreeModel {
    TreeModel {
        layers: u16::try_from(model.config().layers).unwrap_or(u16::MAX),
        vocab: u32::try_from(model.config().vocab).unwrap_or(u32::MAX),
    }
}

impl Recorder<'_> {
    /// Decodes every branch behind the prefix that the stack gives it, and behind no other.
    fn decode_all(
        &mut self,
        stack: &TreeStack,
        layers: u16,
    ) -> Result<(Problem, Vec<(Sharing, Ended)>), ExecutorError> {
        let item = self.item;
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
        for group in item.branches.chunks(self.plan.batch.get()) {
            let (mut sharings, mut suffixes, mut begun) = (Vec::new(), Vec::new(), Vec::new());
            for words in group {
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
                match sharing.prefix {
                    Prefix::Root => suffixes.push(tokens.suffix),
                    Prefix::Own => begun.push(match own {
                        Some(own) => own,
                        None => self.states(&tokens)?.1,
                    }),
                }
                sharings.push(sharing);
            }
            let mut behind_root = self.behind(&shared, &suffixes)?.into_iter();
            let mut own = self.own(begun)?.into_iter();
            for sharing in sharings {
                let ended = match sharing.prefix {
                    Prefix::Root => behind_root.next(),
                    Prefix::Own => own.next(),
                };
                decoded.push((sharing, ended.ok_or(DecodeError::NoTokens)?));
            }
        }
        Ok((problem, decoded))
    }

    /// What the branches wrote, graded and without verdicts.
    fn outcomes(&self, decoded: &[(Sharing, Ended)]) -> Result<Vec<Outcome>, ExecutorError> {
        let expected = self.item.expected_answer.as_deref();
        let one = |(_, ended): &(Sharing, Ended)| {
            let graded = expected.map(|expected| (self.plan.grader)(&ended.text, expected));
            Ok(ended.clone().outcome(self.model.codec()?, graded, None, true)?)
        };
        decoded.iter().map(one).collect()
    }

    /// What the verifier reads about a text that answers `shown`.
    fn verifier_prompt(&self, shown: &BranchWords, text: &str) -> Result<Vec<u32>, ExecutorError> {
        let prompt = self.model.codec()?.encode(&(self.item.verify)(shown.wording, text))?;
        record::check_context(self.model, &self.item.item, prompt.len(), 0)?;
        Ok(prompt)
    }

    /// Shows a prompt to the verifier until the stack says stop: layers run, and the probability of yes there.
    fn verify_live(
        &mut self,
        prompt: &[u32],
        TreeModel { layers: model_layers, vocab }: TreeModel,
        stack: &TreeStack,
        history: &[u16],
    ) -> Result<(u16, f64), ExecutorError> {
        let (yes_no, chunk) = (self.verdict_tokens, self.plan.chunk.get());
        let mut decoder = self.model.decoder()?;
        let layers = usize::from(model_layers);
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
        raw_entropy_nats: None,
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
pub(super) fn bare(words: &BranchWords, tokens: &super::PromptTokens, parent: Option<u32>) -> Branch {
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
