//! Recorded branch trees in the serving engine: what it counts is what their replay says.

use kvlab_sim::observe::ChromeTrace;
use kvlab_sim::results::Results;
use kvlab_sim::run::{RunOptions, serve_timeline, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};
use kvlab_sim::types::ModelShape;

const LAYERS: u16 = 7;

fn source(params: BranchParams) -> SyntheticBranches {
    let shape = ModelShape { layers: LAYERS, q_heads: 1, kv_heads: 1, head_dim: 2, hidden: 2, vocab: 60 };
    SyntheticBranches::build(shape, 3, params).unwrap()
}

fn problems() -> BranchParams {
    BranchParams {
        problems: 12,
        branches: 5,
        generated: 6,
        sigma_noise: 0.05,
        prefix_tokens: 40,
        ..BranchParams::default()
    }
}

fn run(text: &str, params: BranchParams) -> Result<Results, String> {
    let source = source(params);
    let scenario = Scenario::parse(text, "test").map_err(|error| error.to_string())?;
    let options = RunOptions { threads: 2, command: "test".to_owned(), progress: &|_, _| {} };
    study(&scenario, &source, source_info(&source, "none", ""), &options).map_err(|error| error.to_string())
}

/// Stacks that share in every way, skip, exit and stop; each as an arm and as a stack under `trees`.
const STACKS: &[(&str, &str)] = &[
    ("no-kv", "{}"),
    ("exact", "{share: {kind: exact-prefix}}"),
    ("exact-root", "{share: {kind: exact-prefix, params: {against: root}}}"),
    ("radix", "{share: {kind: radix}}"),
    ("always", "{share: {kind: always}}"),
    ("never-similar", "{share: {kind: asks, params: {tau: 1.1}}}"),
    ("asks", "{share: {kind: asks, params: {tau: 0.8}}}"),
    ("asks-cheap", "{share: {kind: asks, params: {tau: 0.8, layers: first-quarter}}}"),
    ("asks-table", "{share: {kind: asks, params: {tau: 0.8, states_from: template-table}}}"),
    ("skip", "{verify: {kind: cgee, params: {tau_conf: 0.6, margin: 0.02}}}"),
    ("exit", "{exit: {kind: entropy, params: {theta: 2, epsilon: 1, min_layer: 1}}}"),
    ("adaptive", "{exit: {kind: entropy-adaptive, params: {theta: 2, epsilon: 1, min_layer: 1}}}"),
    (
        "rksc",
        "{share: {kind: asks, params: {tau: 0.8}}, verify: {kind: cgee, params: {tau_conf: 0.6, margin: 0.02}}, \
         exit: {kind: entropy, params: {theta: 2, epsilon: 1, min_layer: 1}}, decode_exit: {min_steps: 1, confidence: 0.5, relative_lead: 0.05}}",
    ),
];

fn scenario(cost: &str) -> String {
    let arms: String =
        STACKS.iter().map(|(label, stack)| format!("    - {{label: {label}, stack: {stack}}}\n")).collect();
    let stacks: String = STACKS
        .iter()
        .map(|(label, stack)| {
            let parts = stack.trim_start_matches('{');
            let comma = if parts == "}" { "" } else { ", " };
            format!("    - {{label: {label}{comma}{parts}\n")
        })
        .collect();
    format!(
        "id: both\nwhy: Does the engine do what the replay says?\nserve:\n  cost: {cost}\n  problems: recorded\n  \
         baseline: no-kv\n  arms:\n{arms}trees:\n  stacks:\n{stacks}"
    )
}

fn real(results: &Results, column: &str, row: usize) -> f64 {
    match results.cells.value(column, row) {
        Value::Real(value) => value,
        other => panic!("{column} {row}: {other:?}"),
    }
}

fn int(results: &Results, column: &str, row: usize) -> i64 {
    match results.cells.value(column, row) {
        Value::Int(value) => value,
        other => panic!("{column} {row}: {other:?}"),
    }
}

fn text(results: &Results, column: &str, row: usize) -> String {
    match results.cells.value(column, row) {
        Value::Text(value) => value,
        other => panic!("{column} {row}: {other:?}"),
    }
}

/// (row of the arm, row of the same stack under `trees`), by label.
fn pairs(results: &Results) -> Vec<(String, usize, usize)> {
    let find = |study: &str, label: &str| {
        let is_it =
            |&row: &usize| text(results, "study", row) == study && text(results, "policy", row) == label;
        (0..results.cells.rows()).find(is_it).unwrap()
    };
    STACKS
        .iter()
        .map(|(label, _)| ((*label).to_owned(), find("serve", label), find("trees", label)))
        .collect()
}

#[expect(clippy::cast_possible_truncation, reason = "counts as numbers")]
#[test]
fn the_engine_computes_takes_over_and_verifies_what_the_replay_counts() {
    let results = run(&scenario("{kind: unit}"), problems()).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for (label, arm, tree) in pairs(&results) {
        assert_eq!(text(&results, "status", arm), "ok", "{label}");
        let count = |metric: &str| real(&results, metric, arm) as i64;
        let prefill = count("serve_prefill_tokens") * i64::from(LAYERS) + count("serve_gate_token_layers");
        assert_eq!(prefill, int(&results, "prefill_work_rate_num", tree), "{label}");
        assert_eq!(count("serve_reused_tokens"), int(&results, "reused_token_rate_num", tree), "{label}");
        assert_eq!(
            count("serve_verify_token_layers"),
            int(&results, "verify_work_rate_num", tree),
            "{label}"
        );
        assert_eq!(
            count("serve_generated_tokens"),
            int(&results, "generated_token_rate_num", tree),
            "{label}"
        );
        let verified = 12 - int(&results, "verify_skip_rate_num", tree);
        assert_eq!(int(&results, "serve_verify_rate_num", arm), verified, "{label}");
        for column in ["tree_accuracy_num", "share_rate_num", "harm_rate_num", "verify_exit_rate_num"] {
            assert_eq!(int(&results, column, arm), int(&results, column, tree), "{label} {column}");
        }
        seen.insert((prefill, count("serve_reused_tokens"), count("serve_verify_token_layers")));
    }
    // Of 13 stacks only those are alike that do the same: skip, exits and the adaptive exit share nothing; `exit` and `adaptive` may agree.
    assert!(seen.len() >= 11, "{seen:?}");
}

/// 12 problems of 5 branches, prompts of 56 tokens, 6 generated, a verifier's prompt each: with 1,000 ns a token time is the work, so speed-ups
/// follow from the counts alone.
#[test]
fn speed_ups_are_ratios_of_the_work_and_stand_beside_accuracy() {
    let results = run(&scenario("{kind: unit}"), problems()).unwrap();
    for (label, arm, _) in pairs(&results) {
        let (over, of) = (int(&results, "serve_speedup_num", arm), int(&results, "serve_speedup_den", arm));
        let (found, lo, hi) = (
            real(&results, "serve_speedup", arm),
            real(&results, "serve_speedup_lo", arm),
            real(&results, "serve_speedup_hi", arm),
        );
        assert!((found - over as f64 / of as f64).abs() < 1e-12 && lo <= found && found <= hi, "{label}");
        assert!((0.0..=1.0).contains(&real(&results, "tree_accuracy", arm)));
        // One token through all layers takes 1,000 ns; early passes take their share. Batches run as deep as their longest row, so time is the work where
        // no row leaves earlier than another.
        if ["no-kv", "exact", "radix", "always", "skip"].contains(&label.as_str()) {
            let tokens = real(&results, "serve_computed_tokens", arm)
                + (real(&results, "serve_gate_token_layers", arm)
                    + real(&results, "serve_verify_token_layers", arm))
                    / f64::from(LAYERS);
            assert!((of as f64 - 1000.0 * tokens).abs() < 1.0, "{label}: {of} {tokens}");
        }
    }
    let speedup = |wanted: &str| {
        let (_, arm, _) = pairs(&results).into_iter().find(|(label, _, _)| label == wanted).unwrap();
        real(&results, "serve_speedup", arm)
    };
    // A gate that nothing passes costs a root and a pass of each branch, and saves nothing.
    assert!(speedup("never-similar") < 1.0, "{}", speedup("never-similar"));
    // One prefix instead of five, and nothing else is different.
    assert!(speedup("always") > 1.0, "{}", speedup("always"));
}

#[test]
fn arms_are_compared_by_problem_and_seeds_make_cells() {
    let study = "id: s\nwhy: w\nseeds: [0, 1, 2]\nserve:\n  cost: {kind: unit}\n  problems: recorded\n  baseline: full\n  arms:\n    \
                - {label: full}\n    - {label: chance, stack: {verify: {kind: random, params: {rate: 0.5}}}}\ncompare: {baseline: full}\n";
    let results = run(study, problems()).unwrap();
    assert_eq!(results.cells.rows(), 4);
    for row in 1..4 {
        assert_eq!(int(&results, "seed", row), i64::try_from(row).unwrap() - 1);
        let difference = real(&results, "tree_accuracy_vs_baseline", row);
        let rights = int(&results, "tree_accuracy_num", row) - int(&results, "tree_accuracy_num", 0);
        assert!((difference - rights as f64 / 12.0).abs() < 1e-12);
    }
    assert_eq!(results.more("problems").unwrap().rows(), 48);
    assert_eq!(results.more("phases").unwrap().rows(), 48);
}

/// A baseline that draws is the baseline of its own seed: each of its cells is as fast as itself.
#[test]
fn a_baseline_that_draws_is_compared_seed_by_seed() {
    let study = "id: s\nwhy: w\nseeds: [0, 1, 2]\nserve:\n  cost: {kind: unit}\n  problems: recorded\n  baseline: chance\n  arms:\n    \
                - {label: full}\n    - {label: chance, stack: {verify: {kind: random, params: {rate: 0.5}}}}\n";
    let results = run(study, problems()).unwrap();
    let rows: Vec<usize> =
        (0..results.cells.rows()).filter(|&row| text(&results, "policy", row) == "chance").collect();
    assert_eq!(rows.len(), 3);
    let work: Vec<i64> = rows.iter().map(|&row| int(&results, "serve_speedup_den", row)).collect();
    assert!(work.iter().any(|nanos| *nanos != work[0]), "the draws differ: {work:?}");
    for &row in &rows {
        assert_eq!(real(&results, "serve_speedup", row).to_bits(), 1.0f64.to_bits());
        assert_eq!(int(&results, "serve_speedup_num", row), int(&results, "serve_speedup_den", row));
    }
}

/// Where blocks are too few for some problems, times and tokens are compared over those that both arms answered.
#[test]
fn refused_problems_are_on_neither_side_of_a_speed_up() {
    let study = "id: s\nwhy: w\nserve:\n  cost: {kind: unit}\n  problems: {count: 12, root_tokens: [20, 200], suffix_tokens: 4, branches: 3, \
                generated_tokens: 6, verify_tokens: 9}\n  baseline: full\n  arms:\n    - {label: full}\n    \
                - {label: tight, serve: {scheduler: {capacity_blocks: 8}}}\n";
    let results = run(study, problems()).unwrap();
    let refused = real(&results, "serve_refused", 1);
    assert!(0.0 < refused && refused < 12.0, "{refused} of 12");
    let ratio = int(&results, "serve_speedup_num", 1) as f64 / int(&results, "serve_speedup_den", 1) as f64;
    assert!((real(&results, "serve_speedup", 1) - ratio).abs() < 1e-12);
    let lint = text(&results, "lint", 1);
    assert!(lint.contains("problems refused") && !lint.contains("fewer tokens"), "{lint}");
}

/// Answers are those of the recording, which evicted nothing: a row with evictions says so.
#[test]
fn evictions_beside_recorded_answers_are_told() {
    let study = "id: s\nwhy: w\nserve:\n  cost: {kind: unit}\n  problems: recorded\n  baseline: full\n  arms:\n    \
                - {label: full}\n    - {label: evicts, serve: {eviction: {budget: 16, period: 4}}}\n";
    let results = run(study, problems()).unwrap();
    assert_eq!(results.cells.value("lint", 0), Value::Absent);
    assert!(text(&results, "lint", 1).contains("answers are those of the recording"));
}

/// Times that stand in the scenario are fitted for the layers of the recording, as if the scenario had said them.
#[test]
fn measured_times_without_layers_are_fitted_for_those_of_the_recording() {
    let measurements = "[{new_tokens: 8, context_tokens: 0, heads: 1, nanos: 900}, {new_tokens: 1, context_tokens: 40, heads: 1, nanos: 300}, \
                        {new_tokens: 30, context_tokens: 4, layers: 3, nanos: 1500}, {new_tokens: 12, context_tokens: 9, layers: 7, nanos: 1400}]";
    let cost = |more: &str| format!("{{kind: measured, params: {{measurements: {measurements}{more}}}}}");
    let (told, untold) =
        (run(&scenario(&cost(", layers: 7")), problems()), run(&scenario(&cost("")), problems()));
    let (told, untold) = (told.unwrap(), untold.unwrap());
    for (label, arm, _) in pairs(&told) {
        assert_eq!(text(&told, "params", arm), text(&untold, "params", arm), "{label}");
        assert_eq!(int(&told, "serve_speedup_den", arm), int(&untold, "serve_speedup_den", arm), "{label}");
    }
}

/// What a threshold is compared with does not depend on where decoding stops, so it is told as for stacks that decode to the end; what confidences are compared
/// with does, and nothing is said.
#[test]
fn thresholds_beside_a_decode_exit_are_looked_at_by_themselves() {
    let stops = "decode_exit: {min_steps: 1, confidence: 0.5, relative_lead: 0.05}";
    let stack = |label: &str, tau: f64, theta: f64, more: &str| {
        format!(
            "    - {{label: {label}, share: {{kind: asks, params: {{tau: {tau}}}}}, verify: {{kind: cgee, params: {{tau_conf: 5}}}}, \
             exit: {{kind: entropy, params: {{theta: {theta}, epsilon: 1, min_layer: 1}}}}{more}}}\n"
        )
    };
    let comma = format!(", {stops}");
    let study = format!(
        "id: s\nwhy: w\ntrees:\n  stacks:\n{}{}{}",
        stack("whole", 0.0001, 100.0, ""),
        stack("stops", 0.0001, 100.0, &comma),
        stack("never", 5.0, 0.0, &comma)
    );
    let results = run(&study, problems()).unwrap();
    let lint = |row: usize| text(&results, "lint", row);
    let of = |lint: &str, axis: &str| {
        lint.split("; ").find(|found| found.starts_with(&format!("{axis} is"))).map(str::to_owned)
    };
    for axis in ["tau", "theta"] {
        let told = of(&lint(0), axis);
        assert!(told.as_ref().is_some_and(|told| told.contains("vacuous")), "{}", lint(0));
        assert_eq!(told, of(&lint(1), axis), "{}", lint(1));
        assert!(of(&lint(2), axis).is_some_and(|told| told.contains("unreachable")), "{}", lint(2));
    }
    assert!(of(&lint(0), "tau-conf").is_some() && of(&lint(1), "tau-conf").is_none(), "{}", lint(1));
}

/// Every span of a timeline that begins ends, whether or not the problem has a root that is needed.
#[test]
fn spans_of_a_timeline_begin_and_end() {
    let scenario = Scenario::parse(&scenario("{kind: unit}"), "test").unwrap();
    for (label, _) in STACKS {
        let mut chrome = ChromeTrace::new(Vec::new(), label);
        serve_timeline(&scenario, &source(problems()), Some(label), &mut chrome).unwrap();
        let timeline: serde_json::Value = serde_json::from_slice(&chrome.finish().unwrap()).unwrap();
        let mut open = std::collections::BTreeMap::new();
        for event in timeline["traceEvents"].as_array().unwrap() {
            let depth: &mut i32 =
                open.entry((event["pid"].to_string(), event["tid"].to_string())).or_default();
            match event["ph"].as_str() {
                Some("B") => *depth += 1,
                Some("E") => *depth -= 1,
                _ => {}
            }
            assert!((0..=1).contains(depth), "{label}: {event}");
        }
        assert!(open.values().all(|depth| *depth == 0), "{label}");
    }
}

/// A speed-up over any arm is the ratio of both arms' times, and over the baseline that of its column.
#[test]
fn speed_ups_over_several_arms_stand_in_a_table() {
    let plain = run(&scenario("{kind: unit}"), problems()).unwrap();
    assert!(plain.more("speedups").is_none());
    let text_of =
        scenario("{kind: unit}").replace("baseline: no-kv", "baseline: no-kv\n  against: [exact, always]");
    let results = run(&text_of, problems()).unwrap();
    let table = results.more("speedups").unwrap();
    assert_eq!(table.rows(), 3 * STACKS.len());
    let arms: Vec<(String, usize)> =
        pairs(&results).into_iter().map(|(label, arm, _)| (label, arm)).collect();
    let nanos = |wanted: &str| {
        let (_, arm) = arms.iter().find(|(label, _)| label == wanted).unwrap();
        int(&results, "serve_speedup_den", *arm)
    };
    for (at, (label, arm)) in arms.iter().enumerate() {
        for (place, baseline) in ["no-kv", "exact", "always"].into_iter().enumerate() {
            let row = 3 * at + place;
            assert_eq!(table.value("cell", row), results.cells.value("cell", *arm));
            assert_eq!(table.value("baseline", row), Value::Text(baseline.to_owned()));
            assert_eq!(table.value("nanos", row), Value::Int(nanos(label)));
            assert_eq!(table.value("baseline_nanos", row), Value::Int(nanos(baseline)));
            let Value::Real(found) = table.value("speedup", row) else { panic!("no speed-up") };
            assert!(
                (found - nanos(baseline) as f64 / nanos(label) as f64).abs() < 1e-12,
                "{label} {baseline}"
            );
            let (Value::Real(lo), Value::Real(hi)) =
                (table.value("speedup_lo", row), table.value("speedup_hi", row))
            else {
                panic!("no interval")
            };
            assert!(lo <= found && found <= hi);
        }
    }
    // The same arm against others is another cell.
    assert_ne!(plain.cells.value("cell", 0), results.cells.value("cell", 0));
    for (wrong, said) in
        [("[exat]", "`exat`"), ("[no-kv]", "not the baseline"), ("[exact, exact]", "each arm once")]
    {
        let text_of = text_of.replace("[exact, always]", wrong);
        let error = Scenario::parse(&text_of, "test").unwrap_err().to_string();
        assert!(error.contains("serve.against") && error.contains(said), "{error}");
    }
}

/// Prompts of 56 tokens and 6 generated need four blocks of 16, and there are three: nothing is answered, so nothing is right.
#[test]
fn refused_problems_have_no_accuracy() {
    let study = "id: s\nwhy: w\nserve:\n  cost: {kind: unit}\n  problems: recorded\n  baseline: full\n  arms:\n    \
                 - {label: full}\n    - {label: small, serve: {scheduler: {capacity_blocks: 3}}}\n";
    let results = run(study, problems()).unwrap();
    assert_eq!(
        (text(&results, "status", 0), text(&results, "status", 1)),
        ("ok".to_owned(), "failed".to_owned())
    );
    assert_eq!(results.cells.value("tree_accuracy", 1), Value::Absent);
    assert_eq!(results.more("problems").unwrap().rows(), 12);
}

#[test]
fn mixes_of_recorded_and_generated_are_refused_with_what_was_found() {
    let study = |problems: &str, arm: &str, rest: &str| {
        format!(
            "id: s\nwhy: w\nserve:\n  cost: {{kind: unit}}\n  problems: {problems}\n  baseline: a\n  arms: [{{label: a{arm}}}]\n{rest}"
        )
    };
    let sizes = "{count: 3, root_tokens: [8, 9], suffix_tokens: 4, branches: 2, generated_tokens: 4, verify_tokens: 4}";
    let claims = "  claims: [{what: x, published: y, why: z}]\n";
    for (text, said) in [
        (study("recorded", ", reuse: 0.5", ""), vec!["serve.arms[0].reuse is 0.5", "`problems: recorded`"]),
        (study("recorded", ", verify: 0.25", ""), vec!["serve.arms[0].verify is 0.25"]),
        (study("recorded", ", generated_tokens: 4", ""), vec!["serve.arms[0].generated_tokens is 4"]),
        (study("recorded", ", stack: {share: {kind: aks}}", ""), vec!["serve.arms[0].stack (`a`)", "`asks`"]),
        (study("recorded", ", stack: {sweep: {share.tau: 1}}", ""), vec!["unknown field `sweep`", "share"]),
        (study(sizes, ", stack: {}", ""), vec!["serve.arms[0].stack", "only with `problems: recorded`"]),
        (study("recorder", "", ""), vec!["\"recorder\"", "`recorded`, or the sizes"]),
        (study("recorded", "", claims), vec!["serve.claims is 1 claims", "without a trace"]),
    ] {
        let error = Scenario::parse(&text, "test").unwrap_err().to_string();
        assert!(said.iter().all(|part| error.contains(part)), "{text}\n{error}");
    }
    let roofline = study("recorded", "", "").replace("{kind: unit}", "{kind: roofline}");
    let error = run(&roofline, problems()).unwrap_err();
    assert!(error.contains("a model with 28 layers") && error.contains("of one with 7"), "{error}");
}

#[test]
fn an_arm_that_the_recording_cannot_decide_is_skipped_with_the_reason_and_the_others_run() {
    // Two levels: branches of the first one are cached by an engine, and no stack decodes them.
    let params = BranchParams { depth: 2, branches: 2, ..problems() };
    let study = "id: s\nwhy: w\nserve:\n  cost: {kind: unit}\n  problems: recorded\n  baseline: full\n  arms:\n    \
                - {label: full}\n    - {label: exact, stack: {share: {kind: exact-prefix}}}\n    - {label: root, stack: {share: {kind: exact-prefix, params: {against: root}}}}\n";
    let results = run(study, params).unwrap();
    assert_eq!([0, 1, 2].map(|row| text(&results, "status", row)), ["ok", "skipped", "ok"]);
    assert!(text(&results, "error", 1).contains("inner branch"), "{}", text(&results, "error", 1));
}
