//! Branch trees: the facts that prefix sharing, verify skip and layer exit are replayed from, without a tensor.
//!
//! A problem is a tree of prompts. Branch 0 is the root prefix; every other branch has its own wording of the prefix and a
//! suffix. What a policy may choose is recorded both ways: each branch decoded behind its own prefix and behind the
//! root's, and the verifier's view of each outcome after every layer. So every threshold has an exact replay.

mod decode;
mod encode;
mod verify;

pub(crate) use decode::problem;
pub(crate) use encode::{BranchRows, count, tables};
pub(crate) use verify::check;

use crate::num;
use crate::types::{SeqIdx, TokenId};
use serde::{Deserialize, Serialize};

/// Which prefix a branch was decoded behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefix {
    /// Its own wording.
    Own,
    /// The root's: what a branch gets when its prefix is shared.
    Root,
}

impl Prefix {
    /// Both, in the order of the tables.
    pub const ALL: [Self; 2] = [Self::Own, Self::Root];

    /// The spelling in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Root => "root",
        }
    }
}

/// One problem and its tree of branches.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Its id; the unit that bootstrap intervals resample.
    pub item: String,
    /// The right answer, where there is one.
    pub expected_answer: Option<String>,
    /// The branches; 0 is the root, and every other one comes after its parent.
    pub branches: Vec<Branch>,
}

/// One branch of a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// The branch it grows from; absent for the root only.
    pub parent: Option<u32>,
    /// The recorded sequence whose prompt this is, if there is one.
    pub seq: Option<SeqIdx>,
    /// Template of the prefix; the root's is 0.
    pub wording: u32,
    /// How far the wording is from the root's: 0 identical, 1 minor rewording, 2 other structure, 3 other framing.
    pub wording_level: u32,
    /// Hint in the suffix, if there is one.
    pub hint: Option<u32>,
    /// Tokens of the prompt that are prefix; the rest is suffix.
    pub prefix_len: u32,
    /// The branch's own prompt, prefix and suffix.
    pub tokens: Vec<TokenId>,
    /// Cosines to the root's states, `[state]`: 0 for the embedding output, `s` for after layer `s - 1`. Empty for the root,
    /// and when the trace holds none.
    pub similarity: Vec<Similarity>,
    /// Decoded behind its own prefix.
    pub own: Option<Outcome>,
    /// Decoded behind the root's prefix.
    pub root: Option<Outcome>,
}

/// Cosines between states of the root prompt and of a branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// The last prompt token of each.
    pub cos_last: f32,
    /// The root's last token with the mean over the branch's suffix; over the prefix when there is no suffix.
    pub cos_mean: f32,
}

/// What came of decoding a branch.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The answer found.
    pub answer: Option<String>,
    /// Whether it is the expected one; absent when none is known.
    pub correct: Option<bool>,
    /// Why generation stopped: `eos`, `length` or `stop`.
    pub finish_reason: String,
    /// Tokens generated.
    pub generated: u32,
    /// Confidences over the steps.
    pub confidences: Confidences,
    /// The steps, one a generated token; empty when the trace holds none.
    pub steps: Vec<BranchStep>,
    /// The verifier on this outcome, when it was run.
    pub verdict: Option<Verdict>,
}

/// One decoding step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchStep {
    /// The token taken.
    pub token: TokenId,
    /// Its probability.
    pub prob: f32,
    /// The largest probability.
    pub top1_prob: f32,
    /// Entropy of the distribution, nats.
    pub entropy_nats: f32,
    /// Mean of −ln p over the 20 most likely tokens (all of them when there are fewer), nats.
    pub top20_surprise_nats: f32,
    /// KL divergence from the uniform distribution to this one, nats.
    pub uniform_kl_nats: f32,
    /// Whether the token belongs to the answer found.
    pub in_answer: bool,
}

/// Confidences C1 to C6 of an outcome. Higher is surer for all but `mean_entropy_nats`, whose negative is C4.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Confidences {
    /// C1: mean of the largest probability.
    pub mean_top1_prob: f32,
    /// C2: exp of the mean log-probability of the token taken.
    pub geometric_mean_prob: f32,
    /// C3: smallest probability of a token taken.
    pub min_prob: f32,
    /// Mean entropy, nats.
    pub mean_entropy_nats: f32,
    /// C5: mean of [`BranchStep::top20_surprise_nats`].
    pub mean_top20_surprise_nats: f32,
    /// C6: mean of [`BranchStep::uniform_kl_nats`].
    pub mean_uniform_kl_nats: f32,
}

impl Confidences {
    /// Confidences over steps, summed in their order in binary64; all 0 for none.
    ///
    /// C7 is the same over the steps that are `in_answer`.
    #[must_use]
    pub fn over<'a>(steps: impl IntoIterator<Item = &'a BranchStep>) -> Self {
        let (mut count, mut sums, mut least) = (0_u32, [0.0_f64; 5], f32::INFINITY);
        for step in steps {
            count += 1;
            least = least.min(step.prob);
            let terms = [
                f64::from(step.top1_prob),
                num::ln(f64::from(step.prob).max(f64::from(f32::MIN_POSITIVE))),
                f64::from(step.entropy_nats),
                f64::from(step.top20_surprise_nats),
                f64::from(step.uniform_kl_nats),
            ];
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum += term;
            }
        }
        if count == 0 {
            return Self::default();
        }
        let [top1, ln_prob, entropy, surprise, kl] = sums.map(|sum| narrow(sum / f64::from(count)));
        Self {
            mean_top1_prob: top1,
            geometric_mean_prob: num::exp(ln_prob),
            min_prob: least,
            mean_entropy_nats: entropy,
            mean_top20_surprise_nats: surprise,
            mean_uniform_kl_nats: kl,
        }
    }
}

/// The verifier's prompt and its view after every layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// After each layer, `[layer]`, at the prompt's last position. The last one, with the final norm, is the model's own.
    pub layers: Vec<VerdictLayer>,
}

/// The verifier after one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VerdictLayer {
    /// Softmax over the yes and no logits, with the final norm.
    pub p_yes: f32,
    /// The same without the final norm.
    pub raw_p_yes: f32,
    /// Entropy over the vocabulary in nats, with the final norm.
    pub entropy_nats: f32,
    /// The same without the final norm.
    pub raw_entropy_nats: f32,
    /// The largest logit's token, with the final norm; ties go to the lower id.
    pub top1: TokenId,
    /// Its probability.
    pub top1_prob: f32,
    /// The second largest probability.
    pub top2_prob: f32,
    /// Cosine with the state before the layer.
    pub cos_previous: f32,
    /// Jensen–Shannon divergence to the distribution before the layer, nats.
    pub js_previous_nats: f32,
}

impl Problem {
    /// The number of edges between a branch and the root. Parents come before their children.
    #[must_use]
    pub fn depths(&self) -> Vec<u32> {
        let mut depths: Vec<u32> = Vec::with_capacity(self.branches.len());
        for branch in &self.branches {
            let depth =
                branch.parent.and_then(|parent| depths.get(parent as usize)).map_or(0, |depth| depth + 1);
            depths.push(depth);
        }
        depths
    }
}

impl Branch {
    /// What came of decoding it behind `prefix`.
    #[must_use]
    pub fn outcome(&self, prefix: Prefix) -> Option<&Outcome> {
        match prefix {
            Prefix::Own => self.own.as_ref(),
            Prefix::Root => self.root.as_ref(),
        }
    }

    /// SHA-256 (hex) of the prompt's ids as little-endian 32-bit numbers.
    #[must_use]
    pub fn prompt_sha256(&self) -> String {
        let bytes: Vec<u8> = self.tokens.iter().flat_map(|token| token.get().to_le_bytes()).collect();
        super::folder::sha256(&bytes)
    }
}

/// Which branch facts a trace stores, and what holds for all of them. Branches, their prompts and outcomes are always stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredBranches {
    /// Whether cosines to the root's states are stored.
    pub similarity: bool,
    /// Whether decoding steps are stored.
    pub steps: bool,
    /// Whether the verifier's view after each layer is stored.
    pub verdicts: bool,
    /// Vocabulary id of the verifier's yes.
    pub yes_token: Option<u32>,
    /// Vocabulary id of the verifier's no.
    pub no_token: Option<u32>,
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to binary32 is wanted")]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidences_are_those_of_their_definitions() {
        let step = |prob: f32, top1_prob: f32, entropy_nats: f32| BranchStep {
            token: TokenId::new(0),
            prob,
            top1_prob,
            entropy_nats,
            top20_surprise_nats: 3.0,
            uniform_kl_nats: 2.0,
            in_answer: false,
        };
        let found = Confidences::over(&[step(0.5, 0.5, 1.0), step(0.125, 0.75, 0.5)]);
        assert!((found.mean_top1_prob - 0.625).abs() < 1e-7);
        assert!((found.geometric_mean_prob - 0.25).abs() < 1e-6, "{}", found.geometric_mean_prob);
        assert_eq!((found.min_prob, found.mean_entropy_nats), (0.125, 0.75));
        assert_eq!((found.mean_top20_surprise_nats, found.mean_uniform_kl_nats), (3.0, 2.0));
        assert_eq!(Confidences::over(&[]), Confidences::default());
    }
}
