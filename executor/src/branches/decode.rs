//! Decoding branches greedily, one by one or several in one pass, with the facts of every step.

use std::num::NonZeroUsize;

use kvlab_sim::{
    trace::{BranchStep, Confidences, Outcome, Verdict},
    types::TokenId,
};

use super::{count, narrow};
use crate::{
    decode::{DecodeError, Decoder, Distribution, KvCache, Lanes, Pass, Taps},
    error::ExecutorError,
    open_loop::says_any,
    record::Graded,
    text::{TextCodec, TextError},
};

/// C5 looks at so many of the most likely tokens (DeepConf).
const SHOWN: usize = 20;

/// A branch being decoded.
pub(super) struct Decoding<'a> {
    pub(super) decoder: Decoder<'a>,
    pub(super) codec: &'a TextCodec,
    pub(super) chunk: NonZeroUsize,
    pub(super) most: u32,
    /// Where a text ends.
    pub(super) ends: Ends,
}

/// Where a text ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Ends {
    /// At a token that ends a text, at a text that ends the continuation, or at the most tokens.
    #[default]
    AtTheEnd,
    /// After the most tokens: steps behind the end of the text are steps like any, and only the text does not hold them.
    Never,
}

/// A branch decoded to its end.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    steps: Vec<BranchStep>,
    finish_reason: &'static str,
    /// What was written, without the token that ends a text.
    pub(super) text: String,
}

impl Decoding<'_> {
    /// Feeds a suffix and decodes.
    pub(super) fn run(&mut self, suffix: &[u32], stops: &[String]) -> Result<Ended, ExecutorError> {
        let pass = self.decoder.feed(suffix, self.chunk, Taps::NONE)?;
        let logits = self.decoder.last_logits(&pass)?;
        self.run_from(&logits, stops)
    }

    /// Decodes from the logits of the last prompt token.
    pub(super) fn run_from(&mut self, logits: &[f32], stops: &[String]) -> Result<Ended, ExecutorError> {
        let mut logits = logits.to_vec();
        let mut text = Text { ends: self.ends, ..Text::default() };
        while self.most > 0
            && let Some(token) = text.step(&logits, self.codec, self.most, stops)?
        {
            let pass = self.decoder.forward(&[token], Taps::NONE)?;
            logits = self.decoder.last_logits(&pass)?;
        }
        Ok(text.ended(self.codec)?)
    }
}

/// Several branches being decoded in one pass a step.
pub(super) struct Together<'a> {
    pub(super) decoder: Decoder<'a>,
    pub(super) codec: &'a TextCodec,
    pub(super) chunk: NonZeroUsize,
    pub(super) most: u32,
}

impl Together<'_> {
    /// Feeds suffixes behind the same prefix, and decodes.
    pub(super) fn behind(
        &mut self,
        prefix: KvCache,
        suffixes: &[&[u32]],
        stops: &[String],
    ) -> Result<Vec<Ended>, ExecutorError> {
        let mut lanes = Lanes::behind(prefix, suffixes.len());
        let fed: Vec<(usize, u32)> = suffixes
            .iter()
            .enumerate()
            .flat_map(|(lane, suffix)| suffix.iter().map(move |token| (lane, *token)))
            .collect();
        let mut begun = vec![Vec::new(); suffixes.len()];
        for (part, begin) in fed.chunks(self.chunk.get()).zip((0..).step_by(self.chunk.get())) {
            let pass = self.decoder.forward_lanes(&mut lanes, part, Taps::NONE)?;
            let is_last = |row: usize| fed.get(begin + row + 1).is_none_or(|(lane, _)| *lane != part[row].0);
            let last: Vec<usize> = (0..part.len()).filter(|row| is_last(*row)).collect();
            for (row, logits) in last.iter().zip(self.logits(&pass, &last)?) {
                begun[part[*row].0] = logits;
            }
        }
        self.run(lanes, begun, stops)
    }

    /// Decodes sequences that have nothing in common, each from its cache and the logits of its last token.
    pub(super) fn from(
        &mut self,
        begun: Vec<(KvCache, Vec<f32>)>,
        stops: &[String],
    ) -> Result<Vec<Ended>, ExecutorError> {
        let (caches, logits): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
        let lanes = Lanes::joined(&caches).map_err(DecodeError::from)?;
        drop(caches);
        self.run(lanes, logits, stops)
    }

    fn run(
        &mut self,
        mut lanes: Lanes,
        mut logits: Vec<Vec<f32>>,
        stops: &[String],
    ) -> Result<Vec<Ended>, ExecutorError> {
        let mut texts: Vec<Text> = logits.iter().map(|_| Text::default()).collect();
        let mut going: Vec<usize> = (0..texts.len()).collect();
        while !going.is_empty() && self.most > 0 {
            let (mut fed, mut ended) = (Vec::new(), Vec::new());
            for &lane in &going {
                match texts[lane].step(&logits[lane], self.codec, self.most, stops)? {
                    Some(token) => fed.push((lane, token)),
                    None => ended.push(lane),
                }
            }
            going.retain(|lane| !ended.contains(lane));
            if fed.is_empty() {
                break;
            }
            lanes.end(&ended).map_err(DecodeError::from)?;
            let pass = self.decoder.forward_lanes(&mut lanes, &fed, Taps::NONE)?;
            let rows: Vec<usize> = (0..fed.len()).collect();
            for ((lane, _), row) in fed.iter().zip(self.logits(&pass, &rows)?) {
                logits[*lane] = row;
            }
        }
        texts.into_iter().map(|text| Ok(text.ended(self.codec)?)).collect()
    }

    /// Logits of some rows of a pass, `[row][vocab]`.
    fn logits(&mut self, pass: &Pass, rows: &[usize]) -> Result<Vec<Vec<f32>>, DecodeError> {
        let vocab = self.decoder.config().vocab;
        let states = pass.last_hidden.select(ndarray::Axis(0), rows);
        Ok(self.decoder.head().logits(states.view())?.chunks_exact(vocab).map(<[f32]>::to_vec).collect())
    }
}

/// A text in the making.
#[derive(Default)]
struct Text {
    ends: Ends,
    steps: Vec<BranchStep>,
    made: Vec<u32>,
    finish_reason: Option<&'static str>,
}

impl Text {
    /// Takes the likeliest token; gives it back if the text goes on behind it.
    fn step(
        &mut self,
        logits: &[f32],
        codec: &TextCodec,
        most: u32,
        stops: &[String],
    ) -> Result<Option<u32>, ExecutorError> {
        let step = step(logits)?;
        let token = step.token.get();
        self.steps.push(step);
        if self.ends == Ends::Never {
            self.finish_reason = self.finish_reason.or(codec.is_end(token).then_some("eos"));
            if self.finish_reason.is_none() {
                self.made.push(token);
            }
            return Ok(Some(token).filter(|_| self.steps.len() < most as usize));
        }
        if codec.is_end(token) {
            self.finish_reason = Some("eos");
            return Ok(None);
        }
        self.made.push(token);
        if says_any(codec, &self.made, stops)? {
            self.finish_reason = Some("stop");
            return Ok(None);
        }
        Ok(Some(token).filter(|_| self.made.len() < most as usize))
    }

    fn ended(self, codec: &TextCodec) -> Result<Ended, TextError> {
        let text = codec.decode(&self.made)?;
        Ok(Ended { steps: self.steps, finish_reason: self.finish_reason.unwrap_or("length"), text })
    }
}

/// The facts of a greedy step; ties go to the lower token.
fn step(logits: &[f32]) -> Result<BranchStep, DecodeError> {
    let seen = Distribution::of_logits(logits, SHOWN).map_err(|why| DecodeError::Logits { row: 0, why })?;
    let first = seen.top.first().ok_or(DecodeError::NoTokens)?;
    let prob = narrow(seen.top_probability().min(1.0));
    // Masked entries have no logit to speak of: the mean runs over all, and one of minus infinity makes the divergence infinite,
    // which no model here gives.
    #[expect(clippy::cast_precision_loss, reason = "vocabularies are small")]
    let (vocab, shown) = (logits.len() as f64, seen.top.len() as f64);
    let mean_logit = logits.iter().copied().map(f64::from).sum::<f64>() / vocab;
    let mean_shown = seen.top.iter().map(|top| f64::from(top.logit)).sum::<f64>() / shown;
    Ok(BranchStep {
        token: TokenId::new(first.token),
        prob,
        top1_prob: prob,
        entropy_nats: narrow(seen.entropy_nats),
        top20_surprise_nats: narrow((seen.log_sum_exp - mean_shown).max(0.0)),
        uniform_kl_nats: narrow((seen.log_sum_exp - mean_logit - vocab.ln()).max(0.0)),
        in_answer: false,
    })
}

impl Ended {
    /// Tokens that were made, the one that ends a text among them.
    pub(super) fn made(&self) -> u32 {
        count(self.steps.len())
    }

    /// The same, had it been stopped after so many steps.
    pub(super) fn cut(&mut self, codec: &TextCodec, steps: u32) -> Result<(), TextError> {
        if self.made() <= steps {
            return Ok(());
        }
        self.steps.truncate(steps as usize);
        self.finish_reason = "stop";
        let made: Vec<u32> = self.steps.iter().map(|step| step.token.get()).collect();
        self.text = codec.decode(&made)?;
        Ok(())
    }

    /// The outcome that is stored: with the answer's tokens marked, and the verifier's view.
    pub(super) fn outcome(
        mut self,
        codec: &TextCodec,
        graded: Option<Graded>,
        verdict: Option<Verdict>,
        keep_steps: bool,
    ) -> Result<Outcome, TextError> {
        let correct = graded.as_ref().map(|graded| graded.correct);
        let answer = graded.and_then(|graded| graded.answer);
        if let Some(answer) = &answer {
            self.mark(codec, answer)?;
        }
        Ok(Outcome {
            answer,
            correct,
            finish_reason: self.finish_reason.to_owned(),
            generated: count(self.steps.len()),
            confidences: Confidences::over(&self.steps),
            steps: if keep_steps { self.steps } else { Vec::new() },
            verdict,
        })
    }

    /// Marks the steps whose text touches the last place where the answer stands.
    fn mark(&mut self, codec: &TextCodec, answer: &str) -> Result<(), TextError> {
        let Some(begin) = self.text.rfind(answer) else { return Ok(()) };
        let end = begin + answer.len();
        let tokens: Vec<u32> = self.steps.iter().map(|step| step.token.get()).collect();
        let mut before = 0;
        for (at, step) in self.steps.iter_mut().enumerate() {
            if codec.is_end(tokens[at]) {
                break;
            }
            let upto = codec.decode(&tokens[..=at])?.len();
            step.in_answer = before < end && upto > begin;
            before = upto;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_a_step_are_those_of_its_distribution() {
        // p = softmax([2, 1, 0, -1]) = 0.643914, 0.236883, 0.087144, 0.032059.
        let seen = step(&[2.0, 1.0, 0.0, -1.0]).unwrap();
        assert_eq!(seen.token.get(), 0);
        assert!((seen.prob - 0.643_914).abs() < 1e-6 && seen.prob.to_bits() == seen.top1_prob.to_bits());
        assert!((seen.entropy_nats - 0.947_537).abs() < 1e-6);
        // Fewer than 20 tokens: all of them. Mean of -ln p = 2.440190 - 0.5.
        assert!((seen.top20_surprise_nats - 1.940_19).abs() < 1e-5);
        assert!((seen.uniform_kl_nats - (1.940_19 - 1.386_294)).abs() < 1e-5);
        let even = step(&[0.5; 30]).unwrap();
        assert!(even.uniform_kl_nats.abs() < 1e-6 && (even.top20_surprise_nats - 30_f32.ln()).abs() < 1e-5);
    }
}
