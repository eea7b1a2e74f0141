//! How sure a branch is of what it wrote: C1 to C8, and over which of its steps.

use super::PolicyError;
use crate::trace::{Confidences, Outcome};
use serde::{Deserialize, Serialize};

/// A confidence of a branch. Higher is surer for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// C1: mean over steps of the largest probability (RKSC).
    #[default]
    MeanTop1Prob,
    /// C2: geometric mean of the probabilities of the tokens taken (DEER, default of its Qwen 3 script).
    GeometricMeanProb,
    /// C3: smallest probability of a token taken (DEER, `min`).
    MinProb,
    /// C4: minus the mean entropy, nats.
    NegativeMeanEntropy,
    /// C5: mean over steps of −ln p averaged over the 20 most likely tokens, nats (DeepConf's token confidence).
    MeanTop20Surprise,
    /// C6: mean KL divergence from the uniform distribution, nats (self-certainty).
    SelfCertainty,
    /// C8: share of the branches with the same answer; 0 without an answer (self-consistency).
    MajorityShare,
}

/// The steps that a confidence is over. C7 is any of C1 to C6 over the steps of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// Every step.
    #[default]
    Steps,
    /// The steps whose text belongs to the answer; without any, the lowest possible confidence.
    Answer,
}

impl Confidence {
    /// Whether it lies between 0 and 1, so that a square root and a missing score of 0.5 make sense beside it.
    #[must_use]
    pub fn is_share(self) -> bool {
        !matches!(self, Self::NegativeMeanEntropy | Self::MeanTop20Surprise | Self::SelfCertainty)
    }

    /// Its value for each of `outcomes`, the branches of one problem, `[branch]`.
    ///
    /// # Errors
    /// When it is over the answer's steps and a branch has no recorded steps.
    pub fn of(
        self,
        policy: &'static str,
        over: Over,
        outcomes: &[&Outcome],
    ) -> Result<Vec<f64>, PolicyError> {
        if self == Self::MajorityShare {
            return Ok(majority_shares(outcomes));
        }
        outcomes.iter().map(|outcome| self.of_branch(policy, over, outcome)).collect()
    }

    fn of_branch(self, policy: &'static str, over: Over, outcome: &Outcome) -> Result<f64, PolicyError> {
        let confidences = match over {
            Over::Steps => outcome.confidences,
            Over::Answer if outcome.steps.is_empty() && outcome.generated > 0 => {
                return Err(PolicyError::Missing {
                    policy,
                    what: "the branches' decoding steps (record with steps)",
                });
            }
            Over::Answer => {
                let mut answer = outcome.steps.iter().filter(|step| step.in_answer).peekable();
                if answer.peek().is_none() {
                    return Ok(if self.is_share() { 0.0 } else { f64::NEG_INFINITY });
                }
                Confidences::over(answer)
            }
        };
        Ok(self.read(&confidences))
    }

    /// Its value among confidences; that of the whole group is not there and reads as 0.
    #[must_use]
    pub fn read(self, confidences: &Confidences) -> f64 {
        f64::from(match self {
            Self::MeanTop1Prob => confidences.mean_top1_prob,
            Self::GeometricMeanProb => confidences.geometric_mean_prob,
            Self::MinProb => confidences.min_prob,
            Self::NegativeMeanEntropy => -confidences.mean_entropy_nats,
            Self::MeanTop20Surprise => confidences.mean_top20_surprise_nats,
            Self::SelfCertainty => confidences.mean_uniform_kl_nats,
            Self::MajorityShare => 0.0,
        })
    }
}

/// For each branch, the share of branches with its answer.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "branches are few")]
pub fn majority_shares(outcomes: &[&Outcome]) -> Vec<f64> {
    let share = |outcome: &&Outcome| {
        let Some(answer) = &outcome.answer else { return 0.0 };
        let votes = outcomes.iter().filter(|other| other.answer.as_ref() == Some(answer)).count();
        votes as f64 / outcomes.len() as f64
    };
    outcomes.iter().map(share).collect()
}

/// Largest and second largest; the second of one branch is absent. NaN never leads.
#[must_use]
pub fn top_two(confidences: &[f64]) -> Option<(f64, Option<f64>)> {
    let mut best: Option<(f64, Option<f64>)> = None;
    for &value in confidences.iter().filter(|value| !value.is_nan()) {
        best = Some(match best {
            None => (value, None),
            Some((top, _)) if value > top => (value, Some(top)),
            Some((top, second)) => {
                (top, Some(second.map_or(value, |second| if value > second { value } else { second })))
            }
        });
    }
    best
}
