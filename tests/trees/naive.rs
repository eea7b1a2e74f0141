//! RKSC on one recorded problem, straight from the specification (§3, §4, §2.1), in library floats and without sharing a line with
//! the product.

use kvlab_sim::trace::{Outcome, Problem, VerdictLayer};

#[derive(Clone, Debug)]
pub(super) struct Thresholds {
    pub(super) alpha: f64,
    pub(super) tau: f64,
    pub(super) tau_conf: f64,
    pub(super) margin: f64,
    pub(super) theta: f64,
    pub(super) epsilon: f64,
    pub(super) min_layer: usize,
    pub(super) patience: usize,
    pub(super) raw: bool,
}

#[derive(Debug, PartialEq)]
pub(super) struct Solved {
    /// Whether each branch got the root's prefix.
    pub(super) shared: Vec<bool>,
    pub(super) skipped: bool,
    /// Layers run for each branch; empty after a skip.
    pub(super) layers: Vec<usize>,
    /// Among the branches, from 0.
    pub(super) winner: usize,
    pub(super) answer: Option<String>,
    pub(super) correct: Option<bool>,
}

pub(super) fn sigma(problem: &Problem, branch: usize, alpha: f64) -> f64 {
    let cosines: Vec<f64> =
        problem.branches[branch].similarity[1..].iter().map(|s| f64::from(s.cos_last)).collect();
    let n = cosines.len();
    let weight = |i: usize| if n == 1 { 1.0 } else { (alpha * i as f64 / (n - 1) as f64).exp() };
    let total: f64 = (0..n).map(weight).sum();
    cosines.iter().enumerate().map(|(i, c)| weight(i) / total * c).sum()
}

fn exit_layer(layers: &[VerdictLayer], t: &Thresholds) -> usize {
    let entropy: Vec<f64> =
        layers.iter().map(|l| f64::from(if t.raw { l.raw_entropy_nats } else { l.entropy_nats })).collect();
    for l in t.min_layer..layers.len() {
        // The p last differences, all between entropies recorded from the first layer that counts on.
        let has_history = l >= t.min_layer + t.patience;
        if has_history
            && entropy[l] < t.theta
            && (0..t.patience).all(|j| (entropy[l - j] - entropy[l - j - 1]).abs() < t.epsilon)
        {
            return l + 1;
        }
    }
    layers.len()
}

pub(super) fn solve(problem: &Problem, t: &Thresholds) -> Solved {
    let mut shared = Vec::new();
    let mut outcomes: Vec<&Outcome> = Vec::new();
    for branch in 1..problem.branches.len() {
        let reuse = sigma(problem, branch, t.alpha) >= t.tau;
        shared.push(reuse);
        let branch = &problem.branches[branch];
        outcomes.push(if reuse { branch.root.as_ref() } else { branch.own.as_ref() }.unwrap());
    }
    let confidence: Vec<f64> = outcomes
        .iter()
        .map(|o| o.steps.iter().map(|s| f64::from(s.top1_prob)).sum::<f64>() / o.steps.len() as f64)
        .map(|mean| f64::from(mean as f32))
        .collect();
    let mut sorted = confidence.clone();
    sorted.sort_by(|a, b| b.partial_cmp(a).unwrap());
    let skipped = sorted.len() < 2 || {
        let (top, second) = (sorted[0], sorted[1]);
        let a = top >= t.tau_conf && top - second >= t.margin;
        let b = top >= 0.9 * t.tau_conf && (top - second) / top.max(1e-6) >= 0.08;
        a || b
    };
    let mut layers = Vec::new();
    let mut value = Vec::new();
    for (outcome, c) in outcomes.iter().zip(&confidence) {
        let score = if skipped {
            *c
        } else {
            let facts = &outcome.verdict.as_ref().unwrap().layers;
            let run = exit_layer(facts, t);
            layers.push(run);
            f64::from(if t.raw { facts[run - 1].raw_p_yes } else { facts[run - 1].p_yes })
        };
        value.push(score * c.sqrt());
    }
    let mut winner = 0;
    for (at, v) in value.iter().enumerate() {
        if *v > value[winner] {
            winner = at;
        }
    }
    let chosen = outcomes[winner];
    Solved { shared, skipped, layers, winner, answer: chosen.answer.clone(), correct: chosen.correct }
}
