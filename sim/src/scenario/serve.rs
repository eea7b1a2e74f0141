//! The serving study of a scenario: problems by their sizes, arms that serve them in different ways, and what was published about it.

use super::ScenarioErrorKind;
use super::checked::value;
use super::raw::RawServe;
use crate::cost::{self, BatchCost};
use crate::policy::RawParams;
use crate::serve::{Arrivals, BranchDecisions, PartialPass, ProblemDecisions, ServeSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Arms over one set of generated problems.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeStudy {
    pub(super) cost_id: String,
    pub(super) cost_params: RawParams,
    /// The problems.
    pub problems: ProblemSizes,
    /// When they arrive.
    pub arrivals: Arrivals,
    /// Label of the arm that speed-ups are over.
    pub baseline: String,
    /// The ways of serving.
    pub arms: Vec<Arm>,
    /// What was published, and how the arms answer it.
    pub claims: Vec<Claim>,
}

/// Sizes of generated problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProblemSizes {
    /// Problems.
    pub count: u32,
    /// Least and most tokens of the root prefix; problems are spread evenly over the range.
    pub root_tokens: [u32; 2],
    /// Tokens of a branch's own suffix.
    pub suffix_tokens: u32,
    /// Branches of a problem.
    pub branches: u32,
    /// Tokens that a branch generates.
    pub generated_tokens: u32,
    /// Tokens of the verifier's prompt for a branch.
    pub verify_tokens: u32,
}

/// One way of serving the problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name.
    pub label: String,
    /// Share of the branches that take over the root's prefix.
    #[serde(default)]
    pub reuse: f64,
    /// What a branch computes to decide about taking over; absent for nothing.
    #[serde(default)]
    pub gate: Option<Gate>,
    /// Share of the problems that are verified.
    #[serde(default = "whole")]
    pub verify: f64,
    /// Tokens of the verifier's prompt for a branch; absent for the problems'.
    #[serde(default)]
    pub verify_tokens: Option<u32>,
    /// Share of the layers that the verifier runs.
    #[serde(default = "whole")]
    pub verify_layers: f64,
    /// Decode-level exit; absent for none.
    #[serde(default)]
    pub decode_exit: Option<DecodeExit>,
    /// Tokens that a branch generates; absent for the problems'.
    #[serde(default)]
    pub generated_tokens: Option<u32>,
    /// How it is served.
    #[serde(default)]
    pub serve: ServeSettings,
}

/// Where the states come from that a gate compares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Share of the layers that are run for it.
    pub layers: f64,
    /// Whether the whole prompt of the branch is run, or only its suffix.
    pub span: Span,
}

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Span {
    /// Prefix and suffix.
    Prompt,
    /// The suffix.
    Suffix,
}

/// All branches of a problem stop early.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecodeExit {
    /// Share of the problems in which it happens: those that are not verified first.
    pub rate: f64,
    /// Tokens generated when it happens.
    pub tokens: u32,
}

/// Something that was published, and what the arms make of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What was measured, in words.
    pub what: String,
    /// The published figure, as published.
    pub published: String,
    /// The same under the published protocol.
    #[serde(default)]
    pub as_published: Option<Measure>,
    /// The same without the protocol's defects.
    #[serde(default)]
    pub corrected: Option<Measure>,
    /// Why they differ, or why something cannot be reproduced here.
    pub why: String,
}

/// A figure that follows from arms, or from arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Measure {
    /// Mean latency of one arm over that of another.
    Speedup {
        /// The faster one.
        of: String,
        /// What it is compared with.
        over: String,
    },
    /// Weights and the most blocks ever held, GiB.
    PeakGib {
        /// The arm.
        arm: String,
    },
    /// Mean latency, milliseconds.
    Millis {
        /// The arm.
        arm: String,
    },
    /// A count over a count, with its 95 % Wilson interval.
    Share {
        /// Numerator.
        num: u64,
        /// Denominator.
        den: u64,
    },
}

/// Most tokens of any part of a problem.
const MOST_TOKENS: u32 = 1 << 20;

fn whole() -> f64 {
    1.0
}

impl ServeStudy {
    /// The cost model.
    ///
    /// # Errors
    /// When its parameters do not fit.
    pub fn cost(&self) -> Result<Box<dyn BatchCost>, cost::CostError> {
        (cost::cost(&self.cost_id)?.build)(&self.cost_params)
    }

    /// What `arm` decides for each problem. `layers` are those of the model.
    #[must_use]
    pub fn decisions(&self, arm: &Arm, layers: u16) -> Vec<ProblemDecisions> {
        let sizes = &self.problems;
        (0..sizes.count).map(|at| self.problem(arm, layers, at)).collect()
    }

    fn problem(&self, arm: &Arm, layers: u16, at: u32) -> ProblemDecisions {
        let ProblemSizes {
            count,
            root_tokens: [low, high],
            suffix_tokens,
            branches,
            generated_tokens,
            verify_tokens,
        } = self.problems;
        // 37 is coprime to most counts: neighbours differ in length, and the whole range is covered.
        let step = u64::from(at) * 37 % u64::from(count.max(1));
        let root_tokens = low
            + u32::try_from(u64::from(high - low) * step / u64::from(count.saturating_sub(1).max(1)))
                .unwrap_or(0);
        let is_verified = !chosen(1.0 - arm.verify, at);
        let asked = arm.generated_tokens.unwrap_or(generated_tokens);
        let generated_tokens = match arm.decode_exit {
            Some(exit) if chosen(exit.rate, at) => asked.min(exit.tokens),
            _ => asked,
        };
        let verify = is_verified.then(|| PartialPass {
            tokens: arm.verify_tokens.unwrap_or(verify_tokens),
            layers: share_of(arm.verify_layers, layers),
            heads: 1,
        });
        let prompt_tokens = root_tokens + suffix_tokens;
        let gate = arm.gate.map(|gate| PartialPass {
            tokens: if gate.span == Span::Prompt { prompt_tokens } else { suffix_tokens },
            layers: share_of(gate.layers, layers),
            heads: 0,
        });
        let branch = |index: u32| BranchDecisions {
            parent: None,
            prompt_tokens,
            reused_tokens: if chosen(arm.reuse, index) { root_tokens } else { 0 },
            gate,
            generated_tokens,
            verify,
        };
        ProblemDecisions {
            item: at.to_string(),
            root_tokens,
            branches: (0..branches).map(branch).collect(),
            winner: (branches > 0).then_some(0),
        }
    }
}

/// Whether number `at` of an even spread with this share is one of the chosen: after n numbers, ⌊share · n⌋ are.
fn chosen(share: f64, at: u32) -> bool {
    // A hair more, so that shares like 1 - 0.58 give what they mean.
    let upto = |n: u32| (share * f64::from(n) + 1e-9).floor();
    upto(at + 1) > upto(at)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a 16-bit number")]
fn share_of(share: f64, layers: u16) -> u16 {
    (share * f64::from(layers)).ceil() as u16
}

pub(super) fn checked(raw: RawServe) -> Result<ServeStudy, ScenarioErrorKind> {
    let RawServe { cost, problems, arrivals, baseline, arms, claims } = raw;
    for (path, found, low, high) in [
        ("serve.problems.count", problems.count, 1, 100_000),
        ("serve.problems.root_tokens", problems.root_tokens[0], 0, problems.root_tokens[1]),
        ("serve.problems.root_tokens", problems.root_tokens[1], 0, MOST_TOKENS),
        ("serve.problems.suffix_tokens", problems.suffix_tokens, 1, MOST_TOKENS),
        ("serve.problems.branches", problems.branches, 1, 4096),
        ("serve.problems.generated_tokens", problems.generated_tokens, 1, MOST_TOKENS),
        ("serve.problems.verify_tokens", problems.verify_tokens, 0, MOST_TOKENS),
    ] {
        if !(low..=high).contains(&found) {
            return Err(value(path, &found.to_string(), &format!("{low} to {high}")));
        }
    }
    if let Arrivals::Poisson { per_second, .. } = arrivals
        && !(per_second > 0.0 && per_second.is_finite())
    {
        return Err(value("serve.arrivals.poisson.per_second", &per_second.to_string(), "more than 0"));
    }
    if let Arrivals::Recorded { millis } = &arrivals
        && (millis.is_empty() || !millis.is_sorted())
    {
        return Err(value("serve.arrivals.millis", &format!("{millis:?}"), "rising times, at least one"));
    }
    if arms.is_empty() {
        return Err(value("serve.arms", "an empty list", "at least one arm"));
    }
    for (at, arm) in arms.iter().enumerate() {
        let path = format!("serve.arms[{at}]");
        if arms[..at].iter().any(|other| other.label == arm.label) {
            return Err(value(
                &format!("{path}.label"),
                &format!("`{}` twice", arm.label),
                "each label once",
            ));
        }
        let shares = [("reuse", arm.reuse), ("verify", arm.verify), ("verify_layers", arm.verify_layers)];
        let gate = arm.gate.map_or(0.0, |gate| gate.layers);
        let exit = arm.decode_exit.map_or(0.0, |exit| exit.rate);
        for (key, share) in shares.into_iter().chain([("gate.layers", gate), ("decode_exit.rate", exit)]) {
            if !(0.0..=1.0).contains(&share) {
                return Err(value(&format!("{path}.{key}"), &share.to_string(), "0 to 1"));
            }
        }
        let scheduler = arm.serve.scheduler;
        for (key, found, low, high) in [
            ("generated_tokens", arm.generated_tokens, 1, MOST_TOKENS),
            ("verify_tokens", arm.verify_tokens, 0, MOST_TOKENS),
            ("serve.scheduler.block_tokens", Some(scheduler.block_tokens), 1, u32::MAX),
            ("serve.scheduler.batch_tokens", scheduler.batch_tokens, 1, u32::MAX),
            ("serve.scheduler.batch_rows", scheduler.batch_rows, 1, u32::MAX),
            ("serve.scheduler.prefill_chunk", scheduler.prefill_chunk, 1, u32::MAX),
        ] {
            if let Some(found) = found.filter(|found| !(low..=high).contains(found)) {
                return Err(value(&format!("{path}.{key}"), &found.to_string(), &format!("{low} to {high}")));
            }
        }
        if let Some(cut) = arm.serve.eviction.filter(|cut| cut.budget == 0 || cut.period == 0) {
            let found = format!("budget {} and period {}", cut.budget, cut.period);
            return Err(value(&format!("{path}.serve.eviction"), &found, "1 or more of both"));
        }
    }
    let labels: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
    let known = |path: &str, label: &str| {
        if labels.contains(&label) {
            return Ok(());
        }
        Err(value(path, &format!("`{label}`"), &labels.join(", ")))
    };
    known("serve.baseline", &baseline)?;
    for (at, claim) in claims.iter().enumerate() {
        let path = format!("serve.claims[{at}]");
        for measure in claim.as_published.iter().chain(&claim.corrected) {
            match measure {
                Measure::Speedup { of, over } => {
                    known(&path, of)?;
                    known(&path, over)?;
                }
                Measure::PeakGib { arm } | Measure::Millis { arm } => known(&path, arm)?,
                Measure::Share { num, den } if num > den || *den == 0 => {
                    return Err(value(&path, &format!("{num} of {den}"), "a part of something"));
                }
                Measure::Share { .. } => {}
            }
        }
    }
    let study = ServeStudy {
        cost_id: cost.kind,
        cost_params: cost.params,
        problems,
        arrivals,
        baseline,
        arms,
        claims,
    };
    study.check_cost()?;
    Ok(study)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_spread_has_exactly_its_share() {
        for (share, of, expected) in
            [(0.42, 50, 21), (0.92, 50, 46), (0.0, 50, 0), (1.0, 50, 50), (1.0 - 0.58, 50, 21)]
        {
            let count = (0..of).filter(|&at| chosen(share, at)).count();
            assert_eq!(count, expected, "{share}");
        }
    }
}
