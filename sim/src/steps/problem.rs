//! One problem under any setting.

use super::{Counts, Setting};
use crate::policy::verify::cgee::{self, Lead};
use crate::policy::winner::{Candidate, Winner};
use crate::trees::Work;

/// A verified outcome: where its pass may stop, and what the verifier says there.
#[derive(Clone, Debug, Default)]
pub(super) struct ExitPoints {
    /// In the order of layers; none that an earlier one makes impossible.
    pub(super) early: Vec<ExitPoint>,
    /// Layers run and score where none of them is taken.
    pub(super) last: (u16, f64),
    /// Layers of the model.
    pub(super) layers: u16,
    /// Prompt of the verifier.
    pub(super) tokens: u32,
    /// Whether the verifier says yes at the last layer, with the final norm.
    pub(super) full_says_yes: bool,
}

/// A layer after which a pass stops when θ is above `entropy` and ε above `change`, unless it stopped before.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExitPoint {
    pub(super) layers_run: u16,
    pub(super) score: f64,
    /// Nats.
    pub(super) entropy: f64,
    /// Largest of the last changes that count, nats.
    pub(super) change: f64,
}

impl ExitPoints {
    /// Layers run and score at thresholds in nats.
    pub(super) fn stop(&self, theta: f64, epsilon: f64) -> (u16, f64) {
        let first = self.early.iter().find(|point| point.entropy < theta && point.change < epsilon);
        first.map_or(self.last, |point| (point.layers_run, point.score))
    }
}

/// Right, agreeing, harmed, helped, as bits of one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict(pub(super) u8);

impl Verdict {
    pub(super) const CORRECT: u8 = 1;
    pub(super) const AGREES: u8 = 2;
    pub(super) const HARMED: u8 = 4;
    pub(super) const HELPED: u8 = 8;

    /// The bits as they are counted, 16 apart from each other.
    pub(super) fn spread(self) -> u64 {
        let bit = |mask: u8, at: u32| u64::from(self.0 & mask != 0) << at;
        bit(Self::CORRECT, 0) | bit(Self::AGREES, 16) | bit(Self::HARMED, 32) | bit(Self::HELPED, 48)
    }

    fn add_to(self, counts: &mut Counts) {
        let bit = |mask: u8| u64::from(self.0 & mask != 0);
        counts.correct += bit(Self::CORRECT);
        counts.agreeing += bit(Self::AGREES);
        counts.harmed += bit(Self::HARMED);
        counts.helped += bit(Self::HELPED);
    }
}

/// What a branch answers, and whether that is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Index into [`ProblemFacts::answers`].
    pub(super) answer: Option<usize>,
    pub(super) correct: Option<bool>,
}

/// What the branches of a problem are like for all τ between two neighbouring similarities.
#[derive(Debug)]
pub(super) struct Composition {
    /// Branches behind the root's prefix.
    pub(super) shared: u32,
    /// Work on the branches' prompts.
    pub(super) prompts: Work,
    /// The surest branch and its lead; nothing for a single branch.
    pub(super) lead: Option<Lead>,
    /// What a verify policy without thresholds decides.
    pub(super) fixed_skip: Option<bool>,
    /// The choice after a skip.
    pub(super) if_skipped: Verdict,
    /// Where each branch's verification may stop, `[branch]`: an index into [`ProblemFacts::exits`].
    pub(super) exits: Vec<usize>,
    /// What a winner policy needs besides scores, `[branch]`.
    pub(super) confidences: Vec<f64>,
    /// What each branch says, `[branch]`.
    pub(super) said: Vec<Said>,
}

/// One problem.
#[derive(Debug, Default)]
pub(super) struct ProblemFacts {
    /// Distinct similarities of its branches, ascending.
    pub(super) cuts: Vec<f64>,
    /// One more than there are cuts: the k-th holds for τ above `cuts[k - 1]` and up to `cuts[k]`.
    pub(super) compositions: Vec<Composition>,
    /// Every outcome that some composition uses.
    pub(super) exits: Vec<ExitPoints>,
    /// Texts of answers.
    pub(super) answers: Vec<String>,
    /// What the full pipeline says.
    pub(super) full: Said,
}

impl Composition {
    pub(super) fn is_skipped(&self, rule: Option<&cgee::Params>, tau_conf: f64, margin: f64) -> bool {
        match (self.fixed_skip, rule) {
            (Some(fixed), _) => fixed,
            (None, Some(rule)) => cgee::Params { tau_conf, margin, ..*rule }.skips(self.lead),
            (None, None) => false,
        }
    }

    /// What a skip gives.
    pub(super) fn skipped(&self) -> Counts {
        let mut counts = Counts { shared: u64::from(self.shared), skipped: 1, ..Counts::default() };
        self.if_skipped.add_to(&mut counts);
        counts
    }
}

impl ProblemFacts {
    /// The branches at τ.
    pub(super) fn composition(&self, tau: f64) -> &Composition {
        &self.compositions[self.cuts.partition_point(|&cut| cut < tau)]
    }

    /// The branches as a winner policy sees them, without scores.
    pub(super) fn candidates(&self, composition: &Composition) -> Vec<Candidate<'_>> {
        let of = |(said, &confidence): (&Said, &f64)| Candidate {
            score: None,
            confidence,
            answer: said.answer.map(|at| self.answers[at].as_str()),
        };
        composition.said.iter().zip(&composition.confidences).map(of).collect()
    }

    /// What the branch at `winner` means, against the full pipeline.
    pub(super) fn judge(&self, composition: &Composition, winner: Option<usize>) -> Verdict {
        let said = winner.map_or(Said::default(), |at| composition.said[at]);
        let (here, there) = (said.correct == Some(true), self.full.correct == Some(true));
        let mut bits = 0;
        for (mask, is_set) in [
            (Verdict::CORRECT, here),
            (Verdict::AGREES, said.answer == self.full.answer),
            (Verdict::HARMED, there && !here),
            (Verdict::HELPED, here && !there),
        ] {
            if is_set {
                bits |= mask;
            }
        }
        Verdict(bits)
    }

    /// What a setting gives here.
    pub(super) fn at(&self, rules: Rules<'_>, setting: &Setting) -> Counts {
        let composition = self.composition(setting.tau);
        if composition.is_skipped(rules.rule, setting.tau_conf, setting.margin) {
            return composition.skipped();
        }
        self.verified(rules, composition, setting.theta, setting.epsilon)
    }

    /// What verification gives at θ and ε.
    pub(super) fn verified(
        &self,
        rules: Rules<'_>,
        composition: &Composition,
        theta: f64,
        epsilon: f64,
    ) -> Counts {
        let mut counts = Counts { shared: u64::from(composition.shared), ..Counts::default() };
        let mut candidates = self.candidates(composition);
        for (candidate, &at) in candidates.iter_mut().zip(&composition.exits) {
            let (layers_run, score) = self.exits[at].stop(theta, epsilon);
            candidate.score = Some(score);
            counts.verified += 1;
            counts.exited += u64::from(layers_run < self.exits[at].layers);
            counts.layers_run += u64::from(layers_run);
        }
        self.judge(composition, rules.winner.choose(&candidates)).add_to(&mut counts);
        counts
    }
}

/// What is the same for all problems.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    pub(super) rule: Option<&'a cgee::Params>,
    pub(super) winner: &'a dyn Winner,
}
