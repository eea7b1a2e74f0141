//! Paired differences to a baseline, computed again by hand from the rows by item.

use super::{Both, STUDY, options};
use kvlab_sim::results::{Bootstrap, Results, mcnemar};
use kvlab_sim::run::{source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::{Table, Value};

fn run(text: &str) -> Results {
    let (source, scenario) = (Both::small(), Scenario::parse(text, "test").unwrap());
    study(&scenario, &source, source_info(&source, "none", ""), &options(2)).unwrap()
}

fn text(table: &Table, column: &str, row: usize) -> String {
    if let Value::Text(text) = table.value(column, row) { text } else { String::new() }
}

fn real(table: &Table, column: &str, row: usize) -> Option<f64> {
    if let Value::Real(value) = table.value(column, row) { Some(value) } else { None }
}

/// The row of a policy, budget and seed.
fn find(cells: &Table, study: &str, policy: &str, budget: Option<i64>, seed: Option<i64>) -> usize {
    let wanted = |value: Option<i64>| value.map_or(Value::Absent, Value::Int);
    (0..cells.rows())
        .find(|&row| {
            text(cells, "study", row) == study
                && text(cells, "policy", row) == policy
                && cells.value("budget_tokens", row) == wanted(budget)
                && cells.value("seed", row) == wanted(seed)
        })
        .unwrap()
}

#[test]
fn differences_over_trees_are_those_of_the_problems_table() {
    let results = run(STUDY);
    let problems = results.more("problems").unwrap();
    let right = |cell: &str| -> Vec<f64> {
        (0..problems.rows())
            .filter(|&row| text(problems, "cell", row) == cell)
            .map(|row| f64::from(u8::from(problems.value("correct", row) == Value::Bool(true))))
            .collect()
    };
    let cells = &results.cells;
    let base = find(cells, "trees", "full", None, None);
    let base_id = text(cells, "cell", base);
    let of_base = right(&base_id);
    assert_eq!(cells.value("baseline", base), Value::Absent);
    let mut compared = 0;
    for row in (0..cells.rows()).filter(|&row| text(cells, "study", row) == "trees" && row != base) {
        let differences: Vec<f64> =
            right(&text(cells, "cell", row)).iter().zip(&of_base).map(|(a, b)| a - b).collect();
        let n = differences.len();
        let mean = differences.iter().sum::<f64>() / n as f64;
        assert_eq!(text(cells, "baseline", row), base_id);
        assert!((real(cells, "tree_accuracy_vs_baseline", row).unwrap() - mean).abs() < 1e-12);
        assert_eq!(cells.value("tree_accuracy_vs_baseline_n", row), Value::Int(n as i64));
        let gained = differences.iter().filter(|d| **d > 0.0).count() as u64;
        let lost = differences.iter().filter(|d| **d < 0.0).count() as u64;
        let p = real(cells, "tree_accuracy_vs_baseline_p", row).unwrap();
        assert_eq!(p.to_bits(), mcnemar(gained, lost).to_bits());
        // The full pipeline with the same winner is the baseline here, so the two paired columns agree.
        let vs_full = real(cells, "tree_accuracy_vs_full", row).unwrap();
        assert!((vs_full - mean).abs() < 1e-12);
        compared += 1;
    }
    assert_eq!(compared, 10, "eight of the sweep, two seeds of the random one");
}

#[test]
fn an_eviction_is_compared_at_its_own_budget_and_seed() {
    let results = run(&STUDY.replace("compare: {baseline: full}", "compare: {baseline: random}"));
    let (cells, items) = (&results.cells, results.more("items").unwrap());
    let values = |cell: &str| -> Vec<f64> {
        (0..items.rows())
            .filter(|&row| {
                text(items, "cell", row) == cell && text(items, "metric", row) == "attn_mass_recall"
            })
            .map(|row| real(items, "value", row).unwrap())
            .collect()
    };
    for (policy, budget, seed, base_seed) in
        [("snapkv", 16, None, 0), ("snapkv", 24, None, 0), ("vase-attnv", 16, Some(1), 1)]
    {
        let row = find(cells, "eviction", policy, Some(budget), seed);
        let base = find(cells, "eviction", "random", Some(budget), Some(base_seed));
        assert_eq!(text(cells, "baseline", row), text(cells, "cell", base), "{policy} {budget}");
        let of = |row: usize| values(&text(cells, "cell", row));
        let differences: Vec<Option<f64>> = of(row).iter().zip(of(base)).map(|(a, b)| Some(a - b)).collect();
        assert_eq!(differences.len(), 3);
        let estimate = Bootstrap::by_item(["a", "b", "c"]).mean(&differences).unwrap();
        let (low, high) = estimate.interval.unwrap();
        for (part, expected) in
            [("", estimate.value), ("_lo", low), ("_hi", high), ("_se", estimate.se.unwrap())]
        {
            let found = real(cells, &format!("attn_mass_recall_vs_baseline{part}"), row).unwrap();
            assert!((found - expected).abs() < 1e-12, "{policy} {part}: {found} {expected}");
        }
        // Three sequences: four of eight sign patterns at the least, and never enough to tell.
        let p = real(cells, "attn_mass_recall_vs_baseline_p", row).unwrap();
        assert!((0.25..=1.0).contains(&p) && (p * 8.0).fract().abs() < 1e-12, "{p}");
        let lint = text(cells, "lint", row);
        assert!(lint.contains("attn_mass_recall: 3 items cannot tell it from `random`"), "{lint}");
    }
    // `full` evicts nothing at any budget: there is no random cell without a budget to stand beside it.
    let full = find(cells, "eviction", "full", None, None);
    assert_eq!(cells.value("baseline", full), Value::Absent);
}

/// A study may have one kind of rows by item, or none that has numbers.
#[test]
fn a_study_without_trees_is_compared_too() {
    let (start, rest) = STUDY.split_once("pool:").unwrap();
    let alone = format!("{start}{}", &rest[rest.find("compare:").unwrap()..]);
    let results = run(&alone);
    assert!(results.more("problems").is_none() && results.more("items").is_some());
    let compared = |table: &Table| {
        (0..table.rows()).filter(|&row| table.value("baseline", row) != Value::Absent).count()
    };
    assert_eq!(compared(&results.cells), compared(&run(STUDY).cells) - 10, "ten cells over trees");
    let (_, trees) = STUDY.split_once("trees:").unwrap();
    let (head, _) = STUDY.split_once("eviction:").unwrap();
    assert_eq!(compared(&run(&format!("{head}trees:{trees}")).cells), 10);
}

#[test]
fn a_baseline_that_cannot_be_one_is_refused() {
    let refused =
        |from: &str, to: &str| Scenario::parse(&STUDY.replace(from, to), "test").unwrap_err().to_string();
    let message = refused("baseline: full", "baseline: ful");
    assert!(
        message.contains("compare.baseline is `ful`") && message.contains("did you mean `full`?"),
        "{message}"
    );
    let message = refused("baseline: full", "baseline: gated");
    assert!(message.contains("a stack at one point"), "{message}");
    let message = refused("trees:\n", "trees:\n  per_problem: false\n");
    assert!(message.contains("trees.per_problem is false"), "{message}");
    let message = refused("{baseline: full}", "{baseline: full, by: sequence}");
    assert!(message.contains("unknown variant `sequence`"), "{message}");
}
