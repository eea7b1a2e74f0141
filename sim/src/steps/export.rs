//! What a table holds about every problem, written out: with it any setting can be evaluated elsewhere, in a page for example,
//! without the trace and without any policy.
//!
//! Similarities split τ into stretches on which the branches of a problem are the same. For each stretch a [`JointFact`] says what
//! the skip rule is asked about, where each branch's verification can stop, and what the choice is worth after a skip and for every
//! pair of ranks of θ and ε. Whatever the winner policy, its choices are in there; only comparisons remain to be made.

use super::StepTable;
use super::joint::{Cell, distinct, table};
use super::problem::{Composition, ExitPoints, ProblemFacts};
use crate::policy::verify::cgee::Lead;
use crate::trees::Work;
use rayon::prelude::*;

/// A problem for all τ of one stretch.
#[derive(Clone, Debug, PartialEq)]
pub struct JointFact {
    /// Place of the problem in the table.
    pub problem: usize,
    /// Values of τ above this belong to the stretch; absent for no lower end.
    pub above: Option<f64>,
    /// Values of τ up to and including this belong to it; absent for no upper end.
    pub upto: Option<f64>,
    /// Branches that may answer.
    pub branches: u64,
    /// Of them, those behind the root's prefix.
    pub shared: u64,
    /// Work on their prompts; nothing else of it is filled.
    pub prompts: Work,
    /// The surest branch and its lead, where a rule with thresholds is asked; absent for a single branch, which is skipped.
    pub lead: Option<Lead>,
    /// What a verify policy without thresholds decides; absent where one with thresholds does.
    pub skips: Option<bool>,
    /// Where each branch's verification can stop, `[branch]`.
    pub stops: Vec<BranchStops>,
    /// The choice after a skip: 1 right, 2 as the full pipeline, 4 harmed, 8 helped, added up.
    pub if_skipped: u8,
    /// The choice after verification, `[rank of θ][rank of ε]`: a threshold's rank is how many different entropies (changes) of this
    /// fact's early stops are below it.
    pub verified: Vec<Vec<u8>>,
    /// Whether an answer is expected.
    pub is_gradable: bool,
    /// Whether the full pipeline gives it.
    pub is_full_correct: bool,
}

/// Where the verification of one branch can stop.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchStops {
    /// Tokens of the verifier's prompt.
    pub tokens: u32,
    /// (layers run, entropy in nats, change in nats), in order of layers: the pass stops at the first whose entropy is below θ and
    /// whose change is below ε.
    pub early: Vec<(u16, f64, f64)>,
    /// Layers run where none of them is taken.
    pub last: u16,
}

impl StepTable<'_> {
    /// One fact a problem and stretch of τ, in order of problems, then of τ.
    ///
    /// Cost: O(problems · compositions · observed θ · observed ε); see [`Self::export_cost`].
    #[must_use]
    pub fn export(&self) -> Vec<JointFact> {
        let one = |(at, problem): (usize, &ProblemFacts)| -> Vec<JointFact> {
            (0..problem.compositions.len()).map(|stretch| self.fact(at, problem, stretch)).collect()
        };
        self.problems.par_iter().enumerate().flat_map_iter(one).collect()
    }

    /// How many choices [`Self::export`] evaluates.
    #[must_use]
    pub fn export_cost(&self) -> u64 {
        let values = |problem: &ProblemFacts, composition: &Composition| {
            let points = || composition.exits.iter().flat_map(|&at| &problem.exits[at].early);
            let (thetas, epsilons) =
                (distinct(points().map(|point| point.entropy)), distinct(points().map(|point| point.change)));
            (thetas.len() as u64 + 1) * (epsilons.len() as u64 + 1)
        };
        self.problems.iter().flat_map(|problem| problem.compositions.iter().map(|c| values(problem, c))).sum()
    }

    fn fact(&self, at: usize, problem: &ProblemFacts, stretch: usize) -> JointFact {
        let composition = &problem.compositions[stretch];
        let choices = table(problem, composition, self.rules(), &[], &[]);
        let bits = |cell: &Cell| u8::try_from(cell.verdict).unwrap_or_default();
        JointFact {
            problem: at,
            above: stretch.checked_sub(1).map(|below| problem.cuts[below]),
            upto: problem.cuts.get(stretch).copied(),
            branches: composition.exits.len() as u64,
            shared: u64::from(composition.shared),
            prompts: composition.prompts,
            lead: composition.lead,
            skips: composition.fixed_skip,
            stops: composition.exits.iter().map(|&at| stops(&problem.exits[at])).collect(),
            if_skipped: composition.if_skipped.0,
            verified: choices.cells.chunks(choices.width).map(|row| row.iter().map(bits).collect()).collect(),
            is_gradable: problem.full.correct.is_some(),
            is_full_correct: problem.full.correct == Some(true),
        }
    }
}

fn stops(exits: &ExitPoints) -> BranchStops {
    BranchStops {
        tokens: exits.tokens,
        early: exits.early.iter().map(|point| (point.layers_run, point.entropy, point.change)).collect(),
        last: exits.last.0,
    }
}
