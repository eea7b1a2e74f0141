//! Recording of branch trees: every branch behind its own prefix and behind the root's, and a verifier on each outcome.
//!
//! Responsible for what is run and what is kept of it, so that prefix sharing, verify skip and layer exit can be replayed
//! at every threshold without the model. Not responsible for thresholds: nothing is skipped or shared here. Protocol after
//! RKSC (github AnirudhSekar/RKSC `rksc.ipynb`); differs where its notebook measures something else than it says: the verifier reads
//! the whole problem, states are read at the true last token, nothing is padded, and steps after the end of a text
//! do not exist.

mod decode;
pub(crate) mod exec;
mod live;
mod look;
mod published;
mod tree;

pub use exec::{TreeExec, exec_trees};
pub(crate) use live::layers_and_vocab;
pub use live::{LiveProblem, solve_live};
pub use tree::{BranchWords, TreeItem, TreeSet, VerifierPrompt};

use std::{num::NonZeroUsize, path::Path};

use kvlab_sim::{
    trace::{
        Branch, DecodingInfo, FinishedTrace, Leftover, Problem, StoredBranches, StoredFields, StoredWeights,
        ToolInfo, TraceWriter, WorkloadInfo,
    },
    types::TokenId,
};

use crate::{
    decode::KvCache,
    error::ExecutorError,
    model::Model,
    progress::Progress,
    record::{self, Grader, HeaderParts, RecordError},
};
use decode::{Decoding, Ended, Ends, Together};
use look::{PromptStates, verdict};

/// How branch trees are recorded.
#[derive(Debug, Clone)]
pub struct BranchPlan {
    /// Prompt tokens per pass.
    pub chunk: NonZeroUsize,
    /// Most tokens that a branch generates.
    pub max_new_tokens: u32,
    /// Most branches that are decoded in one pass; 1 for one by one. More of them change no token but at a tie within rounding, and facts of steps by
    /// rounding.
    pub batch: NonZeroUsize,
    /// Whether the facts of every decoding step are kept.
    pub steps: bool,
    /// Whether times of the parts of a pass are measured and kept.
    pub times: bool,
    /// How prompts, steps and the verifier are run.
    pub protocol: Protocol,
    /// The program.
    pub tool: ToolInfo,
    /// Where the problems come from.
    pub workload: WorkloadInfo,
    /// The recording's seed.
    pub seed: u64,
    /// How answers are graded.
    pub grader: Grader,
    /// The verifier's texts for yes and for no: the first token of each counts.
    pub verdict_words: (&'static str, &'static str),
}

/// How prompts, steps and the verifier are run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Without the defects of the reference notebook.
    #[default]
    Corrected,
    /// With those of its defects that are a matter of recording, one branch after the other: where a comparison with its figures needs it.
    AsPublished,
}

impl Protocol {
    /// What the manifest says about it; nothing for the corrected one.
    fn told(self) -> Option<String> {
        (self == Self::AsPublished).then(|| published::TOLD.to_owned())
    }
}

/// Records branch trees into a trace at `target`. Problems that an interrupted recording finished are not run again.
///
/// # Errors
/// The model has no tokenizer, a prompt does not fit, or the decoder or the trace fails.
pub fn record_branches(
    model: &mut Model,
    items: &[TreeItem],
    plan: &BranchPlan,
    target: &Path,
    leftover: Leftover,
    progress: &dyn Progress,
) -> Result<FinishedTrace, ExecutorError> {
    if items.is_empty() {
        return Err(RecordError::NoPrompts.into());
    }
    let verdict_tokens = (word(model, plan.verdict_words.0)?, word(model, plan.verdict_words.1)?);
    let header = record::header_of(
        model,
        HeaderParts {
            tool: plan.tool.clone(),
            workload: plan.workload.clone(),
            seed: plan.seed,
            decoding: DecodingInfo {
                mode: "greedy".to_owned(),
                max_new_tokens: plan.max_new_tokens,
                chat_template: false,
                batch: u32::try_from(plan.batch.get()).ok().filter(|batch| *batch > 1),
                protocol: plan.protocol.told(),
            },
            fields: StoredFields { hidden: false, attention: None, lens: None, lens_top: 0 },
            weights: StoredWeights::default(),
            branches: Some(StoredBranches {
                similarity: true,
                steps: plan.steps,
                verdicts: true,
                yes_token: Some(verdict_tokens.0),
                no_token: Some(verdict_tokens.1),
            }),
            times: plan.times,
        },
    )?;
    let mut writer = TraceWriter::create(target, header, leftover)?;
    check_continued(model, &writer, items, plan)?;
    let done = writer.finished_problems() as usize;
    if writer.misses_times() {
        let mut longest = 0;
        for item in items {
            longest = prompts(model, item, plan)?.iter().map(Vec::len).fold(longest, usize::max);
        }
        record::write_times(model, &mut writer, longest + plan.max_new_tokens as usize, progress)?;
    }
    progress.start("recording branch trees", Some(items.len() as u64));
    progress.advance(done.min(items.len()) as u64);
    for item in items.iter().skip(done) {
        let problem = Recorder { model, plan, item, verdict_tokens }.problem()?;
        writer.push_problem(&problem)?;
        progress.advance(1);
    }
    progress.finish();
    Ok(writer.finish()?)
}

/// Refuses to continue a recording of other trees than `items`.
fn check_continued(
    model: &mut Model,
    writer: &TraceWriter,
    items: &[TreeItem],
    plan: &BranchPlan,
) -> Result<(), ExecutorError> {
    record::check_items(
        writer.problems().map(|problem| problem.item.as_str()),
        items.iter().map(|item| item.item.as_str()),
    )?;
    let tokens = writer.branch_tokens()?;
    let mut tokens = tokens.as_slice();
    for (problem, item) in writer.problems().zip(items) {
        // The root is a row too.
        let (found, asked) = ((problem.branches as usize).saturating_sub(1), item.branches.len());
        if found != asked {
            return Err(RecordError::OtherBranches { item: item.item.clone(), found, asked }.into());
        }
        let prompts = prompts(model, item, plan)?.concat();
        match tokens.strip_prefix(prompts.as_slice()) {
            Some(rest) => tokens = rest,
            None => return Err(RecordError::OtherWordings { item: item.item.clone() }.into()),
        }
    }
    Ok(())
}

/// One problem with all its counterfactuals, as [`record_branches`] stores it.
pub(crate) fn recorded(
    model: &mut Model,
    item: &TreeItem,
    plan: &BranchPlan,
) -> Result<Problem, ExecutorError> {
    let verdict_tokens = (word(model, plan.verdict_words.0)?, word(model, plan.verdict_words.1)?);
    Recorder { model, plan, item, verdict_tokens }.problem()
}

/// The prompts of a problem in tokens: the root's, then each branch's own.
pub(crate) fn prompts(
    model: &mut Model,
    item: &TreeItem,
    plan: &BranchPlan,
) -> Result<Vec<Vec<u32>>, ExecutorError> {
    let verdict_tokens = (word(model, plan.verdict_words.0)?, word(model, plan.verdict_words.1)?);
    let recorder = Recorder { model, plan, item, verdict_tokens };
    std::iter::once(&item.root).chain(&item.branches).map(|words| Ok(recorder.tokens(words)?.all())).collect()
}

/// The first token of a word of the verifier.
fn word(model: &Model, text: &str) -> Result<u32, ExecutorError> {
    let tokens = model.codec()?.encode_formatted(text)?;
    Ok(*tokens.first().ok_or(crate::decode::DecodeError::NoTokens)?)
}

/// A prompt in tokens.
struct PromptTokens {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

impl PromptTokens {
    fn all(&self) -> Vec<u32> {
        [self.prefix.as_slice(), self.suffix.as_slice()].concat()
    }
}

/// One problem at work.
struct Recorder<'a> {
    model: &'a mut Model,
    plan: &'a BranchPlan,
    item: &'a TreeItem,
    verdict_tokens: (u32, u32),
}

impl Recorder<'_> {
    fn problem(&mut self) -> Result<Problem, ExecutorError> {
        if self.plan.protocol == Protocol::AsPublished {
            return self.problem_as_published();
        }
        let item = self.item;
        let root = self.tokens(&item.root)?;
        let states = self.states(&root)?.0;
        let shared = self.prefix_cache(&root.prefix)?;
        let mut branches = vec![Branch {
            parent: None,
            seq: None,
            wording: self.item.root.wording,
            wording_level: self.item.root.wording_level,
            hint: self.item.root.hint,
            prefix_len: count(root.prefix.len()),
            tokens: ids(&root.all()),
            similarity: Vec::new(),
            own: None,
            root: None,
        }];
        // Behind the root's prefix the outcome depends on the suffix alone.
        let mut behind_root: Vec<(Vec<u32>, Ended)> = Vec::new();
        for group in item.branches.chunks(self.plan.batch.get()) {
            let (mut prompts, mut new, mut begun) = (Vec::new(), Vec::new(), Vec::new());
            for words in group {
                let tokens = self.tokens(words)?;
                let (own_states, own) = self.states(&tokens)?;
                let is_known = behind_root
                    .iter()
                    .map(|(suffix, _)| suffix)
                    .chain(&new)
                    .any(|known| *known == tokens.suffix);
                if !is_known {
                    new.push(tokens.suffix.clone());
                }
                let is_roots = tokens.prefix == root.prefix;
                if !is_roots {
                    begun.push(own);
                }
                prompts.push((words, tokens, states.similarity(&own_states), is_roots));
            }
            let ended = self.behind(&shared, &new)?;
            behind_root.extend(new.into_iter().zip(ended));
            let mut own_ends = self.own(begun)?.into_iter();
            for (words, tokens, similarity, is_roots) in prompts {
                let root_end = behind_root.iter().find(|(suffix, _)| *suffix == tokens.suffix);
                let root_end =
                    root_end.map(|(_, ended)| ended.clone()).ok_or(crate::decode::DecodeError::NoTokens)?;
                let own_end =
                    if is_roots { None } else { own_ends.next() }.unwrap_or_else(|| root_end.clone());
                let own = Some(self.outcome(own_end, words)?);
                let root = Some(self.outcome(root_end, &item.root)?);
                branches.push(Branch { similarity, own, root, ..live::bare(words, &tokens, Some(0)) });
            }
        }
        Ok(Problem { item: item.item.clone(), expected_answer: item.expected_answer.clone(), branches })
    }

    fn tokens(&self, words: &BranchWords) -> Result<PromptTokens, ExecutorError> {
        let codec = self.model.codec()?;
        let tokens = PromptTokens {
            prefix: codec.encode(&words.prefix)?,
            suffix: codec.encode_formatted(&words.suffix)?,
        };
        let length = tokens.prefix.len() + tokens.suffix.len();
        record::check_context(self.model, &self.item.item, length, self.plan.max_new_tokens)?;
        Ok(tokens)
    }

    /// States of a prompt, and what decoding goes on with.
    fn states(
        &mut self,
        tokens: &PromptTokens,
    ) -> Result<(PromptStates, (KvCache, Vec<f32>)), ExecutorError> {
        let mut decoder = self.model.decoder()?;
        let (states, logits) =
            PromptStates::read(&mut decoder, &tokens.all(), tokens.prefix.len(), self.plan.chunk)?;
        Ok((states, (decoder.cache().clone(), logits)))
    }

    fn prefix_cache(&mut self, prefix: &[u32]) -> Result<KvCache, ExecutorError> {
        let mut decoder = self.model.decoder()?;
        decoder.feed(prefix, self.plan.chunk, crate::decode::Taps::NONE)?;
        Ok(decoder.cache().clone())
    }

    /// Decodes suffixes behind a prefix, at most as many at once as are given; one by itself in a pass of its own.
    fn behind(&mut self, prefix: &KvCache, suffixes: &[Vec<u32>]) -> Result<Vec<Ended>, ExecutorError> {
        let stops = &self.item.stops;
        if self.plan.batch.get() == 1 || suffixes.len() == 1 || suffixes.iter().any(Vec::is_empty) {
            let one = |suffix: &Vec<u32>| self.decoding(prefix.clone())?.run(suffix, stops);
            return suffixes.iter().map(one).collect();
        }
        let suffixes: Vec<&[u32]> = suffixes.iter().map(Vec::as_slice).collect();
        self.together()?.behind(prefix.clone(), &suffixes, stops)
    }

    /// Decodes sequences that have begun, each by itself or all at once.
    fn own(&mut self, begun: Vec<(KvCache, Vec<f32>)>) -> Result<Vec<Ended>, ExecutorError> {
        let stops = &self.item.stops;
        if self.plan.batch.get() == 1 || begun.len() == 1 {
            let one = |(cache, last): (KvCache, Vec<f32>)| self.decoding(cache)?.run_from(&last, stops);
            return begun.into_iter().map(one).collect();
        }
        self.together()?.from(begun, stops)
    }

    fn together(&mut self) -> Result<Together<'_>, ExecutorError> {
        let (decoder, codec) = self.model.decoder_and_codec_with(self.model.new_cache()?)?;
        Ok(Together { decoder, codec, chunk: self.plan.chunk, most: self.plan.max_new_tokens })
    }

    fn decoding(&mut self, cache: KvCache) -> Result<Decoding<'_>, ExecutorError> {
        let (decoder, codec) = self.model.decoder_and_codec_with(cache)?;
        let ends = match self.plan.protocol {
            Protocol::Corrected => Ends::AtTheEnd,
            Protocol::AsPublished => Ends::Never,
        };
        Ok(Decoding { decoder, codec, chunk: self.plan.chunk, most: self.plan.max_new_tokens, ends })
    }

    /// Grades what was written and shows it to the verifier, in the words of `problem`.
    fn outcome(
        &mut self,
        ended: Ended,
        problem: &BranchWords,
    ) -> Result<kvlab_sim::trace::Outcome, ExecutorError> {
        let prompt = (self.item.verify)(problem.wording, &ended.text);
        let prompt = self.model.codec()?.encode(&prompt)?;
        record::check_context(self.model, &self.item.item, prompt.len(), 0)?;
        self.judged(ended, &prompt, prompt.len())
    }

    /// Grades what was written and runs the verifier on the first `read` tokens of its prompt.
    fn judged(
        &mut self,
        ended: Ended,
        prompt: &[u32],
        read: usize,
    ) -> Result<kvlab_sim::trace::Outcome, ExecutorError> {
        let graded =
            self.item.expected_answer.as_deref().map(|expected| (self.plan.grader)(&ended.text, expected));
        let mut decoder = self.model.decoder()?;
        let mut verdict = verdict(&mut decoder, &prompt[..read], self.plan.chunk, self.verdict_tokens)?;
        verdict.prompt_tokens = count(prompt.len());
        Ok(ended.outcome(self.model.codec()?, graded, Some(verdict), self.plan.steps)?)
    }
}

fn ids(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().copied().map(TokenId::new).collect()
}

/// Lengths were checked against the model's context.
fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_possible_truncation, reason = "facts are recorded as f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}
