//! The exact step function of one threshold.

use super::problem::ProblemFacts;
use super::{Axis, Counts, Setting, StepTable};
use crate::policy::verify::cgee::{self, Rule};
use rayon::prelude::*;

/// A stretch of a threshold on which nothing changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Thresholds above this belong to it; absent for no lower end.
    pub above: Option<f64>,
    /// Thresholds up to this belong to it, itself included; absent for no upper end.
    pub upto: Option<f64>,
    /// What all of them give.
    pub counts: Counts,
}

impl StepTable<'_> {
    /// The exact step function of a threshold, the others as in `base`. Neighbouring steps differ in some count or in some problem.
    ///
    /// Cost: O(steps · problems that change there), each problem evaluated once for each of its own steps.
    #[must_use]
    pub fn along(&self, axis: Axis, base: &Setting) -> Vec<Step> {
        // What each problem adds from each of its own edges on.
        let mut changes: Vec<(f64, Counts, Counts)> =
            self.problems.par_iter().flat_map_iter(|problem| self.changes(problem, axis, base)).collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let lowest = base.with(axis, f64::NEG_INFINITY);
        let mut counts = self.at(&lowest);
        let (mut steps, mut above, mut at) = (Vec::new(), None, 0);
        while at < changes.len() {
            let edge = changes[at].0;
            steps.push(Step { above, upto: Some(edge), counts });
            while let Some((_, before, after)) =
                changes.get(at).filter(|change| change.0.total_cmp(&edge).is_eq())
            {
                counts.replace(before, after);
                at += 1;
            }
            above = Some(edge);
        }
        steps.push(Step { above, upto: None, counts });
        steps
    }

    /// The observed values at which a threshold is compared with something, ascending and without repetition: beyond the largest and
    /// below the smallest it changes nothing more, and two thresholds between the same pair are the same setting.
    #[must_use]
    pub fn observed(&self, axis: Axis) -> Vec<f64> {
        let mut edges: Vec<f64> = self
            .problems
            .par_iter()
            .flat_map_iter(|problem| edges(problem, axis, self.rule.as_ref()))
            .collect();
        edges.sort_unstable_by(f64::total_cmp);
        edges.dedup_by(|a, b| a.total_cmp(b).is_eq());
        edges
    }

    /// Leads of the surest branch as shares of its confidence, which rule B compares with its relative margin, ascending and without repetition.
    #[must_use]
    pub fn relative_gaps(&self) -> Vec<f64> {
        let compositions = self.problems.iter().flat_map(|problem| &problem.compositions);
        let mut gaps: Vec<f64> = compositions.filter_map(|found| Some(found.lead?.relative_gap)).collect();
        gaps.sort_unstable_by(f64::total_cmp);
        gaps.dedup_by(|a, b| a.total_cmp(b).is_eq());
        gaps
    }

    /// (edge, counts up to it, counts above it) wherever the counts of a problem change.
    fn changes(&self, problem: &ProblemFacts, axis: Axis, base: &Setting) -> Vec<(f64, Counts, Counts)> {
        let mut edges = edges_at(problem, axis, self.rule.as_ref(), base);
        edges.sort_unstable_by(f64::total_cmp);
        edges.dedup_by(|a, b| a.total_cmp(b).is_eq());
        let mut before = problem.at(self.rules(), &base.with(axis, f64::NEG_INFINITY));
        let mut found = Vec::new();
        for edge in edges {
            let after = problem.at(self.rules(), &base.with(axis, edge.next_up()));
            if after != before {
                found.push((edge, before, after));
                before = after;
            }
        }
        found
    }
}

impl Counts {
    /// Takes what a problem gave out and puts what it gives in.
    fn replace(&mut self, before: &Self, after: &Self) {
        let swap = |total: &mut u64, out: u64, put: u64| *total = *total - out + put;
        swap(&mut self.shared, before.shared, after.shared);
        swap(&mut self.skipped, before.skipped, after.skipped);
        swap(&mut self.verified, before.verified, after.verified);
        swap(&mut self.exited, before.exited, after.exited);
        swap(&mut self.layers_run, before.layers_run, after.layers_run);
        swap(&mut self.correct, before.correct, after.correct);
        swap(&mut self.agreeing, before.agreeing, after.agreeing);
        swap(&mut self.harmed, before.harmed, after.harmed);
        swap(&mut self.helped, before.helped, after.helped);
    }
}

/// The largest thresholds that still give what they give, under any values of the others.
fn edges(problem: &ProblemFacts, axis: Axis, rule: Option<&cgee::Params>) -> Vec<f64> {
    if axis == Axis::Tau {
        return problem.cuts.clone();
    }
    let mut edges = Vec::new();
    for composition in &problem.compositions {
        edges.extend(skip_edges(composition.lead, axis, rule));
        edges.extend(composition.exits.iter().flat_map(|&at| exit_edges(problem, at, axis)));
    }
    edges
}

/// The same at the τ of a base setting.
fn edges_at(problem: &ProblemFacts, axis: Axis, rule: Option<&cgee::Params>, base: &Setting) -> Vec<f64> {
    if axis == Axis::Tau {
        return problem.cuts.clone();
    }
    let composition = problem.composition(base.tau);
    let mut edges = skip_edges(composition.lead, axis, rule);
    edges.extend(composition.exits.iter().flat_map(|&at| exit_edges(problem, at, axis)));
    edges
}

fn exit_edges(problem: &ProblemFacts, at: usize, axis: Axis) -> impl Iterator<Item = f64> + '_ {
    problem.exits[at].early.iter().filter_map(move |point| match axis {
        Axis::Theta => Some(point.entropy),
        Axis::Epsilon => Some(point.change),
        _ => None,
    })
}

fn skip_edges(lead: Option<cgee::Lead>, axis: Axis, rule: Option<&cgee::Params>) -> Vec<f64> {
    let (Some(lead), Some(rule)) = (lead, rule) else { return Vec::new() };
    let mut edges = Vec::new();
    match axis {
        Axis::TauConf => {
            if rule.rule != Rule::B {
                edges.push(lead.top);
            }
            if rule.rule != Rule::A {
                edges.push(largest_below(lead.top, rule.floor_scale));
            }
        }
        Axis::Margin if rule.rule != Rule::B => edges.push(lead.gap),
        _ => {}
    }
    edges
}

/// The largest x with `scale · x ≤ top`, in the arithmetic of the rule itself.
fn largest_below(top: f64, scale: f64) -> f64 {
    if !top.is_finite() {
        return top;
    }
    let mut x = top / scale;
    while scale * x > top {
        x = x.next_down();
    }
    while scale * x.next_up() <= top {
        x = x.next_up();
    }
    x
}
