//! Every combination of lists of thresholds.
//!
//! Whether a problem is skipped depends on (τ, τ_conf, margin), what its verification gives on (τ, θ, ε). So for each τ there is
//! a plane over (θ, ε) per problem, and a pair (τ_conf, margin) adds the planes of the problems that it does not skip: long
//! runs of additions instead of a look-up for each problem and setting.

use super::joint::{Block, Ranked, Ranks, Sums};
use super::{Counts, Setting, StepTable};
use rayon::prelude::*;

/// Problems whose planes are held at once: they fit the second-level cache at a few hundred (θ, ε).
const PLANES: usize = 64;
/// Problems that 16-bit lanes can count.
const LANE: usize = 65_535;

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
        let problems: Vec<Ranked<'_>> =
            self.problems.par_iter().map(|problem| Ranked::new(problem, self.rules())).collect();
        let skips: Vec<(f64, f64)> = grid.skips().collect();
        let width = grid.theta.len() * grid.epsilon.len();
        let mut counts = vec![Counts::default(); grid.tau.len() * skips.len() * width];
        if counts.is_empty() {
            return counts;
        }
        for (&tau, counts) in grid.tau.iter().zip(counts.chunks_mut(skips.len() * width)) {
            // The thresholds of one τ: (θ, ε) in the order of the grid, then (τ_conf, margin).
            let of_exit = |(theta, epsilon)| Setting { tau, tau_conf: 0.0, margin: 0.0, theta, epsilon };
            let exits = Block::new(&grid.exits().map(of_exit).collect::<Vec<_>>(), self.rule.as_ref());
            let of_skip = |&(tau_conf, margin)| Setting { tau, tau_conf, margin, theta: 0.0, epsilon: 0.0 };
            let gates = Block::new(&skips.iter().map(of_skip).collect::<Vec<_>>(), self.rule.as_ref());
            for problems in problems.chunks(LANE) {
                let mut sums = vec![Sums::default(); counts.len()];
                for problems in problems.chunks(PLANES) {
                    let planes: Vec<Plane> =
                        problems.par_iter().map(|problem| Plane::new(problem, &exits, width)).collect();
                    sums.par_chunks_mut(width).enumerate().for_each(|(skip, sums)| {
                        let mut skipped = Sums::default();
                        for (problem, plane) in problems.iter().zip(&planes) {
                            if problem.is_skipped(plane.table, &gates, skip) {
                                skipped.add(problem.if_skipped(plane.table));
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
}

/// What verification of one problem gives at one τ.
struct Plane {
    /// The problem's composition at that τ.
    table: usize,
    /// `[θ, ε]` flattened.
    verified: Vec<Sums>,
}

impl Plane {
    fn new(problem: &Ranked<'_>, exits: &Block, width: usize) -> Self {
        let mut ranks = Ranks::default();
        ranks.fill(problem, exits);
        let table = problem.table_at(exits, &ranks, 0);
        let verified = (0..width).map(|at| problem.if_verified(table, exits, &ranks, at)).collect();
        Self { table, verified }
    }
}
