//! What a scenario expects of its results: told for every claim, exit code 5 where one is not met.

use super::process::{kvlab, run, said};
use super::{Both, STUDY, options};
use crate::support::synth;
use kvlab_sim::results::{Results, Verdict, verdicts};
use kvlab_sim::run::{source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};
use kvlab_sim::trace::{Dtype, Leftover, TraceSource};
use std::path::{Path, PathBuf};

fn results(text: &str) -> (Scenario, Results) {
    let source = Both::small();
    let scenario = Scenario::parse(text, "test").unwrap();
    let results = study(&scenario, &source, source_info(&source, "", ""), &options(1)).unwrap();
    (scenario, results)
}

/// Verdicts on `expect`, flow-style lines, over the study of all kinds.
fn judged(results: &Results, expect: &[&str]) -> Vec<Verdict> {
    let text = format!("{STUDY}expect:\n  - {}\n", expect.join("\n  - "));
    verdicts(&Scenario::parse(&text, "test").unwrap().expect, &results.cells)
}

#[test]
fn every_row_that_is_meant_has_to_be_as_expected() {
    let (_, results) = results(STUDY);
    let cells = &results.cells;
    let recall = |row: &usize| match cells.value("attn_mass_recall", *row) {
        Value::Real(value) => Some(value),
        _ => None,
    };
    // The same by hand: every eviction cell but those whose budget is too small for it.
    let values: Vec<f64> = (0..cells.rows()).filter_map(|row| recall(&row)).collect();
    let (least, most) = values.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), v| (a.min(*v), b.max(*v)));
    assert!(least < 0.99 && values.len() > 5);
    let found = judged(
        &results,
        &[
            "{metric: attn_mass_recall, where: {policy: full}, equals: 1}",
            "{metric: attn_mass_recall, where: {status: ok}, at_least: 0, at_most: 1}",
            "{metric: attn_mass_recall, where: {status: ok}, at_least: 0.99}",
            "{metric: attn_mass_recall, where: {status: ok}, at_least: 0.99, within: 0.99}",
            "{metric: evictions, where: {policy: full, budget_tokens: null}, equals: 0}",
            "{metric: verify_skip_rate_num, where: {policy: full}, equals: 0}",
        ],
    );
    assert_eq!(found[0], Verdict::Met { rows: 1, range: (1.0, 1.0) });
    assert_eq!(found[1], Verdict::Met { rows: values.len(), range: (least, most) });
    let Verdict::NotMet { found: missed, rows } = &found[2] else { panic!("{:?}", found[2]) };
    assert_eq!((missed.len(), *rows), (values.iter().filter(|v| **v < 0.99).count(), values.len()));
    assert!(missed.iter().any(|row| row.contains("snapkv, budget_tokens 16 has 0.")), "{missed:?}");
    assert!(found[3].is_fine(), "as much as 0.99 may be missing");
    assert_eq!(found[4], Verdict::Met { rows: 1, range: (0.0, 0.0) });
    assert_eq!(found[5], Verdict::Met { rows: 1, range: (0.0, 0.0) });
}

#[test]
fn no_row_a_skipped_row_and_a_missing_metric_are_told_apart() {
    let (_, results) = results(STUDY);
    let found = judged(
        &results,
        &[
            "{metric: attn_mass_recall, where: {policy: lru}, at_least: 0}",
            "{metric: attn_mass_recall, where: {policy: snapkv, budget_tokens: 23}, at_least: 0}",
            "{metric: attn_mass_recall, where: {policy: snapkv}, at_least: 0}",
            "{metric: accuracy, arm: real, at_least: 0}",
            "{metric: accuracy, at_least: 0}",
        ],
    );
    let words: Vec<String> = found.iter().map(Verdict::words).collect();
    assert!(words[0].contains("none of 4 rows has `attn_mass_recall`"), "{}", words[0]);
    assert!(words[1].contains(&format!("no row of {} is meant", results.cells.rows())), "{}", words[1]);
    // A budget of six tokens cannot hold what is always kept.
    assert!(
        words[2].contains("NOT met by 1 of 3 rows: snapkv, budget_tokens 6 has none, skipped: "),
        "{}",
        words[2]
    );
    assert_eq!(words[3], "not asked: these results have no row of arm `real`");
    assert!(found[3].is_fine() && !found[4].is_fine());
}

#[test]
fn a_claim_that_says_nothing_is_refused() {
    let refused = |expect: &str| {
        Scenario::parse(&format!("{STUDY}expect: [{expect}]"), "test").unwrap_err().to_string()
    };
    for (expect, parts) in [
        ("{metric: atn_mass_recall, equals: 1}", ["expect[0].metric", "did you mean `attn_mass_recall`?"]),
        ("{metric: policy, equals: 1}", ["expect[0].metric", "a metric of `kvlab list metrics`"]),
        ("{metric: live_kv_tokens, equals: 1}", ["expect[0].metric", "that is in `cells`"]),
        ("{metric: skip_rate}", ["expect[0] is no bound", "`equals`"]),
        ("{metric: skip_rate, equals: 1, at_most: 2}", ["a range and `equals`", "both of them"]),
        ("{metric: skip_rate, at_least: 2, at_most: 1}", ["expect[0].at_least is 2", "at most 1"]),
        ("{metric: skip_rate, equals: .nan}", ["expect[0].equals is NaN", "finite"]),
        ("{metric: skip_rate, equals: 1, within: -1}", ["expect[0].within is -1", "0 or more"]),
        ("{metric: skip_rate, equals: 1, where: {polcy: a}}", ["where.polcy", "did you mean `policy`?"]),
        ("{metric: skip_rate, equals: 1, where: {policy: 5}}", ["where.policy is `5`", "a text, or null"]),
        ("{metric: skip_rate, equals: 1, where: {theta: '5'}}", ["where.theta is `5`", "a number, or null"]),
        ("{metric: skip_rate, equals: 1, where: {seed: []}}", ["where.seed is an empty list", "one value"]),
        ("{metric: skip_rate, equals: 1, where: {seed: [[1]]}}", ["a list in a list", "line"]),
        ("{metric: skip_rate, equals: 1, where: {seed: 1, seed: 2}}", ["duplicate", "seed"]),
        ("{metric: skip_rate, equals: 1, arm: exec}", ["unknown variant `exec`", "`real`"]),
    ] {
        let message = refused(expect);
        assert!(parts.iter().all(|part| message.contains(part)), "{expect}: {message}");
    }
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)
}

fn with_traces() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let sequences = synth::fixed();
    sequences.write(&folder.path().join("sequences"), Dtype::F32, 4, 32, Leftover::Refuse).unwrap();
    let params = BranchParams { problems: 12, branches: 4, generated: 5, ..BranchParams::default() };
    let trees = SyntheticBranches::build(*sequences.shape(), 3, params).unwrap();
    trees.write(&folder.path().join("trees"), Leftover::Refuse).unwrap();
    folder
}

/// Scenarios that say what to expect are held to it here, on traces that nobody chose for them, and the pool's on its own generated requests.
#[test]
fn shipped_scenarios_are_as_they_expect() {
    let folder = with_traces();
    for (name, trace) in [
        ("smoke/tiny.yaml", Some("sequences")),
        ("smoke/trees.yaml", Some("trees")),
        ("pool/tree-search.yaml", None),
    ] {
        let (path, expected) = (shipped(name), Scenario::load(&shipped(name)).unwrap().expect.len());
        assert!(expected >= 3, "{name}");
        let mut args = vec!["sweep", path.to_str().unwrap(), "--check", "--format", "csv"];
        args.extend(trace.iter().flat_map(|trace| ["--trace", trace]));
        let news = said(&run(folder.path(), &args, 0));
        assert!(news.contains("expectations are met, 0 are not"), "{name}: {news}");
    }
}

#[test]
fn what_is_not_met_ends_with_five_and_says_what_was_found() {
    let folder = with_traces();
    let text = std::fs::read_to_string(shipped("smoke/tiny.yaml")).unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("s.yaml"), text).unwrap();
    let sweep = |more: &[&str], code: i32| {
        let args = [&["sweep", "s.yaml", "--trace", "sequences", "--format", "csv"], more].concat();
        said(&run(folder.path(), &args, code))
    };
    write(&format!("{text}  - {{metric: attn_mass_recall, where: {{policy: vase-attnv}}, equals: 2}}\n"));
    let news = sweep(&["--check", "--out", "study"], 5);
    assert!(
        news.contains("attn_mass_recall equal to 2 where policy is vase-attnv: NOT met by 4 of 4 rows"),
        "{news}"
    );
    assert!(news.contains("vase-attnv, budget_tokens 32, seed 0 has 0."), "{news}");
    assert!(folder.path().join("study/results.json").exists(), "the tables are there to be looked at");
    // Nothing is asserted that nobody asked for, and the folder keeps what was expected.
    sweep(&["--out", "study"], 0);
    let news = said(&run(folder.path(), &["merge", "study", "--out", "merged", "--check"], 5));
    assert!(news.contains("NOT met by 4 of 4 rows"), "{news}");
    // A shard cannot tell.
    assert!(sweep(&["--check", "--out", "s", "--shard", "1/2"], 2).contains("--shard"));
    let args = ["sweep", "s.yaml", "--trace", "sequences", "--check", "--out", "s"];
    let output =
        kvlab(folder.path(), &args).env("KVLAB_SHARD", "1").env("KVLAB_SHARDS", "2").output().unwrap();
    assert!(output.status.code() == Some(2) && said(&output).contains("kvlab merge --check"));
    write(text.split("expect:").next().unwrap());
    let news = sweep(&["--check"], 2);
    assert!(news.contains("s.yaml: --check: the scenario has no `expect`"), "{news}");
}
