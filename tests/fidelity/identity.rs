//! A policy replayed over the recording of its own run decides what the run decided, in every layer and at every eviction.

use super::{SCENARIO, items};
use crate::executor::support::{golden_folder, load_options};
use kvlab_executor::closed_loop::{ExecPlan, Mode, exec};
use kvlab_executor::fidelity::{Fidelity, FidelityPlan, fidelity};
use kvlab_executor::{Model, Quiet};
use kvlab_sim::policy::registry::COMPOSITIONS;
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use std::num::NonZeroUsize;

fn plan<'a>(scenario: &'a Scenario, with_answers: bool) -> FidelityPlan<'a> {
    FidelityPlan {
        exec: ExecPlan {
            scenario,
            mode: Mode::Forced,
            max_new_tokens: 24,
            chunk: NonZeroUsize::new(64).unwrap(),
            command: "kvlab fidelity".to_owned(),
        },
        with_answers,
    }
}

fn compared(text: &str, with_answers: bool) -> Fidelity {
    let mut model = Model::load(&golden_folder().join("export/qwen3"), &load_options(), &Quiet).unwrap();
    let scenario = Scenario::parse(text, "test").unwrap();
    fidelity(&mut model, &items(), &plan(&scenario, with_answers), &Quiet).unwrap()
}

/// Every composition of the registry, those that look into the future or need a trained gate apart.
#[test]
fn every_policy_replays_its_own_run() {
    let uses: Vec<String> = COMPOSITIONS
        .iter()
        .map(|entry| entry.spec.id)
        .filter(|id| *id != "seer-gate")
        .map(|id| format!("{{use: {id}}}"))
        .collect();
    let text = format!(
        "id: all\nwhy: w\nseeds: [3]\nsource: {{limit: 3}}\neviction: {{budgets: [12], recent: 4, sinks: 1, policies: [{}]}}\n",
        uses.join(", ")
    );
    let found = compared(&text, false);
    let (mut exact, mut sets, mut future) = (0, 0, Vec::new());
    for cell in &found.cells {
        match &cell.identity {
            Some(identity) => {
                let first = identity.first.as_ref().map(ToString::to_string);
                assert!(identity.is_exact(), "{}: {first:?}", cell.policy);
                exact += 1;
                sets += identity.sets;
            }
            None => future.push(cell.policy.as_str()),
        }
    }
    assert_eq!(future, ["oracle"], "only what looks into the future cannot run");
    assert!(exact > 25 && sets > 1500, "{exact} cells, {sets} kept sets");
}

/// Executed rows are those of `kvlab exec`, and estimates those of the replay, each under its own arm.
#[test]
fn rows_are_those_of_the_runs_and_the_replay() {
    let found = compared(SCENARIO, true);
    let scenario = Scenario::parse(SCENARIO, "test").unwrap();
    let cells = &found.results.cells;
    let arms = |arm: &str| -> Vec<usize> {
        (0..cells.rows()).filter(|row| cells.value("arm", *row) == Value::Text(arm.to_owned())).collect()
    };
    assert_eq!((arms("replay").len(), arms("real").len()), (11, 22));
    for (mode, first) in [(Mode::Forced, 0), (Mode::Free, 11)] {
        let mut model = Model::load(&golden_folder().join("export/qwen3"), &load_options(), &Quiet).unwrap();
        let plan = ExecPlan { mode, ..plan(&scenario, true).exec };
        let alone = exec(&mut model, &items(), &plan, &Quiet).unwrap();
        for (row, at) in arms("real")[first..first + 11].iter().enumerate() {
            for name in ["cell", "policy", "log_digest", "next_token_kl", "accuracy", "evictions"] {
                assert_eq!(
                    cells.value(name, *at),
                    alone.cells.value(name, row),
                    "{mode:?}, {name}, row {row}"
                );
            }
        }
    }
    for row in arms("replay") {
        assert_eq!(cells.value("next_token_kl", row), Value::Absent);
        assert!(matches!(cells.value("attn_mass_recall", row), Value::Real(_)));
    }
    for row in &arms("real")[..11] {
        let count = |name: &str| cells.value(name, *row);
        assert_eq!(count("reproduced_rate_num"), count("reproduced_rate_den"));
        assert_eq!(cells.value("attn_mass_recall", *row), Value::Absent);
    }
    assert_eq!(compared(SCENARIO, true).results, found.results, "the same again");
}

#[test]
fn estimates_are_ranked_against_each_outcome() {
    let found = compared(SCENARIO, true);
    let table = found.results.more("fidelity").unwrap();
    let of = |name: &str, row: usize| table.value(name, row);
    let text = |name: &str, row: usize| match of(name, row) {
        Value::Text(text) => text,
        other => panic!("{name}: {other:?}"),
    };
    let outcomes: std::collections::BTreeSet<String> =
        (0..table.rows()).map(|row| text("outcome", row)).collect();
    assert!(outcomes.contains("next_token_kl") && outcomes.contains("top1_agreement"), "{outcomes:?}");
    for row in 0..table.rows() {
        let Value::Real(tau) = of("tau_b", row) else { panic!("a rank correlation") };
        assert!((-1.0..=1.0).contains(&tau));
    }
    for outcome in outcomes {
        let chosen = (0..table.rows())
            .filter(|row| text("outcome", *row) == outcome && of("chosen", *row) == Value::Bool(true))
            .count();
        assert!(chosen <= 1, "{outcome}: {chosen}");
    }
    // States of the full cache are its own.
    let series = &found.results.series;
    let full = found.results.cells.value("cell", 11);
    let cosines: Vec<Value> = (0..series.rows())
        .filter(|row| series.value("cell", *row) == full)
        .map(|row| series.value("value", row))
        .collect();
    assert!(!cosines.is_empty());
    for cosine in cosines {
        assert!(matches!(cosine, Value::Real(value) if (value - 1.0).abs() < 1e-9), "{cosine:?}");
    }
}
