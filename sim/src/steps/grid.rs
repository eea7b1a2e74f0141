//! Every combination of lists of thresholds.
//!
//! Whether a problem is skipped depends on (τ, τ_conf, margin), what its verification gives on (τ, θ, ε). So for each τ there is
//! a plane over (θ, ε) per problem, and a pair (τ_conf, margin) adds the planes of the problems that it does not skip: long
//! runs of additions instead of a look-up for each problem and setting.

use super::joint::{LANE, Sums};
use super::problem::{Composition, ProblemFacts};
use super::{Counts, Setting, StepTable};
use rayon::prelude::*;

/// Problems whose planes are held at once: they fit the second-level cache at a few hundred (θ, ε).
const PLANES: usize = 64;
/// Lists of thresholds, to be combined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// τ.
    pub tau: Vec<f64>,
    /// τ_conf.
    pub tau_conf: Vec<f64>,
    /// Margin of rule A.
    pub margin: Vec<f64>,
    /// θ, nats.
    pub theta: Vec<f64>,
    /// ε, nats.
    pub epsilon: Vec<f64>,
}

impl Grid {
    /// Every combination, `[τ, τ_conf, margin, θ, ε]` flattened, the last list moving fastest.
    pub fn settings(&self) -> impl Iterator<Item = Setting> + '_ {
        self.tau.iter().flat_map(move |&tau| {
            self.skips().flat_map(move |(tau_conf, margin)| {
                self.exits().map(move |(theta, epsilon)| Setting { tau, tau_conf, margin, theta, epsilon })
            })
        })
    }

    fn skips(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.tau_conf.iter().flat_map(|&tau_conf| self.margin.iter().map(move |&margin| (tau_conf, margin)))
    }

    fn exits(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.theta.iter().flat_map(|&theta| self.epsilon.iter().map(move |&epsilon| (theta, epsilon)))
    }
}

impl StepTable<'_> {
    /// What each combination gives, in the order of [`Grid::settings`]: the same as [`Self::joint`] on them.
    ///
    /// Cost: one addition of four words a problem and combination; memory of one plane of (τ_conf, margin, θ, ε) beside the result.
    #[must_use]
    pub fn grid(&self, grid: &Grid) -> Vec<Counts> {
        let (skips, exits): (Vec<_>, Vec<_>) = (grid.skips().collect(), grid.exits().collect());
        let mut counts = vec![Counts::default(); grid.tau.len() * skips.len() * exits.len()];
        if counts.is_empty() {
            return counts;
        }
        for (&tau, counts) in grid.tau.iter().zip(counts.chunks_mut(skips.len() * exits.len())) {
            for problems in self.problems.chunks(LANE) {
                let mut sums = vec![Sums::default(); counts.len()];
                for problems in problems.chunks(PLANES) {
                    let planes: Vec<Plane<'_>> =
                        problems.par_iter().map(|problem| self.plane(problem, tau, &exits)).collect();
                    sums.par_chunks_mut(exits.len()).zip(&skips).for_each(|(sums, &(tau_conf, margin))| {
                        let mut skipped = Sums::default();
                        for plane in &planes {
                            if plane.composition.is_skipped(self.rule.as_ref(), tau_conf, margin) {
                                skipped.add(plane.skipped);
                            } else {
                                sums.iter_mut().zip(&plane.verified).for_each(|(sum, &term)| sum.add(term));
                            }
                        }
                        sums.iter_mut().for_each(|sum| sum.add(skipped));
                    });
                }
                counts.iter_mut().zip(&sums).for_each(|(counts, sums)| sums.add_to(counts));
            }
        }
        counts
    }

    fn plane<'a>(&self, problem: &'a ProblemFacts, tau: f64, exits: &[(f64, f64)]) -> Plane<'a> {
        let composition = problem.composition(tau);
        let verified = |&(theta, epsilon): &(f64, f64)| {
            Sums::of(&problem.verified(self.rules(), composition, theta, epsilon))
        };
        Plane {
            composition,
            skipped: Sums::of(&composition.skipped()),
            verified: exits.iter().map(verified).collect(),
        }
    }
}

/// One problem at one τ.
struct Plane<'a> {
    composition: &'a Composition,
    /// What a skip gives.
    skipped: Sums,
    /// What verification gives, `[θ, ε]` flattened.
    verified: Vec<Sums>,
}
