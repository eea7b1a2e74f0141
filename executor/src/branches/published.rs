//! The reference notebook's protocol, with those of its defects that are a matter of recording.
//!
//! After RKSC (github AnirudhSekar/RKSC `rksc.ipynb`): the branches of a problem are a batch there, padded to the longest, and what padding does wrong
//! is done here with positions and masks. Numbers of defects are those of `docs/papers.md`. Not reproduced: the padding of prompts to 1024 tokens with a
//! filler, which changes lengths alone; D3, an exit of the decoding, which replays do (`decode_exit`).

use kvlab_sim::trace::{Branch, Problem};

use super::{BranchWords, PromptTokens, Recorder, count, decode::Ended, live::bare};
use crate::{
    decode::{DecodeError, KvCache, Taps},
    error::ExecutorError,
    record,
};

/// What the manifest says.
pub(super) const TOLD: &str = "rksc-notebook: D4 the verifier does not see the problem; D5 it is read at a wrong token unless its prompt is the longest; \
                               D6 without sharing, all but the longest prompt go on from a pad token; D7 behind the root's prefix, shorter suffixes begin \
                               later; D13 steps behind the end of a text count";

impl Recorder<'_> {
    pub(super) fn problem_as_published(&mut self) -> Result<Problem, ExecutorError> {
        let item = self.item;
        let pad = self.pad()?;
        let root = self.tokens(&item.root)?;
        let states = self.states(&root)?.0;
        let shared = self.prefix_cache(&root.prefix)?;
        let prompts: Vec<PromptTokens> =
            item.branches.iter().map(|words| self.tokens(words)).collect::<Result<_, _>>()?;
        let longest = |length: fn(&PromptTokens) -> usize| prompts.iter().map(length).max().unwrap_or(0);
        let longest_suffix = longest(|tokens| tokens.suffix.len());
        let longest_prompt = longest(|tokens| tokens.prefix.len() + tokens.suffix.len());
        let (mut own, mut behind_root, mut similarities) = (Vec::new(), Vec::new(), Vec::new());
        for tokens in &prompts {
            let (own_states, (cache, last)) = self.states(tokens)?;
            similarities.push(states.similarity(&own_states));
            let missing = longest_prompt - tokens.prefix.len() - tokens.suffix.len();
            own.push(self.behind_a_pad(cache, last, missing, pad)?);
            behind_root.push(self.with_a_gap(shared.clone(), &tokens.suffix, longest_suffix)?);
        }
        let own = self.judged_as_published(own, &item.branches, pad)?;
        let behind_root =
            self.judged_as_published(behind_root, std::iter::repeat_n(&item.root, prompts.len()), pad)?;
        let mut branches = vec![bare(&item.root, &root, None)];
        let outcomes = own.into_iter().zip(behind_root);
        for (((words, tokens), similarity), (own, behind_root)) in
            item.branches.iter().zip(&prompts).zip(similarities).zip(outcomes)
        {
            let (own, root) = (Some(own), Some(behind_root));
            branches.push(Branch { similarity, own, root, ..bare(words, tokens, Some(0)) });
        }
        Ok(Problem { item: item.item.clone(), expected_answer: item.expected_answer.clone(), branches })
    }

    /// The token that pads: the first that ends a text, as in the notebook.
    fn pad(&self) -> Result<u32, ExecutorError> {
        let codec = self.model.codec()?;
        let vocab = u32::try_from(self.model.config().vocab).unwrap_or(u32::MAX);
        (0..vocab).find(|token| codec.is_end(*token)).ok_or_else(|| DecodeError::NoTokens.into())
    }

    /// D6: prompts are padded on the right, and the last column decides. A shorter prompt goes on from a pad token at the last place of the longest; later
    /// steps do not see pads.
    fn behind_a_pad(
        &mut self,
        cache: KvCache,
        last: Vec<f32>,
        missing: usize,
        pad: u32,
    ) -> Result<Ended, ExecutorError> {
        if missing == 0 {
            return self.decoding(cache)?.run_from(&last, &[]);
        }
        let mut decoding = self.decoding(cache)?;
        let decoder = &mut decoding.decoder;
        let place = decoder.next_position() + count(missing) - 1;
        decoder.set_next_position(place)?;
        let pass = decoder.forward(&[pad], Taps::NONE)?;
        let logits = decoder.last_logits(&pass)?;
        let prompt: Vec<u32> =
            decoder.cache().layers().first().map_or(Vec::new(), |layer| layer.resident(0).collect());
        let kept: Vec<u32> = prompt.into_iter().filter(|pos| *pos != place).collect();
        let (layers, heads) = (decoder.config().layers, decoder.config().kv_heads);
        for layer in 0..layers {
            decoder.mask(layer, &vec![kept.clone(); heads])?;
        }
        decoding.run_from(&logits, &[])
    }

    /// D7: suffixes are padded on the left, behind the prefix, and positions count the pads.
    fn with_a_gap(
        &mut self,
        shared: KvCache,
        suffix: &[u32],
        longest: usize,
    ) -> Result<Ended, ExecutorError> {
        let mut decoding = self.decoding(shared)?;
        let begin = decoding.decoder.next_position() + count(longest - suffix.len());
        decoding.decoder.set_next_position(begin)?;
        decoding.run(suffix, &[])
    }

    /// D4 and D5: the verifier's prompt has no problem in it, prompts are padded on the left, and the last token is looked for at the number of a row's real
    /// tokens. A shorter prompt is read as many places before its end as it has pads; where that is before its beginning, a pad by itself is read.
    fn judged_as_published<'w>(
        &mut self,
        ended: Vec<Ended>,
        words: impl IntoIterator<Item = &'w BranchWords>,
        pad: u32,
    ) -> Result<Vec<kvlab_sim::trace::Outcome>, ExecutorError> {
        let item = self.item;
        let mut prompts = Vec::with_capacity(ended.len());
        for (ended, words) in ended.iter().zip(words) {
            let prompt = self.model.codec()?.encode(&(item.blind)(words.wording, &ended.text))?;
            record::check_context(self.model, &item.item, prompt.len(), 0)?;
            prompts.push(prompt);
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let mut outcomes = Vec::with_capacity(ended.len());
        for (ended, mut prompt) in ended.into_iter().zip(prompts) {
            let read = (2 * prompt.len()).saturating_sub(longest);
            if read == 0 {
                prompt[0] = pad;
            }
            outcomes.push(self.judged(ended, &prompt, read.max(1))?);
        }
        Ok(outcomes)
    }
}
