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

/// The steps that a confidence is over: `steps`, `answer`, `tail:N`, `lowest-window:N` or `bottom-windows:N`. C7 is any of C1 to C6 over the steps of the
/// answer. With C5 the last three are DeepConf's tail, lowest-group and bottom-tenth confidences (Fu et al. 2025, arXiv 2508.15260), whose windows have 2048 steps;
/// a branch with fewer steps than N is one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Over {
    /// Every step.
    #[default]
    Steps,
    /// The steps whose text belongs to the answer; without any, the lowest possible confidence.
    Answer,
    /// The last so many steps.
    Tail(u32),
    /// The least sure of all windows of so many steps in a row.
    LowestWindow(u32),
    /// The mean over the least sure tenth of these windows, at least one.
    BottomWindows(u32),
}

impl TryFrom<String> for Over {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (word, steps) =
            text.split_once(':').map_or((text.as_str(), None), |(word, steps)| (word, Some(steps)));
        let steps =
            steps.map(|steps| steps.parse::<u32>().ok().filter(|steps| (1..=1_000_000).contains(steps)));
        match (word, steps) {
            ("steps", None) => Ok(Self::Steps),
            ("answer", None) => Ok(Self::Answer),
            ("tail", Some(Some(steps))) => Ok(Self::Tail(steps)),
            ("lowest-window", Some(Some(steps))) => Ok(Self::LowestWindow(steps)),
            ("bottom-windows", Some(Some(steps))) => Ok(Self::BottomWindows(steps)),
            _ => Err(format!(
                "over is `{text}`; accepted: `steps`, `answer`, `tail:N`, `lowest-window:N`, `bottom-windows:N` with N from 1 to 1000000 steps"
            )),
        }
    }
}

impl From<Over> for String {
    fn from(over: Over) -> Self {
        match over {
            Over::Steps => "steps".to_owned(),
            Over::Answer => "answer".to_owned(),
            Over::Tail(steps) => format!("tail:{steps}"),
            Over::LowestWindow(steps) => format!("lowest-window:{steps}"),
            Over::BottomWindows(steps) => format!("bottom-windows:{steps}"),
        }
    }
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
    /// When it is over some of the steps and a branch has no recorded ones.
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
        if over == Over::Steps {
            return Ok(self.read(&outcome.confidences));
        }
        let steps = &outcome.steps;
        if steps.is_empty() && outcome.generated > 0 {
            let what = "the branches' decoding steps (record with steps)";
            return Err(PolicyError::Missing { policy, what });
        }
        let mut windows = match over {
            Over::Steps => Vec::new(),
            Over::Answer => {
                let mut answer = steps.iter().filter(|step| step.in_answer).peekable();
                if answer.peek().is_some() { vec![self.read(&Confidences::over(answer))] } else { Vec::new() }
            }
            Over::Tail(_) if steps.is_empty() => Vec::new(),
            Over::Tail(width) => {
                vec![self.read(&Confidences::over(&steps[steps.len().saturating_sub(width as usize)..]))]
            }
            Over::LowestWindow(width) | Over::BottomWindows(width) => {
                let width = (width as usize).min(steps.len()).max(1);
                steps.windows(width).map(|window| self.read(&Confidences::over(window))).collect()
            }
        };
        if windows.is_empty() {
            return Ok(if self.is_share() { 0.0 } else { f64::NEG_INFINITY });
        }
        windows.sort_unstable_by(f64::total_cmp);
        let lowest = if matches!(over, Over::BottomWindows(_)) { (windows.len() / 10).max(1) } else { 1 };
        #[expect(clippy::cast_precision_loss, reason = "windows are few")]
        let mean = windows[..lowest].iter().sum::<f64>() / lowest as f64;
        Ok(mean)
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
