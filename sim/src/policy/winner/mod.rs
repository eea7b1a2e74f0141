//! Winner policies: which branch answers. Ties go to the earlier branch, in [`first_best`] and nowhere else.

pub mod highest_confidence;
pub mod highest_score;
pub mod majority;
pub mod score_confidence;
pub mod weighted_majority;

use super::confidence::Confidence;
use super::{PolicyError, PolicySpec};

/// A branch that may answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<'a> {
    /// The verifier's probability of yes; absent when verification was skipped.
    pub score: Option<f64>,
    /// The branch's confidence, of the kind that [`Winner::confidence`] names.
    pub confidence: f64,
    /// What it answered.
    pub answer: Option<&'a str>,
}

/// Chooses the branch that answers.
pub trait Winner: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// The confidence that it looks at.
    fn confidence(&self) -> Confidence {
        Confidence::MeanTop1Prob
    }

    /// Whether the answers of other branches matter, not only their scores and confidences.
    fn votes(&self) -> bool {
        false
    }

    /// Index of the winner, `[branch]`; nothing for no branches.
    fn choose(&self, candidates: &[Candidate<'_>]) -> Option<usize>;

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}

/// The first of the largest values; NaN never wins over a number. Nothing for no values.
#[must_use]
pub fn first_best(values: impl IntoIterator<Item = f64>) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (at, value) in values.into_iter().enumerate() {
        let is_better =
            best.is_none_or(|(_, largest)| value > largest || (largest.is_nan() && !value.is_nan()));
        if is_better {
            best = Some((at, value));
        }
    }
    best.map(|(at, _)| at)
}

/// The first branch of the answer with the largest total of `weights`; ties go to the answer that came first. Branches without an
/// answer do not vote; when none has one, the first branch is taken.
#[must_use]
pub fn vote(candidates: &[Candidate<'_>], weights: impl Fn(&Candidate<'_>) -> f64) -> Option<usize> {
    let total = |answer: &str| {
        candidates
            .iter()
            .filter(|c| c.answer == Some(answer))
            .map(&weights)
            .fold(0.0, |sum, weight| sum + weight)
    };
    let totals = candidates.iter().map(|c| c.answer.map_or(f64::NEG_INFINITY, total));
    first_best(totals)
}

/// What stands for a missing score or confidence, as coded in RKSC.
pub const UNKNOWN: f64 = 0.5;

/// Refuses a confidence that is not between 0 and 1.
pub(crate) fn check_share(policy: &'static str, confidence: Confidence) -> Result<(), PolicyError> {
    if confidence.is_share() {
        return Ok(());
    }
    Err(PolicyError::OutOfRange {
        kind: policy,
        param: "confidence",
        found: format!("{confidence:?}, which is not between 0 and 1"),
        accepted: "mean-top1-prob, geometric-mean-prob, min-prob, majority-share",
    })
}
