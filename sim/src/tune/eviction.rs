//! Policies and budgets of an eviction study: replayed problem by problem, the hopeless ones given up on few problems and seeds (successive halving).
//!
//! What a replay says about quality is a proxy, so a guarantee here is one about a proxy.

use super::choose::Goal;
use super::measured::{Kind, Measured, Sums, Term};
use super::piece::{Piece, items};
use super::report::{Dropped, Searched, Setting as Named, Unrun};
use super::study::{Elsewhere, Study, metrics_of};
use super::whole_loss::WholeLoss;
use super::{Split, TuneError, yaml};
use crate::metrics::{METRICS, Scope, metric};
use crate::run::{RunOptions, read_sequences, source_info, study};
use crate::scenario::{
    Bound, Constraint, Direction, EvictionStudy, Objective, PolicyChoice, Scenario, TuneSpec,
};
use crate::table::{Table, Value};
use crate::trace::{SequenceMeta, TraceSource};
use std::collections::BTreeMap;

/// The candidate that keeps everything.
const ANCHOR: usize = 0;

/// What is reported beside objective and constraints, where the trace gives it.
const CONTEXT: &[&str] = &["attn_mass_recall", "attn_output_error", "mean_keep_ratio", "peak_kv_bytes"];

/// Metrics whose value for a problem lies between 0 and 1 whatever happens; an error is cut at 1.
const BOUNDED: &[&str] = &[
    "attn_mass_recall",
    "attn_output_error",
    "blocks_held_in_place",
    "direct_top1_agreement",
    "mean_keep_ratio",
    "projected_output_error",
    "union_coverage",
    "wide_value_coverage",
];

fn goal(spec: &TuneSpec) -> (Objective, Vec<Constraint>) {
    let default = Objective { metric: "peak_kv_bytes", direction: Direction::Minimise };
    let constraints = if spec.constraints.is_empty() {
        vec![Constraint { metric: "attn_mass_recall", bound: Bound::AtLeast(0.9) }]
    } else {
        spec.constraints.clone()
    };
    (spec.objective.clone().unwrap_or(default), constraints)
}

fn kind(id: &str, is_constraint: bool) -> Result<Kind, TuneError> {
    let is_measured = metric(id).is_some_and(|metric| !matches!(metric.scope, Scope::Series { .. }));
    match (BOUNDED.contains(&id), is_constraint) {
        (true, _) => Ok(Kind::Unit),
        (false, false) if is_measured => Ok(Kind::Unbounded),
        _ => Err(TuneError::Metric {
            metric: METRICS.iter().find(|metric| metric.id == id).map_or("?", |metric| metric.id),
            role: if is_constraint { "a constraint" } else { "the objective" },
            study: "evictions",
            accepted: BOUNDED.join(", "),
        }),
    }
}

/// A policy under a budget; every seed of it counts alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Index among the study's policies.
    policy: usize,
    /// C; absent for a policy to which it makes no difference.
    budget: Option<u32>,
}

/// The study with the full cache among its policies, and its settings.
struct Settings<'a> {
    scenario: &'a Scenario,
    study: EvictionStudy,
    places: Vec<Place>,
}

impl<'a> Settings<'a> {
    fn of(scenario: &'a Scenario, study: &EvictionStudy) -> Result<Self, TuneError> {
        let mut study = study.clone();
        let keeps_all = |choice: &PolicyChoice| {
            let stack = choice.stack(&study.knobs(study.budgets[0]));
            stack.is_ok_and(|stack| !stack.can_evict() && stack.keeps_exact() && !stack.attends_to_part())
        };
        let full = match study.policies.iter().position(keeps_all) {
            Some(full) => full,
            None => {
                study.policies.push(PolicyChoice::full_cache());
                study.policies.len() - 1
            }
        };
        let mut places = vec![Place { policy: full, budget: None }];
        for (policy, choice) in study.policies.iter().enumerate().filter(|(at, _)| *at != full) {
            for &budget in &study.budgets {
                let is_budgeted = choice.stack(&study.knobs(budget)).map(|stack| stack.is_budgeted());
                let budget = if is_budgeted.unwrap_or(true) { Some(budget) } else { None };
                let place = Place { policy, budget };
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        Ok(Self { scenario, study, places })
    }

    fn label(&self, candidate: usize) -> &str {
        &self.study.policies[self.places[candidate].policy].label
    }

    fn named(&self, candidate: usize) -> Named {
        let mut named = Named::new();
        named.insert("policy".to_owned(), self.label(candidate).into());
        if let Some(budget) = self.places[candidate].budget {
            named.insert("budget".to_owned(), budget.into());
        }
        named
    }

    /// What some candidates give on an item, `[metric]` each, over some seeds; the reason where one cannot run.
    fn measure(
        &self,
        source: &dyn TraceSource,
        item: &[SequenceMeta],
        candidates: &[usize],
        seeds: &[u64],
        metrics: &[&str],
    ) -> Result<Vec<Result<Vec<Term>, String>>, TuneError> {
        let policies: std::collections::BTreeSet<usize> =
            candidates.iter().map(|&at| self.places[at].policy).collect();
        let mut budgets: Vec<u32> = candidates.iter().filter_map(|&at| self.places[at].budget).collect();
        budgets.sort_unstable();
        budgets.dedup();
        if budgets.is_empty() {
            budgets.push(self.study.budgets[0]);
        }
        let part = EvictionStudy {
            budgets,
            policies: policies.iter().map(|&at| self.study.policies[at].clone()).collect(),
            retained: None,
            ..self.study.clone()
        };
        let scenario = Scenario {
            limit: None,
            draw: None,
            seeds: seeds.to_vec(),
            eviction: Some(part),
            exit: None,
            pool: None,
            serve: None,
            trees: None,
            ..self.scenario.clone()
        };
        let piece = Piece { source, sequences: item.to_vec() };
        let options = RunOptions {
            threads: rayon::current_num_threads(),
            command: String::new(),
            progress: &|_, _| {},
        };
        let cells = study(&scenario, &piece, source_info(&piece, "", ""), &options)?.cells;
        let mut rows: BTreeMap<(String, Option<u32>), Vec<usize>> = BTreeMap::new();
        for row in 0..cells.rows() {
            let Value::Text(policy) = cells.value("policy", row) else { continue };
            let budget = match cells.value("budget_tokens", row) {
                Value::Int(budget) => u32::try_from(budget).ok(),
                _ => None,
            };
            rows.entry((policy, budget)).or_default().push(row);
        }
        let of = |&candidate: &usize| {
            let key = (self.label(candidate).to_owned(), self.places[candidate].budget);
            let rows = rows.get(&key).map_or(&[][..], Vec::as_slice);
            for &row in rows {
                if cells.value("status", row) != Value::Text("ok".to_owned()) {
                    let Value::Text(error) = cells.value("error", row) else { continue };
                    return Err(error);
                }
            }
            Ok(metrics.iter().map(|metric| mean(&cells, rows, metric)).collect())
        };
        Ok(candidates.iter().map(of).collect())
    }
}

/// The mean of a metric over rows that have it, as one observation.
#[expect(clippy::cast_precision_loss, reason = "a few seeds")]
fn mean(cells: &Table, rows: &[usize], metric: &str) -> Term {
    let values: Vec<f64> = rows
        .iter()
        .filter_map(|&row| match cells.value(metric, row) {
            Value::Real(value) => Some(value),
            _ => None,
        })
        .map(|value| if BOUNDED.contains(&metric) { value.clamp(0.0, 1.0) } else { value })
        .collect();
    if values.is_empty() {
        return Term::default();
    }
    Term::new(values.iter().sum::<f64>() / values.len() as f64, 1.0)
}

/// The settings that are left, measured on all problems.
struct Evictions<'a> {
    settings: &'a Settings<'a>,
    /// Indices into the settings' places; the anchor first.
    left: Vec<usize>,
    items: Vec<String>,
    metrics: Vec<&'static str>,
    whole_loss: WholeLoss<'a>,
    /// `[item, candidate left, metric]`.
    terms: Vec<Vec<Vec<Term>>>,
    dropped: Vec<Dropped>,
    unrun: Vec<Unrun>,
}

/// Problems and seeds of a round, out of so many: they double from round to round, and the last round has all.
fn of_round(round: usize, rounds: usize, all: usize) -> usize {
    (all >> (rounds - 1 - round).min(63)).max(1).min(all)
}

/// Successive halving on the search problems: in each round, half of the settings that are left go, as twice the problems and seeds are looked at.
/// Settings that no other one beats in both objective and risk stay first, then those that only such ones beat, and so on.
fn halved(
    settings: &Settings<'_>,
    source: &dyn TraceSource,
    (of, split): (&[Vec<SequenceMeta>], &Split),
    spec: &TuneSpec,
    goal: &Goal,
    (metrics, kinds): (&[&'static str], &[Kind]),
) -> Result<(Vec<usize>, Vec<Dropped>), TuneError> {
    let (mut left, mut dropped): (Vec<usize>, Vec<Dropped>) =
        ((0..settings.places.len()).collect(), Vec::new());
    let mut rounds = 1;
    while spec.survivors << (rounds - 1) < left.len() {
        rounds += 1;
    }
    let seeds = &settings.scenario.seeds;
    for round in 0..rounds {
        let problems = of_round(round, rounds, split.search.len());
        let seeds = &seeds[..of_round(round, rounds, seeds.len())];
        let mut summed: Vec<Vec<Sums>> = vec![vec![Sums::default(); metrics.len()]; left.len()];
        let mut failed: Vec<Option<String>> = vec![None; left.len()];
        for &item in &split.search[..problems] {
            let found = settings.measure(source, &of[item], &left, seeds, metrics)?;
            for (at, terms) in found.into_iter().enumerate() {
                match terms {
                    Ok(terms) => summed[at].iter_mut().zip(terms).for_each(|(sum, term)| sum.add(term)),
                    Err(error) => failed[at] = Some(error),
                }
            }
        }
        let mut ranked: Vec<Ranked> = Vec::new();
        for (at, &candidate) in left.iter().enumerate().filter(|(_, candidate)| **candidate != ANCHOR) {
            let worth = goal.worth(&summed[at]);
            match (&failed[at], worth) {
                (None, Some(worth)) => {
                    let risk = goal.excess(kinds, &summed[at]);
                    ranked.push(Ranked { candidate, worth, risk });
                }
                (error, _) => dropped.push(Dropped {
                    setting: settings.named(candidate),
                    round: round + 1,
                    reason: error.clone().unwrap_or_else(|| format!("no {} on these problems", metrics[0])),
                }),
            }
        }
        let room = if round + 1 == rounds {
            spec.survivors
        } else {
            (spec.survivors << (rounds - 2 - round)).max(1)
        };
        let kept = in_layers(&ranked, room);
        for gone in ranked.iter().filter(|ranked| !kept.contains(&ranked.candidate)) {
            let better =
                ranked.iter().filter(|other| kept.contains(&other.candidate) && other.beats(gone)).count();
            dropped.push(Dropped {
                setting: settings.named(gone.candidate),
                round: round + 1,
                reason: format!(
                    "{} {} with losses {:+.4} beyond the limit on {problems} problems, {} seeds; {better} of those kept are as good in both",
                    metrics[0],
                    gone.worth.abs(),
                    gone.risk,
                    seeds.len()
                ),
            });
        }
        left = std::iter::once(ANCHOR).chain(kept).collect();
    }
    Ok((left, dropped))
}

struct Ranked {
    candidate: usize,
    worth: f64,
    risk: f64,
}

impl Ranked {
    fn beats(&self, other: &Self) -> bool {
        self.worth >= other.worth
            && self.risk <= other.risk
            && (self.worth > other.worth || self.risk < other.risk || self.candidate < other.candidate)
    }
}

/// `room` candidates in order, by layers of those that none of the rest beats; within a layer, the less risky first.
fn in_layers(ranked: &[Ranked], room: usize) -> Vec<usize> {
    let mut rest: Vec<&Ranked> = ranked.iter().collect();
    let mut kept = Vec::new();
    while kept.len() < room && !rest.is_empty() {
        let (mut layer, others): (Vec<&Ranked>, Vec<&Ranked>) =
            rest.iter().partition(|one| !rest.iter().any(|other| other.beats(one)));
        layer.sort_by(|a, b| a.risk.total_cmp(&b.risk).then(a.candidate.cmp(&b.candidate)));
        kept.extend(layer.iter().take(room - kept.len()).map(|ranked| ranked.candidate));
        rest = others;
    }
    kept.sort_unstable();
    kept
}

impl Measured for Evictions<'_> {
    fn candidates(&self) -> usize {
        self.left.len()
    }

    fn items(&self) -> usize {
        self.items.len()
    }

    fn kinds(&self) -> &[Kind] {
        self.whole_loss.kinds
    }

    fn measure(&self, candidate: usize, item: usize, into: &mut [Term]) {
        into.copy_from_slice(&self.terms[item][candidate]);
    }

    fn anchor(&self) -> usize {
        ANCHOR
    }

    /// The smaller the budget, the bolder.
    fn boldness(&self, candidate: usize) -> f64 {
        -self.settings.places[self.left[candidate]].budget.map_or(f64::INFINITY, f64::from)
    }

    fn hint(&self) -> Option<usize> {
        None
    }
}

impl Study for Evictions<'_> {
    fn name(&self) -> &'static str {
        "eviction"
    }

    fn tuned(&self) -> String {
        "policies and budgets".to_owned()
    }

    fn item_ids(&self) -> &[String] {
        &self.items
    }

    fn metrics(&self) -> &[&'static str] {
        &self.metrics
    }

    fn setting(&self, candidate: usize) -> Named {
        self.settings.named(self.left[candidate])
    }

    /// The same policy at other budgets, and other policies at the same one.
    fn neighbours(&self, candidate: usize) -> Vec<(String, usize)> {
        let here = &self.settings.places[self.left[candidate]];
        let budget = |budget: Option<u32>| budget.map_or("-".to_owned(), |budget| budget.to_string());
        let mut found = Vec::new();
        for (at, &place) in self.left.iter().enumerate().filter(|(at, _)| *at != candidate) {
            let there = &self.settings.places[place];
            if there.policy == here.policy {
                found.push((format!("budget {} → {}", budget(here.budget), budget(there.budget)), at));
            } else if there.budget == here.budget {
                let labels = (self.settings.label(self.left[candidate]), self.settings.label(place));
                found.push((format!("policy {} → {}", labels.0, labels.1), at));
            }
        }
        found
    }

    fn yaml(&self, candidate: usize, id: &str, why: &str) -> String {
        let (settings, place) = (self.settings, &self.settings.places[self.left[candidate]]);
        let study = &settings.study;
        let seeds: Vec<String> = settings.scenario.seeds.iter().map(u64::to_string).collect();
        let next_token =
            study.next_token_every.map_or(String::new(), |every| format!("  next_token_every: {every}\n"));
        format!(
            "id: {id}\nwhy: {}\nseeds: [{}]\neviction:\n  budgets: [{}]\n  recent: {}\n  sinks: {}\n  period: {}\n  window: {}\n  \
             output_error_every: {}\n{next_token}  block_tokens: {}\n  bytes_per_scalar: {}\n  policies:\n    - {}\n",
            yaml::plain_or_quoted(why),
            seeds.join(", "),
            place.budget.unwrap_or(study.budgets[0]),
            study.recent,
            study.sinks,
            study.period,
            study.window,
            study.output_error_every,
            study.block_tokens,
            study.bytes_per_scalar,
            yaml::flow(&study.policies[place.policy].source(&settings.scenario.text)),
        )
    }

    fn searched(&self) -> Searched {
        Searched {
            settings: self.settings.places.len(),
            axes: Vec::new(),
            dropped: self.dropped.clone(),
            unrun: self.unrun.clone(),
        }
    }

    fn notes(&self, _chosen: Option<usize>) -> Vec<String> {
        let mut notes = vec![
            "qualities in a replay are proxies: a guarantee about one says nothing about accuracy, which `kvlab exec` measures".to_owned(),
            "every metric is the mean over problems of what the problem gives by itself, over all seeds of a stochastic policy; peaks are means of peaks".to_owned(),
        ];
        if self.metrics[..].iter().any(|id| id.ends_with("_error")) {
            notes.push(
                "errors above 1 count as 1: what is guaranteed is the mean of errors cut there".to_owned(),
            );
        }
        notes
    }

    fn elsewhere(&self, candidate: usize, other: &dyn TraceSource) -> Result<Elsewhere, TuneError> {
        let (ids, of) = items(other, other.sequences())?;
        let (mut here, mut there, mut unrun) = (Vec::new(), Vec::new(), Vec::new());
        for item in &of {
            let pair = [ANCHOR, self.left[candidate]];
            let found =
                self.settings.measure(other, item, &pair, &self.settings.scenario.seeds, &self.metrics)?;
            let mut terms = self.whole_loss.applied(found, |_, reason| unrun.push(reason));
            here.extend(terms.pop());
            there.extend(terms.pop());
        }
        Ok(Elsewhere { items: ids, candidate: here, anchor: there, unrun })
    }
}

/// Chooses a policy and a budget of `study`.
pub(super) fn tune(
    study: &EvictionStudy,
    scenario: &Scenario,
    spec: &TuneSpec,
    source: &dyn TraceSource,
    transfer: Option<&dyn TraceSource>,
) -> Result<super::TuneReport, TuneError> {
    let (objective, constraints) = goal(spec);
    let metrics = metrics_of(&objective, &constraints, CONTEXT);
    let kinds: Vec<Kind> = metrics
        .iter()
        .enumerate()
        .map(|(at, id)| kind(id, at > 0 && at <= constraints.len()))
        .collect::<Result<_, _>>()?;
    let settings = Settings::of(scenario, study)?;
    let (ids, of) = items(source, &read_sequences(scenario, source))?;
    let split = super::study::split(&ids, spec)?;
    let goal = super::study::goal(&objective, &constraints, spec);
    let (left, dropped) = halved(&settings, source, (&of, &split), spec, &goal, (&metrics, &kinds))?;
    let whole_loss = WholeLoss { objective: &objective, constraints: &constraints, kinds: &kinds };
    let mut terms: Vec<Vec<Vec<Term>>> = Vec::with_capacity(ids.len());
    let mut unrun: Vec<Option<Unrun>> = vec![None; left.len()];
    for item in &of {
        let found = settings.measure(source, item, &left, &scenario.seeds, &metrics)?;
        terms.push(whole_loss.applied(found, |at, reason| {
            let fresh = || Unrun { setting: settings.named(left[at]), problems: 0, of: ids.len(), reason };
            unrun[at].get_or_insert_with(fresh).problems += 1;
        }));
    }
    let evictions = Evictions {
        left,
        settings: &settings,
        items: ids,
        metrics,
        whole_loss,
        terms,
        dropped,
        unrun: unrun.into_iter().flatten().collect(),
    };
    let wanted = (objective.clone(), constraints.clone());
    super::study::report(&evictions, scenario, spec, wanted, &split, source, transfer)
}
