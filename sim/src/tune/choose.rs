//! Learn-then-test: a path of settings from the search problems, tests on the calibration problems, one choice.
//!
//! What keeps the guarantee: the path and its order come from search problems alone, p-values from calibration problems alone, and the choice is
//! among settings all of whose hypotheses are rejected together at level δ. The choice itself may then look at anything but the test problems.

use super::measured::{Kind, Measured, Sums, Term};
use super::{Method, Split};
use crate::scenario::{Bound, Direction};
use rayon::prelude::*;

/// What is wanted of a setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// Which way metric 0 is to go.
    pub direction: Direction,
    /// Bounds of the metrics from 1 on.
    pub bounds: Vec<Bound>,
    /// δ: the probability that a setting is chosen whose constraints do not hold.
    pub delta: f64,
    /// How tests are corrected for each other.
    pub method: Method,
    /// Most settings that are tested.
    pub path: usize,
}

/// One setting of the path.
#[derive(Clone, Debug, PartialEq)]
pub struct Tested {
    /// The setting.
    pub candidate: usize,
    /// What it gave on search problems, `[metric]`.
    pub search: Vec<Sums>,
    /// What it gave on calibration problems, `[metric]`.
    pub calibration: Vec<Sums>,
    /// The p-value of "some constraint does not hold": the largest over constraints.
    pub p_value: f64,
    /// Whether that is rejected.
    pub is_certified: bool,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The settings tested, from careful to bold.
    pub path: Vec<Tested>,
    /// Index into `path` of the chosen one; nothing when none is certified.
    pub chosen: Option<usize>,
    /// The setting with the best objective among those whose constraints just look met on search and calibration problems, without any test.
    pub unguarded: Option<usize>,
}

impl Goal {
    /// The objective as a number of which more is better.
    #[must_use]
    pub fn worth(&self, sums: &[Sums]) -> Option<f64> {
        let value = sums[0].value()?;
        Some(if self.direction == Direction::Maximise { value } else { -value })
    }

    /// The p-value of the union of the null hypotheses: the largest of theirs, since one that holds is enough.
    #[must_use]
    pub fn p_value(&self, kinds: &[Kind], sums: &[Sums]) -> f64 {
        let p = |at: usize, bound: &Bound| {
            sums[at + 1].loss(kinds[at + 1], *bound).map_or(1.0, |loss| loss.p_value())
        };
        self.bounds.iter().enumerate().map(|(at, bound)| p(at, bound)).fold(0.0, f64::max)
    }

    /// How far the worst constraint is from being met on these problems: below 0 when all are.
    pub(super) fn excess(&self, kinds: &[Kind], sums: &[Sums]) -> f64 {
        let excess = |(at, bound): (usize, &Bound)| {
            sums[at + 1].loss(kinds[at + 1], *bound).map_or(1.0, |loss| loss.excess())
        };
        self.bounds.iter().enumerate().map(excess).fold(f64::NEG_INFINITY, f64::max)
    }

    fn looks_met(&self, kinds: &[Kind], sums: &[Sums]) -> bool {
        let is_met = |(at, bound): (usize, &Bound)| {
            sums[at + 1].loss(kinds[at + 1], *bound).is_some_and(|loss| loss.is_met())
        };
        self.bounds.iter().enumerate().all(is_met)
    }
}

/// What a setting gives on some problems, `[metric]`, added up in their order.
#[must_use]
pub fn sums(measured: &dyn Measured, candidate: usize, items: &[usize]) -> Vec<Sums> {
    let metrics = measured.kinds().len();
    let (mut sums, mut terms) = (vec![Sums::default(); metrics], vec![Term::default(); metrics]);
    for &item in items {
        terms.fill(Term::default());
        measured.measure(candidate, item, &mut terms);
        sums.iter_mut().zip(&terms).for_each(|(sum, term)| sum.add(*term));
    }
    sums
}

/// Runs the procedure. The test problems of `split` are not looked at.
#[must_use]
pub fn choose(measured: &dyn Measured, split: &Split, goal: &Goal) -> Choice {
    let kinds = measured.kinds();
    let all = |items: &[usize]| -> Vec<Vec<Sums>> {
        (0..measured.candidates()).into_par_iter().map(|candidate| sums(measured, candidate, items)).collect()
    };
    let (search, calibration) = (all(&split.search), all(&split.calibration));
    let mut path: Vec<Tested> = path(measured, goal, &search)
        .into_iter()
        .map(|candidate| Tested {
            candidate,
            search: search[candidate].clone(),
            calibration: calibration[candidate].clone(),
            p_value: goal.p_value(kinds, &calibration[candidate]),
            is_certified: false,
        })
        .collect();
    let p_values: Vec<f64> = path.iter().map(|tested| tested.p_value).collect();
    for (tested, is_rejected) in path.iter_mut().zip(goal.method.rejected(&p_values, goal.delta)) {
        tested.is_certified = is_rejected;
    }
    let both = |candidate: usize| -> Vec<Sums> {
        search[candidate].iter().zip(&calibration[candidate]).map(|(a, b)| a.and(b)).collect()
    };
    // Of two with the same worth, the one earlier on the path.
    let worth = |tested: &Tested| goal.worth(&both(tested.candidate)).unwrap_or(f64::NEG_INFINITY);
    let certified = path.iter().enumerate().filter(|(_, tested)| tested.is_certified);
    let chosen = certified.fold(None, |best: Option<(usize, f64)>, (at, tested)| match best {
        Some((_, known)) if worth(tested) <= known => best,
        _ => Some((at, worth(tested))),
    });
    let unguarded = (0..measured.candidates()).fold(None, |best: Option<(usize, f64)>, candidate| {
        let sums = both(candidate);
        match (goal.worth(&sums), best) {
            (Some(worth), _) if !goal.looks_met(kinds, &sums) || worth.is_nan() => best,
            (Some(worth), Some((_, known))) if worth <= known => best,
            (Some(worth), _) => Some((candidate, worth)),
            (None, _) => best,
        }
    });
    Choice { path, chosen: chosen.map(|(at, _)| at), unguarded: unguarded.map(|(candidate, _)| candidate) }
}

/// The settings to test, from careful to bold, by search problems alone: at each of `goal.path` levels between the objective of the anchor and
/// the best one, the setting that reaches the level with the least risk: the smallest p-value, then the smallest mean loss. Ties go to more
/// agreement, then to the more careful thresholds, then to the lower index.
fn path(measured: &dyn Measured, goal: &Goal, search: &[Vec<Sums>]) -> Vec<usize> {
    let kinds = measured.kinds();
    let Some(floor) = goal.worth(&search[measured.anchor()]) else { return Vec::new() };
    struct Ranked {
        candidate: usize,
        worth: f64,
        /// p-value, excess of loss, lack of agreement, boldness: smaller is better.
        key: [f64; 4],
    }
    let mut ranked: Vec<Ranked> = (0..search.len())
        .filter_map(|candidate| {
            let worth = goal.worth(&search[candidate]).filter(|worth| *worth > floor)?;
            let hint =
                measured.hint().and_then(|at| search[candidate][at].value()).map_or(0.0, |value| -value);
            let risk = goal.p_value(kinds, &search[candidate]);
            let excess = goal.excess(kinds, &search[candidate]);
            Some(Ranked { candidate, worth, key: [risk, excess, hint, measured.boldness(candidate)] })
        })
        .collect();
    // Bold first: the best key so far is then that of all that reach a level.
    ranked.sort_by(|a, b| b.worth.total_cmp(&a.worth).then(a.candidate.cmp(&b.candidate)));
    let Some(most) = ranked.first().map(|best| best.worth) else { return Vec::new() };
    let mut levels = (1..=goal.path).rev().map(|step| level(floor, most, step, goal.path)).peekable();
    let mut path: Vec<usize> = Vec::new();
    let mut best: Option<&Ranked> = None;
    let mut push = |best: Option<&Ranked>| {
        if let Some(best) = best
            && path.last() != Some(&best.candidate)
        {
            path.push(best.candidate);
        }
    };
    for candidate in &ranked {
        while levels.peek().is_some_and(|level| candidate.worth < *level) {
            levels.next();
            push(best);
        }
        let is_better = best.is_none_or(|best| {
            let order = candidate.key.iter().zip(&best.key).map(|(a, b)| a.total_cmp(b));
            order.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then).is_lt()
        });
        if is_better {
            best = Some(candidate);
        }
    }
    if levels.peek().is_some() {
        push(best);
    }
    path.reverse();
    path
}

/// Level `step` of `steps` above `floor`; the last one is exactly `most`.
#[expect(clippy::cast_precision_loss, reason = "a path is short")]
fn level(floor: f64, most: f64, step: usize, steps: usize) -> f64 {
    if step == steps { most } else { floor + (most - floor) * (step as f64 / steps as f64) }
}
