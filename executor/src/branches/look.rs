//! States of prompts, and the verifier after every layer.

use std::num::NonZeroUsize;

use kvlab_sim::{
    trace::{Similarity, Verdict, VerdictLayer},
    types::TokenId,
};
use ndarray::{Array2, ArrayView2, Axis};

use super::{count, narrow};
use crate::{
    decode::{DecodeError, Decoder, Distribution, Head, Pass, Taps},
    error::ExecutorError,
};

/// States of a prompt, `[state][hidden]`: the embedding output, then after each layer.
pub(super) struct PromptStates {
    /// At the last token.
    last: Vec<Vec<f32>>,
    /// Mean over the suffix; over the prefix when there is no suffix.
    mean: Vec<Vec<f64>>,
}

impl PromptStates {
    /// Feeds a prompt to an empty decoder and reads its states; gives the logits of its last token too.
    pub(super) fn read(
        decoder: &mut Decoder<'_>,
        tokens: &[u32],
        prefix_len: usize,
        chunk: NonZeroUsize,
    ) -> Result<(Self, Vec<f32>), ExecutorError> {
        let states = decoder.config().layers + 1;
        let hidden = decoder.config().hidden;
        let begin = if prefix_len < tokens.len() { prefix_len } else { 0 };
        let mut mean = vec![vec![0.0_f64; hidden]; states];
        let taps = Taps { hidden: true, ..Taps::NONE };
        let add = |decoder: &mut Decoder<'_>, pass: &Pass| -> Result<(), DecodeError> {
            for (row, pos) in pass.positions.iter().enumerate().filter(|(_, pos)| **pos as usize >= begin) {
                let rows = state_rows(decoder, pass, row);
                debug_assert!((*pos as usize) < tokens.len());
                for (sums, state) in mean.iter_mut().zip(&rows) {
                    sums.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
                }
            }
            Ok(())
        };
        let pass = decoder.prefill(tokens, chunk, taps, add)?;
        #[expect(clippy::cast_precision_loss, reason = "prompts are short")]
        let over = (tokens.len() - begin) as f64;
        mean.iter_mut().flatten().for_each(|sum| *sum /= over);
        let last = state_rows(decoder, &pass, pass.tokens.len() - 1);
        let logits = decoder.last_logits(&pass)?;
        Ok((Self { last, mean }, logits))
    }

    /// Cosines of these states, the root's, with those of a branch.
    pub(super) fn similarity(&self, branch: &Self) -> Vec<Similarity> {
        let pairs = self.last.iter().zip(&branch.last).zip(&branch.mean);
        pairs
            .map(|((root, last), mean)| Similarity {
                cos_last: narrow(cosine(&widen(root), &widen(last))),
                cos_mean: narrow(cosine(&widen(root), mean)),
            })
            .collect()
    }
}

/// The states of one row of a pass, `[state][hidden]`.
fn state_rows(decoder: &Decoder<'_>, pass: &Pass, row: usize) -> Vec<Vec<f32>> {
    let mut states = vec![decoder.embedding(pass.tokens[row])];
    if let Some(hidden) = &pass.hidden {
        states.extend(hidden.axis_iter(Axis(0)).map(|layer| layer.row(row).to_vec()));
    }
    states
}

/// Runs the verifier's prompt and looks at its last token after every layer.
pub(super) fn verdict(
    decoder: &mut Decoder<'_>,
    prompt: &[u32],
    chunk: NonZeroUsize,
    (yes, no): (u32, u32),
) -> Result<Verdict, ExecutorError> {
    let pass = decoder.feed(prompt, chunk, Taps { hidden: true, ..Taps::NONE })?;
    let states = state_rows(decoder, &pass, pass.tokens.len() - 1);
    let (rows, hidden) = (states.len(), decoder.config().hidden);
    let stacked: Vec<f32> = states.iter().flatten().copied().collect();
    let stacked = Array2::from_shape_vec((rows, hidden), stacked)
        .map_err(|_| DecodeError::RowWidth { found: states[0].len(), expected: hidden })?;
    let vocab = decoder.config().vocab;
    let normed = decoder.head().logits(stacked.view())?;
    let raw = decoder.head().raw_logits(stacked.view())?;
    let normed: Vec<&[f32]> = normed.chunks_exact(vocab).collect();
    let raw: Vec<&[f32]> = raw.chunks_exact(vocab).collect();
    let mut looked = Looked { state: states[0].clone(), probabilities: probabilities(normed[0])? };
    let mut layers = Vec::with_capacity(rows - 1);
    for (state, (normed, raw)) in states.into_iter().zip(normed.into_iter().zip(raw)).skip(1) {
        layers.push(looked.next(state, normed, raw, (yes, no))?);
    }
    Ok(Verdict { prompt_tokens: count(prompt.len()), layers })
}

/// What was seen at the layer before.
pub(super) struct Looked {
    state: Vec<f32>,
    probabilities: Vec<f64>,
}

impl Looked {
    /// Before the first layer: the embedding of the last token.
    pub(super) fn at_start(head: &mut Head, embedding: Vec<f32>) -> Result<Self, DecodeError> {
        let logits = head.logits(row(&embedding)?)?;
        Ok(Self { probabilities: probabilities(&logits)?, state: embedding })
    }

    /// Looks at the state after one more layer.
    pub(super) fn at_layer(
        &mut self,
        head: &mut Head,
        state: Vec<f32>,
        yes_no: (u32, u32),
    ) -> Result<VerdictLayer, DecodeError> {
        let normed = head.logits(row(&state)?)?;
        let raw = head.raw_logits(row(&state)?)?;
        self.next(state, &normed, &raw, yes_no)
    }

    /// The facts of a state from its logits with and without the final norm, `[vocab]`.
    fn next(
        &mut self,
        state: Vec<f32>,
        normed: &[f32],
        raw: &[f32],
        (yes, no): (u32, u32),
    ) -> Result<VerdictLayer, DecodeError> {
        let seen = distribution(normed, 2)?;
        let share = |at: usize| {
            seen.top.get(at).map_or(0.0, |top| (f64::from(top.logit) - seen.log_sum_exp).exp().min(1.0))
        };
        let now = probabilities(normed)?;
        let facts = VerdictLayer {
            p_yes: p_yes(normed, yes, no),
            raw_p_yes: p_yes(raw, yes, no),
            entropy_nats: narrow(seen.entropy_nats),
            raw_entropy_nats: narrow(distribution(raw, 1)?.entropy_nats),
            top1: TokenId::new(seen.top.first().map_or(0, |top| top.token)),
            top1_prob: narrow(share(0)),
            top2_prob: narrow(share(1)),
            cos_previous: narrow(cosine(&widen(&self.state), &widen(&state))),
            js_previous_nats: narrow(js(&self.probabilities, &now)),
        };
        (self.state, self.probabilities) = (state, now);
        Ok(facts)
    }
}

/// A state as one row, `[1, hidden]`.
fn row(state: &[f32]) -> Result<ArrayView2<'_, f32>, DecodeError> {
    ArrayView2::from_shape((1, state.len()), state)
        .map_err(|_| DecodeError::RowWidth { found: state.len(), expected: state.len() })
}

fn distribution(logits: &[f32], top: usize) -> Result<Distribution, DecodeError> {
    Distribution::of_logits(logits, top).map_err(|why| DecodeError::Logits { row: 0, why })
}

/// The distribution of a row of logits.
fn probabilities(logits: &[f32]) -> Result<Vec<f64>, DecodeError> {
    let lse = distribution(logits, 0)?.log_sum_exp;
    Ok(logits.iter().map(|logit| (f64::from(*logit) - lse).exp()).collect())
}

/// Softmax over the two logits, of the first.
fn p_yes(logits: &[f32], yes: u32, no: u32) -> f32 {
    let (yes, no) = (f64::from(logits[yes as usize]), f64::from(logits[no as usize]));
    narrow(1.0 / (1.0 + (no - yes).exp()))
}

/// Jensen–Shannon divergence in nats.
fn js(left: &[f64], right: &[f64]) -> f64 {
    let term = |p: f64, middle: f64| if p > 0.0 { p * (p / middle).ln() } else { 0.0 };
    let both = left.iter().zip(right).map(|(a, b)| {
        let middle = 0.5 * (a + b);
        term(*a, middle) + term(*b, middle)
    });
    (0.5 * both.sum::<f64>()).clamp(0.0, std::f64::consts::LN_2)
}

/// The cosine of two vectors, 0 when one of them is nothing.
fn cosine(left: &[f64], right: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let length = (dot(left, left) * dot(right, right)).sqrt();
    if length > 0.0 { (dot(left, right) / length).clamp(-1.0, 1.0) } else { 0.0 }
}

fn widen(row: &[f32]) -> Vec<f64> {
    row.iter().copied().map(f64::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_and_divergences_of_known_vectors() {
        assert!((cosine(&[1.0, 0.0], &[1.0, 1.0]) - 0.5_f64.sqrt()).abs() < 1e-12);
        assert!((cosine(&[2.0, 1.0], &[4.0, 2.0]) - 1.0).abs() < 1e-12);
        assert!(cosine(&[0.0, 0.0], &[1.0, 1.0]).abs() < 1e-12);
        assert!(js(&[0.5, 0.5], &[0.5, 0.5]).abs() < 1e-12);
        assert!((js(&[1.0, 0.0], &[0.0, 1.0]) - std::f64::consts::LN_2).abs() < 1e-12);
        assert!((p_yes(&[0.0, 3.0, 1.0], 1, 2) - 0.880_797).abs() < 1e-6);
    }
}
