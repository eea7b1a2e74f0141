//! Studies over branch trees: rows, tables, intervals, lint, threads.

use super::{VOCAB, naive, shape};
use kvlab_sim::results::{Formats, Results, read, write};
use kvlab_sim::run::{RunOptions, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::{Table, Value};
use kvlab_sim::trace::TraceSource;
use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};

const STUDY: &str = "
id: trees
why: What do sharing, skip and exit decide?
seeds: [0, 1]
trees:
  stacks:
    - label: full
    - label: rksc
      share: {kind: asks}
      verify: {kind: cgee}
      exit: {kind: entropy, params: {min_layer: 1}}
      sweep: {share.tau: [0.7, 0.9], exit.theta: [1, 2], exit.epsilon: 1}
    - label: chance
      verify: {kind: random, params: {rate: 0.4}}
";

fn source() -> SyntheticBranches {
    let params = BranchParams {
        problems: 12,
        branches: 5,
        generated: 6,
        sigma_noise: 0.05,
        ..BranchParams::default()
    };
    SyntheticBranches::build(shape(7), 3, params).unwrap()
}

fn run(text: &str, threads: usize) -> Results {
    let source = source();
    let scenario = Scenario::parse(text, "test").unwrap();
    let options = RunOptions { threads, command: "test".to_owned(), progress: &|_, _| {} };
    study(&scenario, &source, source_info(&source, "none", ""), &options).unwrap()
}

fn int(table: &Table, column: &str, row: usize) -> i64 {
    match table.value(column, row) {
        Value::Int(value) => value,
        other => panic!("{column} {row}: {other:?}"),
    }
}

fn real(table: &Table, column: &str, row: usize) -> f64 {
    match table.value(column, row) {
        Value::Real(value) => value,
        other => panic!("{column} {row}: {other:?}"),
    }
}

fn text(table: &Table, column: &str, row: usize) -> String {
    match table.value(column, row) {
        Value::Text(value) => value,
        other => panic!("{column} {row}: {other:?}"),
    }
}

#[test]
fn rows_count_what_the_naive_twin_counts() {
    let results = run(STUDY, 2);
    let cells = &results.cells;
    // One full, four of the sweep, two seeds of the random one.
    assert_eq!(cells.rows(), 7);
    let source = source();
    let problems: Vec<_> = (0..source.problems()).map(|at| source.problem(at).unwrap()).collect();
    for row in 1..5 {
        assert_eq!(text(cells, "status", row), "ok");
        let t = naive::Thresholds {
            alpha: 1.5,
            tau: real(cells, "tau", row),
            tau_conf: 0.7,
            margin: 0.06,
            theta: real(cells, "theta", row),
            epsilon: 1.0,
            min_layer: 1,
            patience: 1,
            raw: false,
        };
        let all = naive::Thresholds { tau: 2.0, tau_conf: 2.0, theta: 0.0, ..t.clone() };
        let solved: Vec<_> = problems.iter().map(|problem| naive::solve(problem, &t)).collect();
        let full: Vec<_> = problems.iter().map(|problem| naive::solve(problem, &all)).collect();
        let count = |of: &dyn Fn(&naive::Solved, &naive::Solved) -> usize| {
            solved.iter().zip(&full).map(|(s, f)| of(s, f)).sum::<usize>() as i64
        };
        let right = |s: &naive::Solved| s.correct == Some(true);
        for (column, expected) in [
            ("tree_accuracy_num", count(&|s, _| usize::from(right(s)))),
            ("tree_accuracy_den", 12),
            ("full_pipeline_accuracy_num", count(&|_, f| usize::from(right(f)))),
            ("full_pipeline_agreement_num", count(&|s, f| usize::from(s.answer == f.answer))),
            ("harm_rate_num", count(&|s, f| usize::from(right(f) && !right(s)))),
            ("help_rate_num", count(&|s, f| usize::from(right(s) && !right(f)))),
            ("share_rate_num", count(&|s, _| s.shared.iter().filter(|shared| **shared).count())),
            ("share_rate_den", 60),
            ("verify_skip_rate_num", count(&|s, _| usize::from(s.skipped))),
            ("verify_exit_rate_num", count(&|s, _| s.layers.iter().filter(|l| **l < 7).count())),
            ("verify_layer_skip_rate_num", count(&|s, _| s.layers.iter().map(|l| 7 - l).sum())),
            ("verify_layer_skip_rate_den", count(&|s, _| 7 * s.layers.len())),
        ] {
            assert_eq!(int(cells, column, row), expected, "{column} {row}");
        }
        let difference = count(&|s, _| usize::from(right(s))) - count(&|_, f| usize::from(right(f)));
        assert!((real(cells, "tree_accuracy_vs_full", row) - difference as f64 / 12.0).abs() < 1e-12);
    }
    // The full pipeline agrees with itself and costs all there is.
    assert_eq!(int(cells, "full_pipeline_agreement_num", 0), 12);
    assert_eq!(int(cells, "harm_rate_num", 0) + int(cells, "help_rate_num", 0), 0);
    for column in ["prefill_work_rate", "verify_work_rate", "generated_token_rate"] {
        assert!((real(cells, column, 0) - 1.0).abs() < 1e-12, "{column}");
    }
}

/// The gate's passes over the branch prompts cost what a full prefill does: it can never pay, and the table says so.
#[test]
fn a_gate_that_reads_the_whole_prompt_can_never_pay() {
    let study = STUDY.replace("share: {kind: asks}", "share: {kind: asks, params: {STATES}}");
    for (states, pays) in [("states_from: branch-prompt", false), ("states_from: template-table", true)] {
        let cells = run(&study.replace("STATES", states), 1).cells;
        let (needed, work) = (real(&cells, "break_even_share_rate", 1), real(&cells, "prefill_work_rate", 1));
        assert_eq!(needed < 1.0, pays, "{states} {needed}");
        // 12 problems of 5 branches: a prompt has 96 + 16 tokens, the root's prefix 96.
        let overhead = if pays { 96.0 } else { 96.0 + 5.0 * 112.0 };
        assert!((needed - overhead / (5.0 * 96.0)).abs() < 1e-12);
        let share = real(&cells, "share_rate", 1);
        assert_eq!(share > needed, work < 1.0, "{share} {needed} {work}");
        assert!(
            (work - (overhead + 5.0 * (share * 16.0 + (1.0 - share) * 112.0)) / (5.0 * 112.0)).abs() < 1e-12
        );
    }
}

/// The expectation over random skips is what the draws give on average.
#[test]
fn the_random_control_is_the_mean_over_draws() {
    let seeds: Vec<String> = (0..400).map(|seed| seed.to_string()).collect();
    let study = STUDY.replace("[0, 1]", &format!("[{}]", seeds.join(", "))).replace("rate: 0.4", "rate: 0.5");
    let cells = run(&study, 2).cells;
    let drawn: Vec<f64> = (5..405).map(|row| real(&cells, "tree_accuracy", row)).collect();
    let expected: Vec<f64> = (5..405).map(|row| real(&cells, "random_skip_accuracy", row)).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    // A draw's accuracy has a standard deviation below 1/6 over 12 problems; four standard errors of 400 draws are 0.033.
    assert!((mean(&drawn) - mean(&expected)).abs() < 0.034, "{} {}", mean(&drawn), mean(&expected));
}

#[test]
fn tables_are_written_read_and_the_same_for_any_number_of_threads() {
    let results = run(STUDY, 1);
    let problems = results.more("problems").unwrap();
    assert_eq!(problems.rows(), 7 * 12);
    let steps = results.more("steps").unwrap();
    let axes: std::collections::BTreeSet<String> =
        (0..steps.rows()).map(|row| text(steps, "axis", row)).collect();
    assert_eq!(axes.into_iter().collect::<Vec<_>>(), ["epsilon", "margin", "tau", "tau-conf", "theta"]);
    // The step of each axis that holds the base gives the first cell of the stack.
    for row in 0..steps.rows() {
        let column = match text(steps, "axis", row).as_str() {
            "tau-conf" => "tau_conf",
            "theta" => "theta_nats",
            "epsilon" => "epsilon_nats",
            "tau" => "tau",
            _ => "margin",
        };
        let base = real(steps, column, row);
        let is_above = |v: Value| if let Value::Real(v) = v { base > v } else { true };
        let is_upto = |v: Value| if let Value::Real(v) = v { base <= v } else { true };
        if is_above(steps.value("above", row)) && is_upto(steps.value("upto", row)) {
            for (step, cell) in [
                ("correct_problems", "tree_accuracy_num"),
                ("shared_branches", "share_rate_num"),
                ("skipped_problems", "verify_skip_rate_num"),
                ("exited_branches", "verify_exit_rate_num"),
                ("harmed_problems", "harm_rate_num"),
            ] {
                assert_eq!(int(steps, step, row), int(&results.cells, cell, 1), "{step}");
            }
        }
    }
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    write(folders[0].path(), &results, Formats::WITH_CSV).unwrap();
    write(folders[1].path(), &run(STUDY, 3), Formats::WITH_CSV).unwrap();
    for name in ["cells", "series", "problems", "steps", "joint"] {
        for extension in ["parquet", "csv"] {
            let bytes =
                |at: usize| std::fs::read(folders[at].path().join(format!("{name}.{extension}"))).unwrap();
            assert!(bytes(0) == bytes(1), "{name}.{extension}");
        }
    }
    assert_eq!(read(folders[0].path()).unwrap(), results);
    // A later run without these tables leaves none behind.
    let plain = Results { more: Vec::new(), ..results };
    write(folders[0].path(), &plain, Formats::PARQUET).unwrap();
    assert!(!folders[0].path().join("steps.parquet").exists());
    assert_eq!(read(folders[0].path()).unwrap(), plain);
}

#[test]
fn thresholds_that_cannot_act_or_repeat_are_named_with_numbers() {
    let study = |params: &str, sweep: &str| {
        STUDY
            .replace("sweep: {share.tau: [0.7, 0.9], exit.theta: [1, 2], exit.epsilon: 1}", sweep)
            .replace("params: {min_layer: 1}", &format!("params: {{min_layer: 1, {params}}}"))
    };
    let most = f64::from(VOCAB).ln();
    let lint = |text_of: &str, row: usize| {
        let cells = run(text_of, 1).cells;
        if let Value::Text(found) = cells.value("lint", row) { found } else { String::new() }
    };
    let published = lint(&study("theta: 8, epsilon: 3", "sweep: {}"), 1);
    assert!(
        published.contains("theta is vacuous: 8.000 nats is not below the largest possible entropy"),
        "{published}"
    );
    assert!(published.contains(&format!("ln V = {most:.3}")), "{published}");
    assert!(
        published.contains("epsilon is vacuous: 3.000 nats is above every observed change"),
        "{published}"
    );
    let unreachable = lint(&study("theta: 0.0001, epsilon: 1", "sweep: {share.tau: [0, 1.5]}"), 1);
    assert!(unreachable.contains("theta is unreachable: no observed entropy is below"), "{unreachable}");
    assert!(
        unreachable.contains("tau is vacuous: 0 is not above the smallest observed value"),
        "{unreachable}"
    );
    let repeated = lint(&study("theta: 2, epsilon: 1", "sweep: {share.tau: [2, 3]}"), 2);
    assert!(repeated.contains("tau is unreachable: 3 is above every observed value"), "{repeated}");
    assert!(repeated.contains("tau 3 repeats 2: no observed value lies between them"), "{repeated}");
    let undecisive = lint(&study("theta: 2, epsilon: 1", "sweep: {verify.tau_conf: [0.1, 0.45]}"), 2);
    assert!(undecisive.contains("tau-conf"), "{undecisive}");
    // Rule B compares leads as shares of the largest confidence: none is above 1, all are 0 or more.
    let relative = |margin: f64| {
        let params = format!("verify: {{kind: cgee, params: {{relative_margin: {margin}}}}}");
        lint(&study("theta: 2, epsilon: 1", "sweep: {}").replace("verify: {kind: cgee}", &params), 1)
    };
    let never = relative(1.5);
    assert!(
        never.contains("relative margin is unreachable: 1.5 is above every observed lead (largest 0."),
        "{never}"
    );
    assert!(
        relative(0.0).contains("relative margin is vacuous: 0 is not above the smallest"),
        "{}",
        relative(0.0)
    );
    assert!(!relative(0.01).contains("relative margin is"), "{}", relative(0.01));
}

#[test]
fn a_trace_without_trees_and_a_stack_without_facts_are_refused_with_the_reason() {
    let plain = crate::support::synth::fixed();
    let scenario = Scenario::parse(STUDY, "test").unwrap();
    let options = RunOptions { threads: 1, command: "test".to_owned(), progress: &|_, _| {} };
    let error = study(&scenario, &plain, source_info(&plain, "none", ""), &options).unwrap_err();
    assert!(error.to_string().contains("no branch trees"), "{error}");
    let trees = source();
    let text = format!("{STUDY}exit: {{theta: 1, epsilon: 1}}\n");
    let scenario = Scenario::parse(&text, "test").unwrap();
    let error = study(&scenario, &trees, source_info(&trees, "none", ""), &options).unwrap_err();
    assert!(error.to_string().contains("no sequence"), "{error}");
}

/// Parameters of `zip` move together, each row with every combination of `sweep`; a value may come again in another row.
#[test]
fn zipped_parameters_move_together() {
    let zipped = STUDY.replace(
        "sweep: {share.tau: [0.7, 0.9], exit.theta: [1, 2], exit.epsilon: 1}",
        "sweep: {share.tau: [0.7, 0.9]}\n      zip: {exit.theta: [1, 2, 2], exit.epsilon: [1, 1, 0.5]}",
    );
    let cells = run(&zipped, 1).cells;
    let places: Vec<(f64, f64, f64)> = (1..7)
        .map(|row| (real(&cells, "theta", row), real(&cells, "epsilon", row), real(&cells, "tau", row)))
        .collect();
    let expected = [(1.0, 1.0), (2.0, 1.0), (2.0, 0.5)].map(|(a, b)| [(a, b, 0.7), (a, b, 0.9)]).concat();
    assert_eq!(places, expected);
    // The full pipeline before, two seeds of chance behind.
    assert_eq!(cells.rows(), 9);
    // A point is the same cell, however it was listed.
    let product = run(STUDY, 1).cells;
    assert_eq!(text(&cells, "cell", 1), text(&product, "cell", 1));
    for (from, to, parts) in [
        ("[1, 1, 0.5]", "[1, 1]", ["zip.exit.epsilon", "2 values", "as many as exit.theta has: 3"]),
        ("[1, 1, 0.5]", "[1, 1, 1]", ["trees.stacks[1].zip", "[2.0, 1.0] twice", "each row of values once"]),
        ("exit.theta: [1, 2, 2]", "share.tau: [1, 2, 3]", ["zip.share.tau", "under `sweep` too", "once"]),
    ] {
        let error = Scenario::parse(&zipped.replace(from, to), "s.yaml").unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
    }
}

#[test]
fn mistakes_in_stacks_are_named() {
    for (from, to, parts) in [
        ("kind: asks", "kind: ask", ["trees.stacks[1] (`rksc`)", "did you mean `asks`?"]),
        ("share.tau", "share.tua", ["trees.stacks[1]", "unknown field `tua`"]),
        ("share.tau", "shar.tau", ["trees.stacks[1].sweep.shar.tau", "did you mean `share`?"]),
        ("[0.7, 0.9]", "[0.7, 0.7]", ["share.tau is 0.7 twice", "each value once"]),
        ("label: chance", "label: rksc", ["trees.stacks", "`rksc` is used twice"]),
        ("rate: 0.4", "rate: 1.4", ["`rate` is 1.4", "0 to 1"]),
        ("exit.theta: [1, 2]", "exit.theta: [-2, -1]", ["`theta` is -1", "0 or more"]),
        ("share.tau: [0.7, 0.9]", "share.tau: 1, share.tau: 2", ["duplicate", "share.tau"]),
    ] {
        let error = Scenario::parse(&STUDY.replace(from, to), "s.yaml").unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
    }
    // A value that fits nowhere gives a skipped cell when others fit.
    let cells = run(&STUDY.replace("exit.theta: [1, 2]", "exit.theta: [1, -2]"), 1).cells;
    assert_eq!(text(&cells, "status", 2), "skipped");
    assert!(text(&cells, "error", 2).contains("-2"));
}
