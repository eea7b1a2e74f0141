//! Stop decoding all branches when one is sure and ahead: RKSC's decode-level exit, a switch of its own and off by default.

use crate::num;
use crate::policy::PolicyError;
use crate::policy::exit::check_range;
use crate::trace::{Confidences, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When decoding stops for all branches at once.
///
/// After a step t ≥ `min_steps` (counted from 0) the means over steps 0 to t of the largest probability are compared; when the largest mean is at least
/// `confidence` and leads the second by `relative_lead` of itself, every branch stops. Code: AnirudhSekar/RKSC `rksc.ipynb`; in neither the paper's
/// abstract nor its text. Branches that ended earlier keep the mean of their own steps, where the code goes on stepping them.
///
/// The stop and the steps saved are exact. What a cut branch would have answered is known when its whole answer had been written; what
/// the verifier would say of a cut text was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DecodeExit {
    /// First zero-based step after which decoding may stop.
    pub min_steps: u32,
    /// Smallest mean probability of the leading branch.
    pub confidence: f64,
    /// Smallest lead as a share of the leading mean.
    pub relative_lead: f64,
}

impl Default for DecodeExit {
    fn default() -> Self {
        Self { min_steps: 3, confidence: 0.72, relative_lead: 0.10 }
    }
}

/// A branch whose decoding was stopped.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut {
    /// Steps that it made.
    pub(super) steps: u32,
    /// Its confidences over them.
    pub(super) confidences: Confidences,
    /// Whether it was stopped before its end.
    pub(super) is_shorter: bool,
    /// Whether its whole answer had been written: the answer is then the recorded one.
    pub(super) has_answer: bool,
}

impl DecodeExit {
    /// # Errors
    /// When a threshold is no number.
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        check_range("decode-exit", "confidence", self.confidence, (0.0, 1e9), "0 or more")?;
        check_range("decode-exit", "relative_lead", self.relative_lead, (0.0, 1e9), "0 or more")
    }

    /// Steps after which all branches stop; nothing when they run to their ends, or for a single branch.
    ///
    /// # Errors
    /// When a branch has no recorded steps.
    pub fn stops_after(&self, outcomes: &[&Outcome]) -> Result<Option<u32>, PolicyError> {
        if outcomes.iter().any(|outcome| outcome.steps.is_empty() && outcome.generated > 0) {
            let what = "the branches' decoding steps (record with steps)";
            return Err(PolicyError::Missing { policy: "decode-exit", what });
        }
        let longest = outcomes.iter().map(|outcome| outcome.steps.len()).max().unwrap_or(0);
        if outcomes.len() < 2 {
            return Ok(None);
        }
        let mut sums = vec![0.0; outcomes.len()];
        for step in 0..longest {
            let means: Vec<f64> = (outcomes.iter().zip(&mut sums))
                .map(|(outcome, sum)| {
                    if let Some(facts) = outcome.steps.get(step) {
                        *sum += f64::from(facts.top1_prob);
                    }
                    mean(*sum, outcome.steps.len().min(step + 1))
                })
                .collect();
            let Some((top, Some(second))) = crate::policy::confidence::top_two(&means) else { continue };
            let lead = (top - second) / top.max(1e-6);
            if step >= self.min_steps as usize && top >= self.confidence && lead >= self.relative_lead {
                return Ok(u32::try_from(step + 1).ok().filter(|&made| (made as usize) < longest));
            }
        }
        Ok(None)
    }
}

#[expect(clippy::cast_precision_loss, reason = "steps are few")]
fn mean(sum: f64, count: usize) -> f64 {
    if count == 0 { 0.0 } else { sum / count as f64 }
}

impl Cut {
    /// An outcome after `steps` steps.
    pub(super) fn of(outcome: &Outcome, steps: u32) -> Self {
        let kept = &outcome.steps[..outcome.steps.len().min(steps as usize)];
        let rest = &outcome.steps[kept.len()..];
        Self {
            steps: num::count(kept.len()),
            confidences: Confidences::over(kept),
            is_shorter: !rest.is_empty(),
            has_answer: outcome.answer.is_some()
                && kept.iter().any(|step| step.in_answer)
                && !rest.iter().any(|step| step.in_answer),
        }
    }
}
