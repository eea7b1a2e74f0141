//! The replay decides as its naive twin does.

use super::naive::{self, Solved, Thresholds};
use super::{model, rksc, some_trees};
use kvlab_sim::trace::Prefix;
use kvlab_sim::trees::{ProblemDecision, TreeFacts, replay_problem};
use proptest::prelude::*;
use serde_json::json;

fn thresholds() -> impl Strategy<Value = Thresholds> {
    let gates = (0.0f64..3.0, 0.5f64..1.05, 0.3f64..0.95, 0.0f64..0.2);
    (gates, 0.0f64..4.5, 0.0f64..2.0, 0usize..4, 1usize..3, any::<bool>()).prop_map(
        |((alpha, tau, tau_conf, margin), theta, epsilon, min_layer, patience, raw)| Thresholds {
            alpha,
            tau,
            tau_conf,
            margin,
            theta,
            epsilon,
            min_layer,
            patience,
            raw,
        },
    )
}

pub(super) fn stack(t: &Thresholds) -> kvlab_sim::trees::TreeStack {
    rksc(
        &json!({ "alpha": t.alpha, "tau": t.tau }),
        &json!({ "tau_conf": t.tau_conf, "margin": t.margin }),
        &json!({
            "theta": t.theta, "epsilon": t.epsilon, "min_layer": t.min_layer, "patience": t.patience,
            "lens": if t.raw { "raw" } else { "final-norm" },
        }),
    )
}

fn as_solved(decision: &ProblemDecision) -> Solved {
    Solved {
        shared: decision.branches.iter().map(|b| b.sharing.prefix == Prefix::Root).collect(),
        skipped: decision.skipped,
        layers: decision.branches.iter().filter_map(|b| b.layers_run).map(usize::from).collect(),
        winner: decision.choice.winner.unwrap() - 1,
        answer: decision.choice.answer.clone(),
        correct: decision.choice.correct,
    }
}

fn decided(t: &Thresholds, facts: &TreeFacts) -> ProblemDecision {
    replay_problem(&stack(t), facts, model(7), 0, &[]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_is_that_of_the_naive_twin(seed in 0u64..50, t in thresholds()) {
        for facts in some_trees(seed) {
            prop_assert_eq!(as_solved(&decided(&t, &facts)), naive::solve(&facts.problem, &t));
        }
    }
}

/// The twin and the replay see all kinds of decisions, so that their agreement says something.
#[test]
fn the_cases_of_the_twin_share_skip_and_exit_in_part() {
    let t = Thresholds {
        alpha: 1.5,
        tau: 0.8,
        tau_conf: 0.7,
        margin: 0.06,
        theta: 0.65,
        epsilon: 0.3,
        min_layer: 1,
        patience: 1,
        raw: false,
    };
    let all: Vec<Solved> =
        (0..10).flat_map(some_trees).map(|facts| as_solved(&decided(&t, &facts))).collect();
    let parts = |share: usize, of: usize| assert!(share * 10 > of && share * 10 < of * 9, "{share} of {of}");
    parts(all.iter().flat_map(|s| &s.shared).filter(|s| **s).count(), all.len() * 5);
    parts(all.iter().filter(|s| s.skipped).count(), all.len());
    let verified = all.iter().map(|s| s.layers.len()).sum();
    parts(all.iter().flat_map(|s| &s.layers).filter(|l| **l < 7).count(), verified);
    parts(all.iter().filter(|s| s.correct == Some(true)).count(), all.len());
}

/// The invariants at the end of the specification.
#[test]
fn tau_zero_shares_all_tau_above_one_none_and_theta_zero_never_exits() {
    let base = Thresholds {
        alpha: 1.5,
        tau: 0.0,
        tau_conf: 2.0,
        margin: 0.0,
        theta: 0.0,
        epsilon: 9.0,
        min_layer: 0,
        patience: 1,
        raw: false,
    };
    for facts in some_trees(3) {
        let all = as_solved(&decided(&base, &facts));
        assert!(all.shared.iter().all(|shared| *shared) && all.layers == [7; 5] && !all.skipped);
        let none = as_solved(&decided(&Thresholds { tau: 1.1, ..base.clone() }, &facts));
        assert!(none.shared.iter().all(|shared| !*shared));
    }
}
