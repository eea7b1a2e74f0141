//! From a study's measured settings to the report: what is the same for branch trees and evictions.

use super::choose::{Choice, Goal, choose, sums};
use super::measured::{Kind, Measured, Sums, Term};
use super::report::{
    Chosen, Held, Measurement, Neighbour, Parts, PathRow, Searched, Setting, Shortfall, Transfer, TuneReport,
    Unguarded,
};
use super::{Shares, Split, TuneError};
use crate::metrics::metric;
use crate::results::Bootstrap;
use crate::scenario::{Bound, Constraint, Objective, Scenario, TuneSpec};
use crate::trace::TraceSource;

/// A study that settings can be chosen for.
pub(super) trait Study: Measured {
    /// `trees` or `eviction`.
    fn name(&self) -> &'static str;

    /// What is tuned, in words.
    fn tuned(&self) -> String;

    /// Ids of the problems, `[item]`.
    fn item_ids(&self) -> &[String];

    /// Ids of what is measured, `[metric]`.
    fn metrics(&self) -> &[&'static str];

    /// A candidate's values by name.
    fn setting(&self, candidate: usize) -> Setting;

    /// Candidates one step away, with what differs.
    fn neighbours(&self, candidate: usize) -> Vec<(String, usize)>;

    /// A scenario with the candidate alone.
    fn yaml(&self, candidate: usize, id: &str, why: &str) -> String;

    /// What the search looked at.
    fn searched(&self) -> Searched;

    /// What has to be said about what is measured, and about what is recommended.
    fn notes(&self, chosen: Option<usize>) -> Vec<String>;

    /// A candidate and the anchor measured on another trace.
    fn elsewhere(&self, candidate: usize, other: &dyn TraceSource) -> Result<Elsewhere, TuneError>;
}

/// A candidate and the anchor on the problems of a trace.
pub(super) struct Elsewhere {
    /// `[item]`.
    pub(super) items: Vec<String>,
    /// `[item, metric]`.
    pub(super) candidate: Vec<Vec<Term>>,
    /// `[item, metric]`.
    pub(super) anchor: Vec<Vec<Term>>,
    /// Why one of them cannot run, for each item where that is so.
    pub(super) unrun: Vec<String>,
}

/// The metrics to measure: the objective, the constraints, then those of `context` that are neither.
pub(super) fn metrics_of(
    objective: &Objective,
    constraints: &[Constraint],
    context: &[&'static str],
) -> Vec<&'static str> {
    let mut metrics = vec![objective.metric];
    metrics.extend(constraints.iter().map(|constraint| constraint.metric));
    let more: Vec<&'static str> = context.iter().copied().filter(|id| !metrics.contains(id)).collect();
    metrics.extend(more);
    metrics
}

/// The split of a study's problems.
pub(super) fn split(items: &[String], spec: &TuneSpec) -> Result<Split, TuneError> {
    let shares = Shares { search: spec.search, calibration: spec.calibration };
    let split = Split::of(items.iter().map(String::as_str), shares, spec.seed);
    if split.search.is_empty() || split.calibration.is_empty() || split.test.is_empty() {
        return Err(TuneError::TooFew {
            problems: items.len(),
            search: split.search.len(),
            calibration: split.calibration.len(),
            test: split.test.len(),
        });
    }
    Ok(split)
}

/// What is wanted, as the procedure takes it.
pub(super) fn goal(objective: &Objective, constraints: &[Constraint], spec: &TuneSpec) -> Goal {
    Goal {
        direction: objective.direction,
        bounds: constraints.iter().map(|constraint| constraint.bound).collect(),
        delta: spec.delta,
        method: spec.method,
        path: spec.path,
    }
}

/// Refuses a limit that guarantees nothing, since every setting keeps it, and one that no setting can keep.
fn check_limits(kinds: &[Kind], constraints: &[Constraint]) -> Result<(), TuneError> {
    for (kind, constraint) in kinds.iter().skip(1).zip(constraints) {
        let low = if matches!(kind, Kind::Difference) { -1.0 } else { 0.0 };
        let (found, is_decisive, accepted) = match constraint.bound {
            Bound::AtMost(found) => (found, found >= low && found < 1.0, format!("{low} or more, below 1")),
            Bound::AtLeast(found) => (found, found > low && found <= 1.0, format!("above {low}, at most 1")),
        };
        if !is_decisive {
            return Err(TuneError::Limit { metric: constraint.metric, found, accepted });
        }
    }
    Ok(())
}

/// Makes the choice and describes it.
pub(super) fn report(
    study: &dyn Study,
    scenario: &Scenario,
    spec: &TuneSpec,
    (objective, constraints): (Objective, Vec<Constraint>),
    split: &Split,
    source: &dyn TraceSource,
    transfer: Option<&dyn TraceSource>,
) -> Result<TuneReport, TuneError> {
    check_limits(study.kinds(), &constraints)?;
    let goal = goal(&objective, &constraints, spec);
    let choice = choose(study, split, &goal);
    let describe = Describe { study, goal: &goal, constraints: &constraints, split };
    let recommended = choice.chosen.map(|at| choice.path[at].candidate);
    let chosen = choice.chosen.map(|at| describe.chosen(&choice, at, &scenario.id, source));
    let transfer = match (recommended, transfer) {
        (Some(candidate), Some(other)) => Some(describe.transfer(candidate, other)?),
        _ => None,
    };
    let is_proxy = constraints.iter().any(|constraint| evidence(constraint.metric) == "proxy");
    Ok(TuneReport {
        scenario: scenario.id.clone(),
        source: source.name().to_owned(),
        digest: source.digest(),
        synthetic: source.is_synthetic(),
        study: study.name(),
        tuned: study.tuned(),
        evidence: if is_proxy { "proxy" } else { "decision" },
        delta: spec.delta,
        method: spec.method,
        seed: spec.seed,
        problems: Parts {
            search: split.search.len(),
            calibration: split.calibration.len(),
            test: split.test.len(),
        },
        searched: study.searched(),
        path: choice.path.iter().map(|tested| describe.row(tested)).collect(),
        chosen,
        shortfall: describe.shortfall(&choice),
        unguarded: choice.unguarded.map(|candidate| Unguarded {
            setting: study.setting(candidate),
            objective: describe.objective(candidate),
            test: describe.on(candidate, &split.test),
        }),
        transfer,
        notes: study.notes(recommended),
        objective,
        constraints,
    })
}

fn evidence(id: &str) -> &'static str {
    metric(id).map_or("decision", |metric| metric.evidence.word())
}

struct Describe<'a> {
    study: &'a dyn Study,
    goal: &'a Goal,
    constraints: &'a [Constraint],
    split: &'a Split,
}

impl Describe<'_> {
    fn terms(&self, candidate: usize, items: &[usize]) -> Vec<Vec<Term>> {
        let metrics = self.study.kinds().len();
        let of = |&item: &usize| {
            let mut terms = vec![Term::default(); metrics];
            self.study.measure(candidate, item, &mut terms);
            terms
        };
        items.iter().map(of).collect()
    }

    /// The objective on search and calibration problems.
    fn objective(&self, candidate: usize) -> Option<f64> {
        let of = |items: &[usize]| sums(self.study, candidate, items);
        of(&self.split.search)[0].and(&of(&self.split.calibration)[0]).value()
    }

    fn row(&self, tested: &super::choose::Tested) -> PathRow {
        let losses = self.constraints.iter().enumerate().filter_map(|(at, constraint)| {
            tested.calibration[at + 1].loss(self.study.kinds()[at + 1], constraint.bound)
        });
        PathRow {
            setting: self.study.setting(tested.candidate),
            objective: tested.search[0].and(&tested.calibration[0]).value(),
            losses: losses.collect(),
            p_value: tested.p_value,
            certified: tested.is_certified,
        }
    }

    fn chosen(&self, choice: &Choice, at: usize, scenario: &str, source: &dyn TraceSource) -> Chosen {
        let tested = &choice.path[at];
        let sure = 100.0 * (1.0 - self.goal.delta);
        let guarantee: Vec<String> = self
            .constraints
            .iter()
            .enumerate()
            .filter_map(|(at, constraint)| {
                let loss = tested.calibration[at + 1].loss(self.study.kinds()[at + 1], constraint.bound)?;
                Some(format!(
                    "{} ({}) with {} % confidence: {}, p = {}",
                    constraint.words(),
                    evidence(constraint.metric),
                    percent(sure),
                    loss.test.words(),
                    p_words(loss.p_value())
                ))
            })
            .collect();
        let of = if source.is_synthetic() { " (synthetic)" } else { "" };
        let why = format!("Chosen by kvlab tune on {}{of}: {}", source.name(), guarantee.join("; "));
        Chosen {
            setting: self.study.setting(tested.candidate),
            test: self.on(tested.candidate, &self.split.test),
            neighbours: self.neighbours(tested.candidate),
            yaml: self.study.yaml(tested.candidate, &format!("{scenario}-tuned"), &why),
            guarantee,
        }
    }

    fn neighbours(&self, candidate: usize) -> Vec<Neighbour> {
        let of = |(change, at): (String, usize)| {
            let calibration = sums(self.study, at, &self.split.calibration);
            let p_value = self.goal.p_value(self.study.kinds(), &calibration);
            Neighbour { change, objective: self.objective(at), p_value }
        };
        self.study.neighbours(candidate).into_iter().map(of).collect()
    }

    fn shortfall(&self, choice: &Choice) -> Option<Shortfall> {
        let tested = choice.path.iter().find(|tested| !tested.is_certified)?;
        let kinds = self.study.kinds();
        let losses = self.constraints.iter().enumerate().filter_map(|(at, constraint)| {
            Some((*constraint, tested.calibration[at + 1].loss(kinds[at + 1], constraint.bound)?, at))
        });
        let (constraint, loss, at) =
            losses.reduce(|a, b| if b.1.p_value() > a.1.p_value() { b } else { a })?;
        let level = self.goal.method.first_level(choice.path.len(), self.goal.delta);
        let (without, at_rate) = loss.needed(level);
        let all = (self.split.search.len() + self.split.calibration.len() + self.split.test.len()) as u128;
        // Problems that say nothing about the constraint are needed in proportion.
        let tests = match loss.test {
            super::measured::Test::Binomial { n, .. } | super::measured::Test::Bounded { n, .. } => n,
            super::measured::Test::Betting { .. } => tested.calibration[at + 1].n,
        };
        let in_all = |n: u64| u64::try_from((u128::from(n) * all).div_ceil(u128::from(tests.max(1)))).ok();
        Some(Shortfall {
            setting: self.study.setting(tested.candidate),
            constraint,
            loss,
            p_value: tested.p_value,
            level,
            needed_without_loss: without,
            needed_at_rate: at_rate,
            problems_in_all: (without.and_then(in_all), at_rate.and_then(in_all)),
        })
    }

    /// A candidate against the anchor on some problems.
    fn on(&self, candidate: usize, items: &[usize]) -> Vec<Measurement> {
        let ids: Vec<&str> = items.iter().map(|&item| self.study.item_ids()[item].as_str()).collect();
        let (here, there) = (self.terms(candidate, items), self.terms(self.study.anchor(), items));
        self.measurements(&ids, &here, &there)
    }

    fn transfer(&self, candidate: usize, other: &dyn TraceSource) -> Result<Transfer, TuneError> {
        let found = self.study.elsewhere(candidate, other)?;
        let ids: Vec<&str> = found.items.iter().map(String::as_str).collect();
        let known: std::collections::BTreeSet<&str> =
            self.study.item_ids().iter().map(String::as_str).collect();
        Ok(Transfer {
            source: other.name().to_owned(),
            digest: other.digest(),
            synthetic: other.is_synthetic(),
            problems: ids.len(),
            shared_problems: ids.iter().filter(|id| known.contains(**id)).count(),
            measured: self.measurements(&ids, &found.candidate, &found.anchor),
            unrun: found.unrun,
        })
    }

    /// `here` and `there` are `[item, metric]`.
    fn measurements(&self, ids: &[&str], here: &[Vec<Term>], there: &[Vec<Term>]) -> Vec<Measurement> {
        let bootstrap = Bootstrap::by_item(ids.iter().copied());
        let (metrics, kinds) = (self.study.metrics(), self.study.kinds());
        (0..metrics.len())
            .map(|at| {
                let of = |terms: &[Vec<Term>]| -> Vec<(f64, f64)> {
                    terms.iter().map(|terms| (terms[at].num, terms[at].den)).collect()
                };
                let (mut summed, mut anchor) = (Sums::default(), Sums::default());
                here.iter().for_each(|terms| summed.add(terms[at]));
                there.iter().for_each(|terms| anchor.add(terms[at]));
                let (a, b) = (of(here), of(there));
                let estimate = bootstrap.ratio(&a);
                let constraint = at.checked_sub(1).and_then(|at| self.constraints.get(at));
                Measurement {
                    metric: metrics[at],
                    evidence: evidence(metrics[at]),
                    value: summed.value(),
                    interval: estimate.and_then(|estimate| estimate.interval),
                    num: summed.num,
                    den: summed.den,
                    n: summed.n,
                    unchanged: anchor.value(),
                    difference: difference(&bootstrap, &a, &b),
                    constraint: constraint
                        .and_then(|constraint| held(&summed, kinds[at], constraint, self.goal.delta)),
                }
            })
            .collect()
    }
}

fn held(summed: &Sums, kind: Kind, constraint: &Constraint, delta: f64) -> Option<Held> {
    let loss = summed.loss(kind, constraint.bound)?;
    Some(Held { bound: constraint.bound, is_met: loss.is_met(), loss, loss_at_most: loss.upper_bound(delta) })
}

/// The paired difference: of ratios where denominators are the same problem by problem, else the mean of each problem's own.
fn difference(
    bootstrap: &Bootstrap,
    here: &[(f64, f64)],
    there: &[(f64, f64)],
) -> Option<(f64, Option<(f64, f64)>)> {
    let is_same = here.iter().zip(there).all(|(a, b)| a.1.to_bits() == b.1.to_bits());
    let estimate = if is_same {
        let terms: Vec<(f64, f64)> = here.iter().zip(there).map(|(a, b)| (a.0 - b.0, a.1)).collect();
        bootstrap.ratio(&terms)
    } else {
        let own = |(num, den): (f64, f64)| (den > 0.0).then(|| num / den);
        let terms: Vec<Option<f64>> =
            here.iter().zip(there).map(|(a, b)| Some(own(*a)? - own(*b)?)).collect();
        bootstrap.mean(&terms)
    };
    estimate.map(|estimate| (estimate.value, estimate.interval))
}

/// A p-value with four decimals, or two digits where those would be zeros.
fn p_words(p: f64) -> String {
    if p < 1e-4 { format!("{p:.1e}") } else { format!("{p:.4}") }
}

/// 95 for 95.00000000000001.
fn percent(sure: f64) -> String {
    let text = format!("{sure:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
