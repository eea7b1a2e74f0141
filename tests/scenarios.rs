//! Scenarios: what is refused, and how; everything under `scenarios/` is valid.

mod schema;

use kvlab_sim::scenario::Scenario;
use std::path::{Path, PathBuf};

fn refusal(text: &str) -> String {
    Scenario::parse(text, "study.yaml").unwrap_err().to_string()
}

const VALID: &str = "id: a\nwhy: b\neviction:\n  budgets: [64]\n  policies:\n    - use: full\n";

/// H24: a key typed twice is refused at any depth, with both places; a name given to two anchors is legal YAML, and the later one holds.
#[test]
fn h24_a_key_typed_twice_is_refused_with_both_lines() {
    for (text, lines) in [
        (VALID.replace("eviction:\n", "eviction:\n  budgets: [512]\n"), ["line 5", "first on line 4"]),
        (
            VALID.replace("use: full", "use: full\n      label: x\n      label: y"),
            ["line 8", "first on line 7"],
        ),
        (VALID.replace("id: a\n", "id: a\nid: c\n"), ["line 2", "first on line 1"]),
    ] {
        let error = refusal(&text);
        assert!(lines.iter().all(|line| error.contains(line)) && error.contains("duplicate"), "{error}");
    }
    let text = VALID.replace("why: b", "why: &n b").replace("[64]", "[&n 64, &n 128]");
    let scenario = Scenario::parse(&text, "s").unwrap();
    assert_eq!(scenario.eviction.unwrap().budgets, [64, 128]);
}

/// The names of the flags of `kvlab replay` mean what ours mean; both at once are a key typed twice.
#[test]
fn second_names_of_the_field_mean_the_same() {
    let ours = VALID
        .replace("budgets: [64]\n", "budgets: [64]\n  recent: 8\n  sinks: 2\n  period: 32\n  window: 24\n");
    let theirs = VALID.replace(
        "budgets: [64]\n",
        "kv_budget: [64]\n  recent_buffer: 8\n  sink_tokens: 2\n  evict_every: 32\n  window_size: 24\n",
    );
    let study = |text: &str| Scenario::parse(text, "s").unwrap().eviction.unwrap();
    assert_eq!(study(&ours), study(&theirs));
    assert_eq!(study(&theirs).budgets, [64]);
    let both = refusal(&VALID.replace("budgets: [64]\n", "budgets: [64]\n  kv_budget: [32]\n"));
    assert!(both.contains("duplicate") && both.contains("budgets"), "{both}");
    for (first, second) in [("recent", "recent_buffer"), ("recent_buffer", "recent")] {
        let twice = format!("  budgets: [64]\n  {first}: 8\n  sinks: 2\n  {second}: 9\n");
        let both = refusal(&VALID.replace("  budgets: [64]\n", &twice));
        let expected = format!("`{second}` is the same as `{first}` on line 5");
        assert!(both.contains("line 7, column 3") && both.contains(&expected), "{both}");
    }
}

#[test]
fn mistakes_are_named_with_file_line_and_column() {
    assert!(Scenario::parse(VALID, "study.yaml").is_ok());
    for (text, expected) in [
        // A key typed twice.
        (
            VALID.replace("  budgets: [64]\n", "  budgets: [64]\n  recent: 8\n  recent: 9\n"),
            vec!["study.yaml", "line 6, column 3", "duplicate", "recent", "first on line 5"],
        ),
        (VALID.replace("why: b", "why: b\nwhy: c"), vec!["line 3", "duplicate", "why", "first on line 2"]),
        // An unknown key, with the nearest.
        (
            VALID.replace("budgets", "bugdets"),
            vec!["line 4", "unknown field `bugdets`", "did you mean `budgets`?"],
        ),
        (
            VALID.replace("use: full", "use: full\n      wiht: {}"),
            vec!["line 7", "unknown field `wiht`", "did you mean `with`?"],
        ),
        // A wrong type.
        (VALID.replace("[64]", "many"), vec!["line 4", "a number, a list of numbers, or {from, to, steps"]),
        (VALID.replace("[64]", "[64.5]"), vec!["eviction.budgets is 64.5", "whole numbers"]),
        (VALID.replace("[64]", "[64, 64]"), vec!["64 twice"]),
        (VALID.replace("[64]", "[]"), vec!["an empty list sweeps nothing"]),
        (VALID.replace("[64]", "[.nan]"), vec!["eviction.budgets is NaN"]),
        (VALID.replace("[64]", "[-1]"), vec!["eviction.budgets is -1"]),
        (
            VALID.replace("[64]", "[18446744073709551615]"),
            vec!["18446744073709551615 is too large", "up to 9007199254740992"],
        ),
        // An unknown policy, parameter or value.
        (
            VALID.replace("full", "vase-atnv"),
            vec!["eviction.policies[0]", "`vase-atnv`", "did you mean `vase-attnv`?", "streaming-llm"],
        ),
        (
            VALID.replace("use: full", "use: vase-attnv\n      with: {valeu_share: 0.5}"),
            vec!["eviction.policies[0]", "valeu_share", "value_share"],
        ),
        (
            VALID.replace("use: full", "use: vase-attnv\n      with: {value_share: 0.5, value_share: 0.6}"),
            vec!["duplicate", "value_share"],
        ),
        (VALID.replace("use: full", "use: snapkv\n      with: {pool: 4}"), vec!["`pool` is 4", "odd"]),
        // Combinations that cannot work.
        (
            VALID.replace("[64]", "[16]").replace("full", "snapkv"),
            vec!["a budget of 16 tokens", "17 tokens are needed"],
        ),
        (VALID.replace("[64]", "[60]").replace("full", "snapkv"), vec!["60", "48 and 64"]),
        (VALID.replace("- use: full", "- use: full\n    - use: full"), vec!["label `full` is used twice"]),
        (VALID.replace("use: full", "label: x"), vec!["eviction.policies[0]", "`use`"]),
        // Selections and stores.
        (
            VALID.replace("use: full", "use: snapkv\n      attend: {kind: qest}"),
            vec!["`qest`", "did you mean `quest`?", "oracle-block"],
        ),
        (
            VALID.replace("use: full", "use: full\n      store: {kind: per-token-int, params: {bits: 3}}"),
            vec!["`bits` is 3", "2, 4 or 8"],
        ),
        (
            VALID.replace("use: full", "use: h2o\n      attend: {kind: quest}"),
            vec!["accumulated-attention", "some of them only"],
        ),
        (VALID.replace("use: full", "use: seer-gate"), vec!["eviction.policies[0]", "trained gate", "quest"]),
        (
            VALID.replace(
                "use: full",
                "label: x\n      stack: {score: {kind: recency}}\n      store: {kind: half}",
            ),
            vec!["`store` beside `stack`", "`store` inside `stack`"],
        ),
        (
            VALID.replace("use: full", "label: x\n      stack: {sinks: 2}"),
            vec!["eviction.policies[0].stack.score is missing", "`attend` or `store`"],
        ),
        (
            VALID.replace(
                "use: full",
                "label: x\n      stack: {attend: {kind: quest}, budget: {kind: pyramid}}",
            ),
            vec!["stack.score is missing", "nothing is evicted"],
        ),
        (
            VALID.replace("  policies", "  next_token_every: 12\n  policies"),
            vec!["eviction.next_token_every is 12", "a multiple of output_error_every (8)"],
        ),
        (
            VALID.replace("use: full", "use: snapkv\n      granularity: block:x"),
            vec!["`block:x`", "`token-head`, `token-layer`, `block:N`"],
        ),
        (
            VALID.replace("use: full", "use: snapkv\n      granularity: 'block:32'"),
            vec!["a block of 32", "tokens are needed"],
        ),
        ("id: a\nwhy: b\n".to_owned(), vec!["nothing to study"]),
        ("id: A b\nwhy: b\nexit: {theta: 1, epsilon: 1}\n".to_owned(), vec!["id is `A b`"]),
        ("id: a\nwhy: b\nexit: {theta: -1, epsilon: 1}\n".to_owned(), vec!["exit.theta is -1"]),
        ("id: a\nwhy: b\nexit: {theta: .inf, epsilon: 1}\n".to_owned(), vec!["exit.theta is inf"]),
        (
            "id: a\nwhy: b\nexit: {theta: 1, epsilon: 1, lens: [final]}\n".to_owned(),
            vec!["unknown variant `final`", "final-norm"],
        ),
        ("id: [a\n".to_owned(), vec!["study.yaml", "line"]),
        (String::new(), vec!["study.yaml"]),
    ] {
        let message = refusal(&text);
        for part in expected {
            assert!(message.contains(part), "{text}\n-> {message}\nlacks {part:?}");
        }
    }
}

#[test]
fn sizes_depths_and_repeated_thresholds_are_refused_and_a_byte_order_mark_is_not() {
    assert!(Scenario::parse(&format!("\u{feff}{VALID}"), "bom").is_ok());
    let exit =
        |theta: &str, epsilon: &str| format!("id: a\nwhy: b\nexit: {{theta: {theta}, epsilon: {epsilon}}}\n");
    let wide = "{from: 0, to: 1, steps: 10000}";
    assert!(refusal(&exit(wide, wide)).contains("100000000 cells; accepted: at most 200000 cells"));
    assert!(refusal(&exit("[1, 2, 1]", "1")).contains("exit.theta is 1 twice"));
    assert!(refusal(&exit("1", "[1, 1]")).contains("exit.epsilon is 1 twice"));
    assert!(refusal(&exit("1", "1, lens: [raw, raw]")).contains("exit.lens is a lens twice"));
    assert!(refusal(&"[".repeat(5000)).contains("more than 200 opening brackets"));
    assert!(refusal(&"x ".repeat(5000)).len() < 700, "a file that is no scenario is not printed in full");
}

#[test]
fn a_policy_that_fits_some_budgets_gives_skipped_cells_for_the_others() {
    let text = VALID.replace("[64]", "[16, 64]").replace("full", "snapkv");
    let plan = Scenario::parse(&text, "test").unwrap().plan(100);
    assert_eq!(plan.eviction.iter().map(|cell| cell.stack.is_ok()).collect::<Vec<_>>(), [false, true]);
}

/// YAML 1.1 surprises behave as scenarios/README.md says.
#[test]
fn yaml_surprises_behave_as_documented() {
    for (number, value) in [("0x40", 64), ("0o100", 64), ("6.4e1", 64)] {
        let text = VALID.replace("why: b", "why: no").replace("[64]", number);
        let scenario = Scenario::parse(&text, "test").unwrap();
        assert_eq!((scenario.why.as_str(), scenario.eviction.unwrap().budgets), ("no", vec![value]));
    }
    for number in ["010", "1_000", "1:30", "on"] {
        let message = refusal(&VALID.replace("[64]", number));
        assert!(message.contains(&format!("string \"{number}\", expected a number")), "{message}");
    }
    let message = refusal("id: a\nwhy: b\ntrees: {per_problem: yes, stacks: [{label: x}]}\n");
    assert!(message.contains("string \"yes\", expected a boolean"), "{message}");
    let message = refusal(&VALID.replace("  budgets", "  <<: {recent: 1}\n  budgets"));
    assert!(message.contains("unknown field `<<`"), "{message}");
    // The alias stands for the last anchor of its name.
    let text = VALID
        .replace("why: b", "why: &x b")
        .replace("use: full", "use: &x full\n    - {use: snapkv, label: *x}");
    assert!(refusal(&text).contains("the label `full` is used twice"));
}

#[test]
fn share_of_ln_vocab_is_turned_into_nats() {
    let text = "id: a\nwhy: b\nexit: {theta: 0.5, epsilon: 0.1, unit: share-of-ln-vocab}\n";
    let plan = Scenario::parse(text, "test").unwrap().plan(1024);
    assert!((plan.exit[0].params.theta - 0.5 * 1024f64.ln()).abs() < 1e-12);
    assert!((plan.exit[0].theta - 0.5).abs() < 1e-12);
}

fn yaml_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            yaml_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

#[test]
fn every_scenario_in_the_repository_is_valid() {
    let mut found = Vec::new();
    yaml_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios"), &mut found);
    assert!(found.len() >= 3, "{found:?}");
    for path in found {
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(
            scenario.plan(49_152).len() + scenario.pool_cells().len() > 0 || scenario.serve.is_some(),
            "{}",
            path.display()
        );
    }
}

/// `reference.yaml` shows every default: leaving the optional keys out gives the same study.
#[test]
fn the_reference_scenario_shows_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/reference.yaml");
    let full = Scenario::load(&path).unwrap();
    let short = "
id: reference
why: What does every key mean, and what is its default?
eviction:
  budgets: [64, 128]
  policies:
    - use: full
    - use: vase-attnv
    - label: custom
      stack: {score: {kind: window-mass}}
    - {use: snapkv, label: snapkv in 4 bits, store: {kind: per-token-int}}
    - {label: quest in 8 bits, stack: {attend: {kind: quest}, store: {kind: per-token-int, params: {bits: 8}}}}
exit:
  theta: [0.5, 1, 2]
  epsilon: 0.5
pool:
  capacities: [0.25, 512]
  policies: [{use: lru}, {use: rsbcm}]
serve:
  cost: {kind: roofline}
  problems: {count: 20, root_tokens: [1024, 1038], suffix_tokens: 25, branches: 8, generated_tokens: 32, verify_tokens: 462}
  baseline: no-kv
  arms: [{label: no-kv}, {label: shared, reuse: 1}]
compare: {baseline: full}
";
    let short = Scenario::parse(short, "short").unwrap();
    assert_eq!(full.tune, short.tune);
    assert_eq!(
        (full.seeds, full.limit, full.exit, full.compare),
        (short.seeds, short.limit, short.exit, short.compare)
    );
    let (a, b) = (full.serve.unwrap(), short.serve.unwrap());
    assert_eq!(
        (&a.problems, &a.arrivals, &a.baseline, &a.arms),
        (&b.problems, &b.arrivals, &b.baseline, &b.arms)
    );
    assert_eq!((&a.claims, a.cost().unwrap().params()), (&b.claims, b.cost().unwrap().params()));
    let (a, b) = (full.pool.unwrap(), short.pool.unwrap());
    assert_eq!(
        (&a.stream, &a.capacities, a.block_tokens, a.in_flight),
        (&b.stream, &b.capacities, b.block_tokens, b.in_flight)
    );
    for (a, b) in a.policies.iter().zip(&b.policies) {
        assert_eq!((&a.label, a.build().unwrap().params()), (&b.label, b.build().unwrap().params()));
    }
    let (full, short) = (full.eviction.unwrap(), short.eviction.unwrap());
    let knobs = full.knobs(64);
    assert_eq!(knobs, short.knobs(64));
    assert_eq!(
        (full.output_error_every, full.next_token_every, full.block_tokens, full.bytes_per_scalar),
        (short.output_error_every, short.next_token_every, short.block_tokens, short.bytes_per_scalar)
    );
    for (a, b) in full.policies.iter().zip(&short.policies) {
        assert_eq!(a.label, b.label);
        assert_eq!(a.stack(&knobs).unwrap().params(), b.stack(&knobs).unwrap().params());
    }
}
