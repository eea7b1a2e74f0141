//! The command line: verbs, exit codes, what is said on mistakes, and what is left behind.

use crate::support::synth;
use kvlab_sim::trace::{Dtype, Leftover};
use std::path::Path;
use std::process::{Command, Output};

/// Runs kvlab with an ONNX Runtime path that does not exist: whoever touches the runtime fails.
pub(crate) fn kvlab(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvlab"))
        .current_dir(folder)
        .env("ORT_DYLIB_PATH", "/nonexistent/libonnxruntime.so")
        .env("KVLAB_CACHE", folder.join("cache"))
        .args(args)
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder with a small synthetic trace called `trace`.
pub(crate) fn with_trace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    synth::fixed().write(&folder.path().join("trace"), Dtype::F32, 4, 32, Leftover::Refuse).unwrap();
    folder
}

const REPLAY: &[&str] = &[
    "replay",
    "trace",
    "--policy",
    "snapkv,vase-attnv,vase-dkv",
    "--budget",
    "16,24",
    "--recent",
    "4",
    "--sinks",
    "2",
    "--seed",
    "0,1",
    "--theta",
    "0.5,1.5",
    "--min-exit-layer",
    "0",
];

fn replay(folder: &Path, more: &[&str]) -> Output {
    kvlab(folder, &[REPLAY, more].concat())
}

#[test]
fn commands_that_need_no_model_never_touch_the_runtime() {
    let folder = with_trace();
    std::fs::write(
        folder.path().join("s.yaml"),
        "id: s\nwhy: w\neviction: {budgets: 16, recent: 4, policies: [{use: full}, {use: snapkv}]}\n",
    )
    .unwrap();
    for args in [
        &["--version"][..],
        &["--help"],
        &["list", "policies"],
        &["list", "policies", "--params", "vase-attnv"],
        &["list", "metrics", "--format", "md"],
        &["list", "figures", "--format", "json"],
        &["list", "families"],
        &["list", "fields"],
        &["list", "workloads", "--format", "csv"],
        &["inspect", "trace"],
        &["inspect", "trace", "--json"],
        &["validate", "trace"],
        &["validate", "trace", "--json"],
        &["validate", "s.yaml"],
        &["sweep", "s.yaml", "--trace", "trace", "--dry-run"],
        &["sweep", "s.yaml", "--trace", "trace", "--out", "results", "--csv", "--jsonl"],
        &["validate", "results"],
        &["plot", "results"],
        &["plot", "results", "--figure", "recall-vs-budget"],
        &["report", "results"],
    ] {
        let output = kvlab(folder.path(), args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    }
    for file in [
        "results.json",
        "cells.parquet",
        "series.parquet",
        "cells.csv",
        "cells.jsonl",
        "series.jsonl",
        "figures/recall-vs-budget.svg",
        "report.html",
    ] {
        assert!(folder.path().join("results").join(file).exists(), "{file}");
    }
    assert!(!folder.path().join("cache").exists(), "nothing was fetched");
}

#[test]
fn one_two_and_four_threads_write_the_same_bytes() {
    let folder = with_trace();
    let run = |threads: &str| {
        let out = format!("out-{threads}");
        let output =
            replay(folder.path(), &["--threads", threads, "--out", &out, "--csv", "--format", "csv"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let mut files: Vec<_> =
            std::fs::read_dir(folder.path().join(&out)).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        let contents: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
        (output.stdout, contents)
    };
    let one = run("1");
    assert_eq!(one.1.len(), 5);
    assert_eq!(one, run("2"));
    assert_eq!(one, run("4"));
}

#[test]
fn check_compares_digests_and_rows_say_synthetic() {
    let folder = with_trace();
    let output = replay(folder.path(), &["--check", "--out", "r", "--csv"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("check passed"), "{}", text(&output.stderr));
    let cells = std::fs::read_to_string(folder.path().join("r/cells.csv")).unwrap();
    assert!(cells.lines().skip(1).all(|line| line.contains(",true,replay,")), "every row says synthetic");
    let report = kvlab(folder.path(), &["report", "r"]);
    assert!(report.status.success());
    assert!(
        std::fs::read_to_string(folder.path().join("r/report.html"))
            .unwrap()
            .to_lowercase()
            .contains("synthetic")
    );
}

#[test]
fn mistakes_have_their_exit_code_and_say_what_is_accepted() {
    let folder = with_trace();
    std::fs::write(folder.path().join("bad.yaml"), "id: s\nwhy: w\nevictoin: {}\n").unwrap();
    std::fs::write(folder.path().join("exits.yaml"), "id: exits\nwhy: w\nexit: {theta: 1, epsilon: 1}\n")
        .unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    std::fs::create_dir(folder.path().join("results")).unwrap();
    std::fs::write(folder.path().join("results/results.json"), "{}").unwrap();
    let evicts = "id: evicts\nwhy: w\neviction: {budgets: 32, policies: [{use: snapkv}]}\n";
    std::fs::write(folder.path().join("evicts.yaml"), evicts).unwrap();
    for (args, code, parts) in [
        (&["replya"][..], 2, vec!["unrecognized subcommand", "replay"]),
        (&["replay"], 2, vec!["<TRACE>"]),
        (&["replay", "nowhere", "--theta", "1"], 3, vec!["nowhere"]),
        (&["replay", "trace"], 2, vec!["--policy", "--theta"]),
        (&["replay", "trace", "--policy", "snapkv", "--epsilon", "1"], 2, vec!["--theta"]),
        (&["replay", "empty", "--theta", "1"], 3, vec!["empty"]),
        (&["replay", "trace", "--policy", "snapvk"], 3, vec!["`snapvk`", "did you mean `snapkv`?"]),
        (
            &["replay", "trace", "--policy", "snapkv", "--budget", "10"],
            3,
            vec![
                "--policy snapkv: a budget of 10 tokens",
                "17 tokens are needed; the smallest budget that works is 32",
            ],
        ),
        (
            &["replay", "trace", "--policy", "vase-attnv", "--budget", "20"],
            3,
            vec!["--policy vase-attnv: ", "the smallest budget that works is 32"],
        ),
        (
            &["replay", "trace", "--policy", "snapkv", "--seed", "18446744073709551615"],
            2,
            vec!["18446744073709551615 is not in 0..=9007199254740992"],
        ),
        (
            &["replay", "results", "--theta", "1"],
            3,
            vec!["results: expected a trace", "found results of a study"],
        ),
        (
            &["sweep", "exits.yaml", "--trace", "results"],
            3,
            vec!["expected a trace", "found results of a study"],
        ),
        (&["replay", "bad.yaml", "--theta", "1"], 3, vec!["bad.yaml: expected a trace", "found a file"]),
        (
            &["replay", "trace", "--theta", "1", "--out", "bad.yaml/x/y"],
            2,
            vec!["bad.yaml/x/y: results need a folder, and bad.yaml is a file"],
        ),
        (
            &["sweep", "exits.yaml", "--trace", "trace", "--out", "x", "--dry-run", "--csv"],
            2,
            vec!["--dry-run", "--csv"],
        ),
        (
            &["exec", "evicts.yaml", "--mode", "forced", "--grader", "auto", "--out", "x"],
            2,
            vec!["--grader: with --mode forced", "no answer is graded"],
        ),
        (
            &["fidelity", "evicts.yaml", "--forced-only", "--grader", "auto", "--out", "x"],
            2,
            vec!["--grader: with --forced-only"],
        ),
        (&["replay", "trace", "--theta", "1e999"], 3, vec!["exit.theta is inf"]),
        (&["replay", "trace", "--theta", "nan"], 3, vec!["exit.theta is NaN"]),
        (&["replay", "trace", "--theta=-1"], 3, vec!["exit.theta is -1", "0 or more"]),
        (&["replay", "trace", "--budget", "many"], 2, vec!["invalid value 'many'"]),
        (
            &["sweep", "bad.yaml", "--trace", "trace"],
            3,
            vec!["bad.yaml", "line 3", "`evictoin`", "did you mean `eviction`?"],
        ),
        (&["sweep", "none.yaml", "--trace", "trace"], 3, vec!["none.yaml"]),
        (&["validate", "none"], 3, vec!["none"]),
        (&["plot", "trace"], 3, vec!["results.json", "found a trace"]),
        (&["diff", "trace", "empty"], 3, vec!["trace: expected a folder of results", "found a trace"]),
        (&["list", "policies", "--params", "vase"], 3, vec!["`vase`", "vase-attnv"]),
        (&["record", "--out", "trace"], 2, vec!["exists already", "--force"]),
        (
            &["record", "--out", "new", "--ort-lib", "/nonexistent/lib.so"],
            3,
            vec!["/nonexistent/lib.so", "to mend it"],
        ),
        (&["exec", "none.yaml", "--out", "x"], 3, vec!["none.yaml"]),
        // Before a model is loaded.
        (&["exec", "exits.yaml", "--out", "trace"], 2, vec!["trace", "this folder holds a trace"]),
        (&["fidelity", "exits.yaml", "--out", "bad.yaml"], 2, vec!["bad.yaml", "this is a file"]),
        (&["exec", "exits.yaml", "--out", "x"], 3, vec!["`exits`", "no `eviction` section"]),
        (&["exec", "exits.yaml", "--problems", "none.jsonl", "--out", "x"], 3, vec!["none.jsonl"]),
        (&["exec", "exits.yaml", "--level", "vast", "--out", "x"], 2, vec!["'vast'", "easy", "extreme"]),
        (&["setup", "--check"], 5, vec![]),
    ] {
        let output = kvlab(folder.path(), args);
        let said = text(&output.stderr) + &text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args:?} lacks {part:?}: {said}");
        }
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    }
    assert!(
        !folder.path().join("new").exists() && !folder.path().join("new.partial").exists(),
        "nothing half-written is left"
    );
}

#[test]
fn a_cell_that_cannot_work_is_a_row_and_the_exit_code_is_4() {
    let folder = with_trace();
    let output = kvlab(
        folder.path(),
        &["replay", "trace", "--policy", "snapkv", "--budget", "16,32", "--recent", "16", "--format", "json"],
    );
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let skipped: Vec<_> = rows.iter().filter(|row| row["status"] == "skipped").collect();
    assert_eq!(skipped.len(), 2, "snapkv and random at 16");
    assert!(skipped.iter().all(|row| row["error"].as_str().unwrap().contains("17 tokens are needed")));
}

#[test]
fn a_damaged_trace_is_refused_with_the_place_and_nothing_is_written() {
    let folder = with_trace();
    let tensors = folder.path().join("trace/tensors");
    let shard = std::fs::read_dir(&tensors).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 7]).unwrap();
    let name = shard.file_name().unwrap().to_string_lossy().into_owned();
    for args in [
        &["validate", "trace"][..],
        &["replay", "trace", "--policy", "snapkv", "--recent", "8", "--out", "r"],
    ] {
        let output = kvlab(folder.path(), args);
        assert_eq!(output.status.code(), Some(3), "{args:?}");
        assert!(text(&output.stderr).contains(&name), "{}", text(&output.stderr));
    }
    assert!(!folder.path().join("r").exists());
}

/// Nobody listening on standard error is no reason to lose the work, and only traces are ever replaced.
#[test]
fn a_full_standard_error_loses_nothing_and_force_spares_what_is_no_trace() {
    let folder = with_trace();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_kvlab"))
        .current_dir(folder.path())
        .args(["replay", "trace", "--theta", "1", "--out", "r", "--format", "csv"])
        .stdout(std::process::Stdio::null())
        .stderr(full)
        .status()
        .unwrap();
    assert!(status.success());
    assert!(folder.path().join("r/results.json").exists());
    let precious = folder.path().join("precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("thesis.txt"), "x").unwrap();
    for out in ["precious", ".", "x.partial"] {
        let output = kvlab(folder.path(), &["record", "--force", "--out", out]);
        assert_eq!(output.status.code(), Some(2), "{out}: {}", text(&output.stderr));
    }
    assert!(precious.join("thesis.txt").exists() && folder.path().join("trace").exists());
    let output = kvlab(folder.path(), &["replay", "trace", "--theta", "1", "--out", "trace"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let inspected = kvlab(folder.path(), &["inspect", "trace"]);
    let shown = text(&inspected.stdout);
    let exit = shown.lines().find(|line| line.contains("layer exit by entropy")).unwrap_or_default();
    assert!(exit.ends_with("yes"), "{shown}");
}

/// H13: with a budget that no sequence exceeds the policy never triggers, equals the full cache, and says so.
#[test]
fn h13_a_budget_above_the_length_says_that_the_policy_never_triggered() {
    let folder = with_trace();
    let output = kvlab(
        folder.path(),
        &["replay", "trace", "--policy", "snapkv", "--budget", "72", "--recent", "8", "--format", "json"],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    for row in rows.iter().filter(|row| row["policy"] != "full") {
        assert_eq!(row["evictions"], 0.0);
        assert_eq!(row["attn_mass_recall"], 1.0);
        assert!(row["lint"].as_str().unwrap().contains("never triggered"), "{row}");
    }
}

#[test]
fn a_model_is_inspected_without_a_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let done = kvlab(folder.path(), &["model", "inspect", "chain"]);
    let said = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(said.contains("family      qwen3") && said.contains("bytes a token in f32"), "{said}");
    let done = kvlab(folder.path(), &["model", "inspect", "chain", "--json"]);
    let card: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(card["config"]["kv_heads"], 2);
    let done = kvlab(folder.path(), &["model", "inspect", "nowhere"]);
    assert_eq!(done.status.code(), Some(3));
    assert!(text(&done.stderr).contains("nowhere"), "{}", text(&done.stderr));
    let done = kvlab(folder.path(), &["model", "inspect", "chian"]);
    assert!(text(&done.stderr).contains("none of the names chain, smollm2; did you mean chain?"));
}

#[test]
fn built_in_problems_and_graders_are_listed_and_unknown_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (what, word) in [("problems", "passkey-2"), ("graders", "latex")] {
        let done = kvlab(folder.path(), &["list", what]);
        assert!(done.status.success() && text(&done.stdout).contains(word));
    }
    let done = kvlab(folder.path(), &["record", "--workload", "riddles", "--out", "t"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("passkey-2"), "{}", text(&done.stderr));
}

#[test]
fn traces_are_made_cut_joined_and_shown_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let done = kvlab(folder.path(), &words);
        assert!(done.status.success(), "{line}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    let synth = "trace synth sinks-and-hitters --len 80 --layers 2 --head-dim 8 --vocab 300 --seed 3";
    run(&format!("{synth} --set sink_bonus=8 --out a"));
    run("trace slice a --sequences 1 --out b");
    run("trace slice a --sequences 0 --layers 1 --out c");
    run("trace merge b b --out d");
    run("trace convert d --dtype f16 --out e");
    run("trace convert a --to jsonl --out facts");
    run("trace synth branch-trees --set problems=3 --set branches=2 --layers 3 --vocab 300 --out trees");
    run("trace export trees --out trees.jsonl --block-size 16");
    run("trace import trees.jsonl --out requests");
    for trace in ["a", "b", "c", "d", "e", "trees", "requests"] {
        run(&format!("validate {trace} --deep"));
    }
    let shown = run("inspect e --json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["manifest"]["sequences"].as_array().unwrap().len(), 2);
    assert!(
        run("inspect a --field lens.entropy_nats --format csv")
            .starts_with("layer,count,absent,min,mean,max\n")
    );
    run("inspect a --chrome timeline.json --policy snapkv --budget 32");
    let timeline = std::fs::read(folder.path().join("timeline.json")).unwrap();
    let timeline: serde_json::Value = serde_json::from_slice(&timeline).unwrap();
    assert!(timeline["traceEvents"].as_array().unwrap().len() > 100);
    let report = run("trace synth --like a --seed 9 --format csv --out twin");
    assert!(report.starts_with("statistic,layer,recorded_p10"), "{report}");
    assert!(run("inspect twin").contains("synthetic sinks-and-hitters (seed 9)"));
    // What needs tensors says what the trace does not have.
    for trace in ["trees", "requests"] {
        let done = kvlab(folder.path(), &["replay", trace, "--policy", "snapkv"]);
        assert_eq!(done.status.code(), Some(3), "{}", text(&done.stdout));
        assert!(text(&done.stderr).contains("no sequence to replay"), "{}", text(&done.stderr));
    }
    for (line, words) in [
        ("trace slice a --sequences 7 --out x", "sequence 7 does not exist; there are 2"),
        ("trace slice a --sequences 3-1 --out x", "`3-1` is no range"),
        ("trace merge a e --out x", "another `"),
        ("trace synth sinks-and-hitters --set sink=1 --out x", "unknown field `sink`"),
        ("trace synth nothing --out x", "accepted: noise, sinks-and-hitters"),
        ("trace import trees.jsonl --block-size 8 --out x", "found 16, accepted: 8"),
        ("inspect a --field hidden", "the trace holds no `hidden`"),
    ] {
        let done = kvlab(folder.path(), &line.split(' ').collect::<Vec<_>>());
        assert!(
            !done.status.success() && text(&done.stderr).contains(words),
            "{line}: {}",
            text(&done.stderr)
        );
        assert!(!folder.path().join("x").exists() && !folder.path().join("x.partial").exists(), "{line}");
    }
}

#[test]
fn defaults_are_listed_as_one_would_type_them() {
    let folder = tempfile::tempdir().unwrap();
    let done = kvlab(folder.path(), &["list", "policies", "--params", "r-kv", "--format", "csv"]);
    let said = text(&done.stdout);
    assert!(said.contains("composition,r-kv,lambda,0.07,"), "{said}");
    assert!(said.contains("score,r-kv,threshold,0.5,") && said.contains("score,r-kv,window,8,"), "{said}");
}

#[test]
fn editing_a_trace_never_touches_unfinished_or_finished_work_of_others() {
    let folder = with_trace();
    let path = |name: &str| folder.path().join(name);
    let run = |args: &[&str]| {
        let done = kvlab(folder.path(), args);
        (done.status.code(), text(&done.stderr))
    };
    // An interrupted recording under the same name stays.
    std::fs::create_dir_all(path("out.partial/journal")).unwrap();
    std::fs::write(path("out.partial/journal/header.json"), "{}").unwrap();
    std::fs::write(
        path("lines.jsonl"),
        "{\"timestamp\": 0, \"input_length\": 16, \"output_length\": 1, \"hash_ids\": [1]}\n",
    )
    .unwrap();
    for args in [
        &["trace", "slice", "trace", "--sequences", "0", "--out", "out"][..],
        &["trace", "merge", "trace", "trace", "--out", "out"],
        &["trace", "convert", "trace", "--dtype", "f16", "--out", "out"],
        &["trace", "import", "lines.jsonl", "--block-size", "16", "--out", "out"],
    ] {
        let (code, said) = run(args);
        assert_eq!(code, Some(3), "{args:?}: {said}");
        assert!(said.contains("out.partial") && said.contains("to mend it"), "{args:?}: {said}");
        assert!(path("out.partial/journal/header.json").exists() && !path("out").exists());
    }
    // Names of unfinished work, and folders that are none, are not used.
    let (code, said) = run(&["trace", "slice", "trace", "--sequences", "0", "--out", "x.partial"]);
    assert!(code == Some(3) && said.contains("does not end in .partial"), "{said}");
    std::fs::create_dir_all(path("mine.partial")).unwrap();
    std::fs::write(path("mine.partial/note.txt"), "mine").unwrap();
    let (code, said) = run(&["trace", "synth", "noise", "--out", "mine", "--len", "16"]);
    assert!(code == Some(3) && said.contains("mine.partial"), "{said}");
    assert!(path("mine.partial/note.txt").exists());
    // Other files are written beside the trace and over nothing.
    let before = std::fs::read(path("trace/manifest.json")).unwrap();
    for args in [
        &["inspect", "trace", "--chrome", "trace/manifest.json"][..],
        &["trace", "export", "trace", "--force", "--out", "trace/manifest.json"],
    ] {
        let (code, said) = run(args);
        assert!(code == Some(2) && said.contains("inside the trace"), "{args:?}: {said}");
    }
    assert_eq!(std::fs::read(path("trace/manifest.json")).unwrap(), before);
    std::fs::write(path("f.json"), "mine").unwrap();
    let (code, said) = run(&["inspect", "trace", "--chrome", "f.json"]);
    assert!(code == Some(2) && said.contains("f.json exists already"), "{said}");
    std::fs::write(path("e.jsonl.meta.json"), "mine").unwrap();
    let (code, said) = run(&["trace", "export", "trace", "--block-size", "16", "--out", "e.jsonl"]);
    assert!(code == Some(2) && said.contains("e.jsonl.meta.json exists already"), "{said}");
    // A vocabulary of one token has no distribution to draw.
    let (code, said) = run(&["trace", "synth", "branch-trees", "--vocab", "1", "--out", "one"]);
    assert!(code == Some(3) && said.contains("vocab") && !path("one.partial").exists(), "{said}");
}

/// A serving study with `cost`, sizes of the verifier's prompt and of the root, and the scheduler of its one arm.
fn serving(cost: &str, verify_tokens: &str, root_tokens: &str, scheduler: &str) -> String {
    format!(
        "id: s\nwhy: w\nserve:\n  cost: {cost}\n  problems: {{count: 3, root_tokens: [8, {root_tokens}], suffix_tokens: 4, \
         branches: 2, generated_tokens: 4, verify_tokens: {verify_tokens}}}\n  arrivals: {{kind: at-once}}\n  baseline: a\n  \
         arms: [{{label: a, serve: {{scheduler: {scheduler}}}}}]\n"
    )
}

#[test]
fn serving_studies_out_of_scale_are_refused_and_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = |name: &str, text: String| {
        std::fs::write(folder.path().join("s.yaml"), text).unwrap();
        let output = kvlab(folder.path(), &["sweep", "s.yaml", "--out", name, "--csv"]);
        (output.status.code().unwrap(), text_of_both(&output), folder.path().join(name).exists())
    };
    let unit = "{kind: unit}";
    let huge = "{kind: unit, params: {pass: 1000000000000000000, token: 1000000000000000000}}";
    for (name, scenario, said) in [
        ("cost", serving(huge, "4", "9", "{}"), "accepted is at most 100000000000000000"),
        ("verify", serving(unit, "4000000000", "9", "{}"), "serve.problems.verify_tokens"),
        ("root", serving(unit, "4", "4000000000", "{}"), "serve.problems.root_tokens"),
        ("rows", serving(unit, "4", "9", "{batch_rows: 0}"), "serve.scheduler.batch_rows"),
        ("tokens", serving(unit, "4", "9", "{batch_tokens: 0}"), "serve.scheduler.batch_tokens"),
        ("chunk", serving(unit, "4", "9", "{prefill_chunk: 0}"), "serve.scheduler.prefill_chunk"),
    ] {
        let (code, output, is_left) = sweep(name, scenario);
        assert!(code != 0 && code != 101 && output.contains(said) && !is_left, "{name}: {code} {output}");
    }
    assert_eq!(sweep("fits", serving(unit, "4", "9", "{}")).0, 0);
    // H22: what can never fit is told, in the row and by the exit code.
    let (code, output, is_left) = sweep("small", serving(unit, "4", "9", "{capacity_blocks: 0}"));
    assert!(code == 4 && is_left && output.contains("3 of 3 problems refused"), "{code} {output}");
    assert!(
        output.contains("failed: a: no problem fits into the blocks") && !output.contains("skipped: a"),
        "{output}"
    );
    // Prefixes of 8 to 40 tokens, 4 more and 4 generated: in 2 blocks of 16 only the shorter ones fit. The run goes on, and the exit code tells.
    let some = "{capacity_blocks: 2}";
    let (code, output, is_left) = sweep("some", serving(unit, "4", "40", some));
    assert!(code == 4 && is_left && output.contains("of 3 problems refused"), "{code} {output}");
    assert!(output.contains("refused: a: ") && !output.contains("failed: a"), "{output}");
}

/// What `sweep` and `replay` tell before cells run is what `validate --trace` tells without running, and what the rows say afterwards.
#[test]
fn thresholds_are_looked_at_before_cells_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = kvlab(folder.path(), args);
        assert!(output.status.success(), "{args:?}: {}", text_of_both(&output));
        (text(&output.stdout), text(&output.stderr))
    };
    std::fs::write(
        folder.path().join("s.yaml"),
        "id: s\nwhy: w\ntrees:\n  stacks:\n    - label: gated\n      share: {kind: asks}\n      sweep: {share.tau: [0.9, 2, 3]}\n",
    )
    .unwrap();
    run(&["trace", "synth", "branch-trees", "--set", "problems=4", "--out", "trees"]);
    let (_, swept) = run(&["sweep", "s.yaml", "--trace", "trees"]);
    let lint: Vec<&str> = swept.lines().filter(|line| line.starts_with("lint: ")).collect();
    assert!(
        lint.iter().any(|line| line.contains("tau is unreachable: 2 is above every observed value")),
        "{swept}"
    );
    assert!(lint.iter().any(|line| line.contains("tau 3 repeats 2")), "{swept}");
    assert!(swept.find("lint: ") < swept.find("synthetic: "), "before the cells: {swept}");
    let (said, _) = run(&["validate", "s.yaml", "--trace", "trees"]);
    assert!(lint.iter().all(|line| said.contains(line)), "{said}");
    assert!(said.contains(&format!("{} findings", lint.len())), "{said}");
    let (json, _) = run(&["validate", "s.yaml", "--trace", "trees", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(findings.len(), lint.len());
    assert_eq!((&findings[0]["study"], findings[0]["cells"].as_array().unwrap().len()), (&"trees".into(), 1));
    let (_, replayed) = run(&["replay", "trees", "--tau", "2,3"]);
    assert!(replayed.contains("lint: tau 3 repeats 2"), "{replayed}");
    let output = kvlab(folder.path(), &["validate", "trees", "--trace", "trees"]);
    assert!(output.status.code() == Some(2) && text_of_both(&output).contains("it is no scenario"));
}

/// A recorded tree and generated problems alike; the same bytes each time, and nothing is left of a mistake.
#[test]
fn a_serving_arm_becomes_a_timeline() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let run = |args: &[&str]| {
        let output = kvlab(folder.path(), args);
        (output.status.code().unwrap(), text_of_both(&output))
    };
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/serving/recorded.yaml");
    std::fs::write(path("sizes.yaml"), serving("{kind: unit}", "4", "9", "{capacity_blocks: 3}")).unwrap();
    assert_eq!(run(&["trace", "synth", "branch-trees", "--set", "problems=3", "--out", "trees"]).0, 0);
    for (first, again, rest) in [
        ("a.json", "b.json", vec!["trees", "--scenario", recorded, "--arm", "rksc"]),
        ("c.json", "d.json", vec!["--scenario", "sizes.yaml"]),
    ] {
        let written = |name: &str| {
            let (code, said) = run(&[&["inspect", "--chrome", name], &rest[..]].concat());
            assert_eq!(code, 0, "{said}");
            std::fs::read(path(name)).unwrap()
        };
        let bytes = written(first);
        assert_eq!(bytes, written(again));
        let timeline: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let events = timeline["traceEvents"].as_array().unwrap();
        for wanted in ["prefill", "decode", "physical blocks", "answer"] {
            assert!(events.iter().any(|event| event["name"] == wanted), "{first} {wanted}");
        }
    }
    let (code, said) =
        run(&["inspect", "trees", "--scenario", recorded, "--chrome", "e.json", "--arm", "rkcs"]);
    assert!(code == 3 && said.contains("no serving arm `rkcs`") && said.contains("rksc"), "{code} {said}");
    let (code, said) = run(&["inspect", "--scenario", recorded, "--chrome", "e.json"]);
    assert!(code == 2 && said.contains("give the trace's folder"), "{code} {said}");
    assert!(!path("e.json").exists() && !path("e.json.tmp").exists());
}

fn text_of_both(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

/// A folder whose name is no text can be recorded into, so it can be replayed from, and into another one.
#[cfg(unix)]
#[test]
fn names_that_are_no_text_stop_no_verb() {
    use std::os::unix::ffi::OsStrExt;
    let folder = with_trace();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    std::fs::rename(folder.path().join("trace"), folder.path().join(odd)).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_kvlab"))
        .current_dir(folder.path())
        .arg("replay")
        .arg(odd)
        .args(["--policy", "snapkv", "--budget", "32", "--out"])
        .arg(std::ffi::OsStr::from_bytes(b"out\xfe"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = folder.path().join(std::ffi::OsStr::from_bytes(b"out\xfe"));
    assert!(out.join("results.json").exists());
}
