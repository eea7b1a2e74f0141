//! Paired differences to a baseline, computed again by hand from the rows by item.

use super::{Both, STUDY, options};
use kvlab_sim::results::{Bootstrap, Results, mcnemar};
use kvlab_sim::run::{source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::{Table, Value};
use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::types::ModelShape;

const EXITS: &str = "
id: exits
why: What do other thresholds change?
exit: {lens: [final-norm, raw], theta: [0.1, 1.5, 3, 5], epsilon: [1, 3], min_layer: 0}
";

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

/// Rows by item of one cell and metric: (item, value, n), in the order of the table.
fn items_of(results: &Results, cell: &str, metric: &str) -> Vec<(String, f64, i64)> {
    let items = results.more("items").unwrap();
    (0..items.rows())
        .filter(|&row| text(items, "cell", row) == cell && text(items, "metric", row) == metric)
        .map(|row| match items.value("n", row) {
            Value::Int(n) => (text(items, "item", row), real(items, "value", row).unwrap(), n),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn exits_are_compared_with_the_one_at_the_thresholds_named_under_the_same_lens() {
    // Six layers: with two of them no pass can end early.
    let shape = ModelShape { layers: 6, q_heads: 2, kv_heads: 1, head_dim: 4, hidden: 8, vocab: 50 };
    let lengths = (0..3).map(|at| SynthLength { prompt_len: 6, len: 40 + at }).collect();
    let source = Synthetic::build("sinks-and-hitters", SynthSpec { shape, lengths, seed: 3 }).unwrap();
    let swept = |compare: &str| {
        let text = format!("{EXITS}compare: {compare}\n");
        let scenario = Scenario::parse(&text, "test").unwrap();
        study(&scenario, &source, source_info(&source, "none", ""), &options(2)).unwrap()
    };
    let results = swept("{exit: {theta: 3, epsilon: 3.0000000001}}");
    let cells = &results.cells;
    let is_exit = |row: &usize| text(cells, "study", *row) == "exit";
    let is_base = |row: usize| {
        (real(cells, "theta", row).unwrap() - 3.0).abs() < 1e-9
            && (real(cells, "epsilon", row).unwrap() - 3.0).abs() < 1e-9
    };
    let (mut compared, mut moved) = (0, 0);
    for row in (0..cells.rows()).filter(is_exit) {
        let base = (0..cells.rows())
            .filter(is_exit)
            .find(|&other| is_base(other) && text(cells, "lens", other) == text(cells, "lens", row))
            .unwrap();
        if base == row {
            assert_eq!(cells.value("baseline", row), Value::Absent);
            continue;
        }
        assert_eq!(text(cells, "baseline", row), text(cells, "cell", base));
        for metric in ["exit_agreement", "mean_layers_run", "net_skip_rate", "skip_rate"] {
            let of = |row: usize| items_of(&results, &text(cells, "cell", row), metric);
            let (here, there) = (of(row), of(base));
            assert_eq!(here.len(), 3, "three prompts");
            let mean = here.iter().zip(&there).map(|(a, b)| a.1 - b.1).sum::<f64>() / 3.0;
            let found = real(cells, &format!("{metric}_vs_baseline"), row).unwrap();
            assert!((found - mean).abs() < 1e-12, "{metric}: {found} {mean}");
            moved += usize::from(mean.abs() > 1e-9);
        }
        // Prompts of one sequence each: the mean of a mean over sequences is that over items.
        let layers = items_of(&results, &text(cells, "cell", row), "mean_layers_run");
        let mean = layers.iter().map(|item| item.1).sum::<f64>() / 3.0;
        assert!((real(cells, "mean_layers_run", row).unwrap() - mean).abs() < 1e-12);
        assert!(layers.iter().all(|item| item.2 == 1));
        assert!(text(cells, "lint", row).contains("3 items cannot tell it from `theta 3, epsilon 3"));
        compared += 1;
    }
    // Two lenses at four thetas and two epsilons, but the two that they are compared with.
    assert_eq!(compared, 14);
    assert!(moved > 8, "{moved}");
    // Those of both lenses with one of them.
    let crossed = swept("{exit: {theta: 0.1, epsilon: 1, lens: raw}}");
    let with = (0..crossed.cells.rows()).filter(|&row| crossed.cells.value("baseline", row) != Value::Absent);
    assert_eq!(with.count(), 15);
}

#[test]
fn pools_are_compared_by_problem_and_by_runs_of_requests_where_there_is_none() {
    let by = |text: &str| {
        let results = run(&text.replace("compare: {baseline: full}", "compare: {baseline: lru}"));
        let cells = results.cells.clone();
        let rows: Vec<usize> =
            (0..cells.rows()).filter(|&row| text_is(&cells, "study", row, "pool")).collect();
        (results, cells, rows)
    };
    let text_of = |cells: &Table, row: usize| text(cells, "cell", row);
    // Two hundred generated requests in fifty runs of four.
    let (results, cells, rows) = by(STUDY);
    for &row in &rows {
        let here = items_of(&results, &text_of(&cells, row), "pool_hit_rate");
        assert_eq!(
            (here.len(), here[0].0.as_str(), here[49].0.as_str()),
            (50, "requests 1-4", "requests 197-200")
        );
        assert!(here.iter().all(|item| item.2 == 4));
        // Every request of this stream asks for as many tokens, so the mean of runs is the rate.
        let mean = here.iter().map(|item| item.1).sum::<f64>() / 50.0;
        assert!((mean - real(&cells, "pool_hit_rate", row).unwrap()).abs() < 1e-12);
        let base = rows.iter().copied().find(|&other| {
            text_is(&cells, "policy", other, "lru")
                && cells.value("seed", other) == cells.value("seed", row)
                && cells.value("pool_capacity_blocks", other) == cells.value("pool_capacity_blocks", row)
        });
        let base = base.unwrap();
        if base == row {
            continue;
        }
        assert_eq!(text(&cells, "baseline", row), text_of(&cells, base), "the same requests and room");
        let there = items_of(&results, &text_of(&cells, base), "pool_hit_rate");
        let mean = here.iter().zip(&there).map(|(a, b)| a.1 - b.1).sum::<f64>() / 50.0;
        assert!((real(&cells, "pool_hit_rate_vs_baseline", row).unwrap() - mean).abs() < 1e-12);
    }
    assert_eq!(rows.len(), 8, "two policies, two capacities, two streams");
    // Branches of recorded trees: eight problems, a root and four branches each.
    let recorded = STUDY.replace("stream: {kind: zipf, params: {requests: 200}}", "block_tokens: 4");
    let (results, cells, rows) = by(&recorded);
    for &row in &rows {
        let here = items_of(&results, &text_of(&cells, row), "pool_hit_rate");
        assert_eq!(here.len(), 8);
        assert!(here.iter().all(|item| item.2 == 5), "{here:?}");
    }
    // Without a comparison nothing else is known of a cell, and its id and numbers are those of before.
    let plain = run(&STUDY.replace("compare: {baseline: full}", ""));
    let other = run(STUDY);
    let pool = |results: &Results, column: &str| -> Vec<Value> {
        let of = |row: &usize| text_is(&results.cells, "study", *row, "pool");
        (0..results.cells.rows()).filter(of).map(|row| results.cells.value(column, row)).collect()
    };
    assert_eq!(pool(&plain, "cell"), pool(&other, "cell"));
    let (results, ..) = by(STUDY);
    for column in ["pool_hit_rate_num", "pool_evicted_blocks", "log_digest"] {
        assert_eq!(pool(&plain, column), pool(&results, column), "{column}");
    }
}

fn text_is(table: &Table, column: &str, row: usize, wanted: &str) -> bool {
    text(table, column, row) == wanted
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
    for (compare, parts) in [
        ("{}", ["compare is without a baseline", "`exit`"]),
        ("{exit: {theta: 5, epsilon: 1}}", ["compare.exit.theta is 5", "a value of exit.theta: 0.1"]),
        ("{exit: {theta: 0.1, epsilon: 5}}", ["compare.exit.epsilon is 5", "0.2, 1"]),
        ("{exit: {theta: 0.1}}", ["missing field `epsilon`", "line"]),
    ] {
        let message = refused("{baseline: full}", compare);
        assert!(parts.iter().all(|part| message.contains(part)), "{compare}: {message}");
    }
    let message = refused("{baseline: full}", "{baseline: full, by: sequence}");
    assert!(message.contains("unknown variant `sequence`"), "{message}");
}
