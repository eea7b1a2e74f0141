//! Branch trees: the pipeline run live decides what its replay decides, for every registered policy.

use std::collections::BTreeSet;

use kvlab_executor::Quiet;
use kvlab_executor::branches::{TreeExec, TreeSet, exec_trees};
use kvlab_executor::fidelity::{pool_fidelity, tree_fidelity};
use kvlab_executor::workload::chain::LEVELS;
use kvlab_sim::policy::registry;
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::{Table, Value};

use crate::executor::support::{branch_plan, embedded};

fn exec<'a>(scenario: &'a Scenario, set: &TreeSet) -> TreeExec<'a> {
    TreeExec { scenario, plan: branch_plan(set), command: String::new() }
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "test.yaml").unwrap()
}

fn int(table: &Table, column: &str, row: usize) -> i64 {
    match table.value(column, row) {
        Value::Int(value) => value,
        other => panic!("{column} of row {row}: {other:?}"),
    }
}

/// Weights that make the learned exit stop at some layers: sure of itself where entropy is low.
const CLASSIFIER: &str = "trees:\n  stacks:\n    - {label: exit classifier, exit: {kind: classifier, params: {weights: [2, -8, 2, 1, 0, 0], confidence: 0.8}}}";

/// All stacks of `scenarios/rivals/trees.yaml`, and the one that needs weights: every registered policy of the branch families.
#[test]
fn every_policy_over_trees_is_reproduced_by_its_replay() {
    let text = include_str!("../../scenarios/rivals/trees.yaml")
        .replace("seeds: [0, 1, 2]", "seeds: [1]")
        .replace("trees:\n  stacks:", CLASSIFIER);
    let scenario = scenario(&text);
    let stacks = scenario.trees.as_ref().unwrap().stacks.iter().map(|choice| &choice.parts);
    let named: BTreeSet<&str> = stacks
        .flat_map(|parts| [&parts.share, &parts.verify, &parts.exit, &parts.winner])
        .map(|part| part.kind.as_str())
        .collect();
    let ids = registry::SHARES.iter().map(|entry| entry.spec.id);
    let ids = ids.chain(registry::VERIFIES.iter().map(|entry| entry.spec.id));
    let ids = ids.chain(registry::EXITS.iter().map(|entry| entry.spec.id));
    let ids = ids.chain(registry::WINNERS.iter().map(|entry| entry.spec.id));
    for id in ids {
        assert!(named.contains(id), "{id} is in no stack of rivals/trees.yaml");
    }

    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded(folder.path());
    let set = TreeSet::chain(LEVELS[0], 3, 21, 3, false);
    let found = tree_fidelity(&mut model, &set, &exec(&scenario, &set), &Quiet).unwrap();
    let mut decisions = 0;
    for cell in &found.cells {
        let identity = cell.identity.as_ref().unwrap_or_else(|| panic!("{}: {:?}", cell.stack, cell.failure));
        assert!(identity.first.is_none(), "{}: {}", cell.stack, identity.first.as_ref().unwrap());
        assert!(identity.is_exact(), "{}: {identity:?}", cell.stack);
        // 3 problems of 3 branches with 3 decisions, and 4 for each problem; without an answer 2 and 1.
        assert_eq!(identity.decisions, 39 - identity.undetermined * (3 + 3), "{}", cell.stack);
        assert!(identity.fact_error < 1e-4, "{}: {}", cell.stack, identity.fact_error);
        decisions += identity.decisions;
    }
    assert!(decisions > 39 * 30, "{decisions}");
    let cells = &found.results.cells;
    for row in 0..cells.rows() {
        assert_eq!(cells.value("status", row), Value::Text("ok".to_owned()));
    }
    // The same decisions give the same work, in the replay's row and in the run's.
    let half = found.cells.len();
    assert_eq!(cells.rows(), 2 * half);
    for row in (0..half).filter(|&row| found.cells[row].identity.as_ref().unwrap().undetermined == 0) {
        for metric in
            ["share_rate", "reused_token_rate", "verify_skip_rate", "verify_work_rate", "tree_accuracy"]
        {
            for suffix in ["_num", "_den"] {
                let column = format!("{metric}{suffix}");
                assert_eq!(
                    cells.value(&column, row),
                    cells.value(&column, half + row),
                    "{column}, row {row}"
                );
            }
        }
    }
}

/// A run knows what a branch that was cut would have answered, where a replay does not; and its rows stand beside the full
/// pipeline's on the same problems.
#[test]
fn a_run_answers_what_a_replay_of_a_decode_exit_cannot() {
    let scenario = scenario(
        "id: cut\nwhy: test\ntrees:\n  stacks:\n    - {label: full}\n    \
         - {label: cut, decode_exit: {min_steps: 3, confidence: 0.5, relative_lead: 0.0}}\n  steps: []\n",
    );
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded(folder.path());
    let set = TreeSet::chain(LEVELS[0], 2, 21, 3, false);
    let exec = exec(&scenario, &set);
    let executed = exec_trees(&mut model, &set, &exec, &Quiet).unwrap();
    let cells = &executed.cells;
    assert_eq!(cells.rows(), 2);
    assert_eq!(cells.value("arm", 0), Value::Text("real".to_owned()));
    // Full against full: no difference, no harm.
    assert_eq!(cells.value("accuracy_vs_full", 0), Value::Real(0.0));
    assert_eq!(int(cells, "harm_rate_num", 0), 0);
    assert_eq!(int(cells, "accuracy_den", 0), 2);
    // Five steps of a solution hold no answer, which needs ten and more.
    assert_eq!(int(cells, "decode_exit_rate_num", 1), 2);
    assert_eq!(int(cells, "undetermined_rate_num", 1), 0);
    assert_eq!(int(cells, "accuracy_num", 1), 0);
    assert!(int(cells, "generated_token_rate_num", 1) < int(cells, "generated_token_rate_den", 1));
    let problems = executed.more("problems").unwrap();
    assert_eq!(problems.rows(), 4);

    let found = tree_fidelity(&mut model, &set, &exec, &Quiet).unwrap();
    let cut = found.cells[1].identity.as_ref().unwrap();
    assert_eq!(cut.undetermined, 2);
    assert!(cut.is_exact(), "{cut:?}");
    // 2 problems of 3 branches with prefix and text, and the stop.
    assert_eq!(cut.decisions, 14);
}

#[test]
fn a_scenario_without_trees_is_refused_by_name() {
    let scenario = scenario("id: none\nwhy: test\neviction:\n  budgets: [16]\n  policies: [{use: full}]\n");
    let set = TreeSet::chain(LEVELS[0], 1, 21, 2, false);
    let error = exec(&scenario, &set).study().unwrap_err().to_string();
    assert!(error.contains("`none`") && error.contains("`trees`"), "{error}");
}

/// Every cache policy of the registry, over `scenarios/fidelity/pools.yaml`: blocks of real keys and values.
#[test]
fn a_cache_of_real_blocks_does_what_its_replay_says() {
    let scenario = scenario(include_str!("../../scenarios/fidelity/pools.yaml"));
    let labels: BTreeSet<&str> =
        scenario.pool.as_ref().unwrap().policies.iter().map(|choice| choice.label.as_str()).collect();
    for entry in registry::POOLS {
        assert!(labels.contains(entry.spec.id), "{} is not in fidelity/pools.yaml", entry.spec.id);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded(folder.path());
    let set = TreeSet::chain(LEVELS[0], 3, 21, 3, false);
    let found = pool_fidelity(&mut model, &set, &exec(&scenario, &set), &Quiet).unwrap();
    let cells = &found.results.cells;
    assert_eq!((found.cells.len(), cells.rows()), (18, 36));
    let mut reused = 0;
    for (at, cell) in found.cells.iter().enumerate() {
        let identity = cell.identity.as_ref().unwrap();
        assert!(identity.is_exact(), "{} at {}: {:?}", cell.policy, cell.capacity, identity.first);
        // 24 requests, and what they stored.
        assert!(identity.events > 24, "{identity:?}");
        assert_eq!(int(cells, "pool_hit_rate_num", at), int(cells, "pool_hit_rate_num", 18 + at));
        assert_eq!(int(cells, "pool_hit_rate_den", at), int(cells, "pool_hit_rate_den", 18 + at));
        // Another split into passes adds in another order.
        assert!(identity.logit_error < 1e-3, "{}", identity.logit_error);
        reused += identity.reused_tokens;
    }
    assert!(reused > 500, "{reused}");
    // Policies part: it is not one cache that was run eighteen times.
    let hits: BTreeSet<i64> = (0..9).map(|at| int(cells, "pool_hit_rate_num", 9 + at)).collect();
    assert!(hits.len() >= 3, "{hits:?}");
}
