//! Decoding one branch greedily, with the facts of every step.

use std::num::NonZeroUsize;

use kvlab_sim::{
    trace::{BranchStep, Confidences, Outcome, Verdict},
    types::TokenId,
};

use super::{count, narrow};
use crate::{
    decode::{DecodeError, Decoder, Distribution, Taps},
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
        let (mut steps, mut made) = (Vec::new(), Vec::new());
        let mut finish_reason = "length";
        while made.len() < self.most as usize {
            let step = step(&logits)?;
            let token = step.token.get();
            steps.push(step);
            if self.codec.is_end(token) {
                finish_reason = "eos";
                break;
            }
            made.push(token);
            if says_any(self.codec, &made, stops)? {
                finish_reason = "stop";
                break;
            }
            if made.len() < self.most as usize {
                let pass = self.decoder.forward(&[token], Taps::NONE)?;
                logits = self.decoder.last_logits(&pass)?;
            }
        }
        let text = self.codec.decode(&made)?;
        Ok(Ended { steps, finish_reason, text })
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
