//! What is refused at the command line before anything is run: places of other results, and options that mean nothing to what is asked.

use crate::cli::{kvlab, text, with_trace};
use std::fs;
use std::path::Path;

/// Runs kvlab; gives the exit code and all that was said.
fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
    let done = kvlab(folder, args);
    (done.status.code(), text(&done.stderr) + &text(&done.stdout))
}

const STUDY: &str =
    "id: s\nwhy: w\neviction: {budgets: 16, recent: 4, policies: [{use: full}, {use: snapkv}]}\n";

/// Executed results take hours; no verb writes its own over those of another one.
#[test]
fn no_verb_replaces_the_results_of_another_one() {
    let folder = with_trace();
    let path = folder.path();
    fs::write(path.join("s.yaml"), STUDY).unwrap();
    let replay = ["replay", "trace", "--theta", "1", "--out", "r"];
    let sweep = ["sweep", "s.yaml", "--trace", "trace", "--out", "r"];
    let merge = ["merge", "r", "--out", "r"];
    let exec = ["exec", "s.yaml", "--out", "r"];
    let fidelity = ["fidelity", "s.yaml", "--out", "r"];
    let tune = ["tune", "s.yaml", "--trace", "trace", "--out", "r"];
    let refused = |args: &[&str], old: &str| {
        let before = fs::read(path.join("r/results.json")).unwrap();
        let (code, said) = run(path, args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        let (new, place) = (args[0], "r: this folder holds results of");
        assert!(
            said.contains(&format!("{place} `kvlab {old}`, which `kvlab {new}` does not replace")),
            "{said}"
        );
        assert_eq!(fs::read(path.join("r/results.json")).unwrap(), before, "{args:?}");
    };
    assert_eq!(run(path, &replay).0, Some(0));
    assert_eq!(run(path, &replay).0, Some(0), "its own are replaced");
    for other in [&sweep[..], &exec, &fidelity, &tune] {
        refused(other, "replay");
    }
    fs::remove_dir_all(path.join("r")).unwrap();
    assert_eq!(run(path, &sweep).0, Some(0));
    assert_eq!(run(path, &merge).0, Some(0), "a merge makes the tables of a sweep");
    assert_eq!(run(path, &sweep).0, Some(0));
    for other in [&replay[..], &exec, &fidelity, &tune] {
        refused(other, "sweep");
    }
    // As `kvlab exec` leaves them: nothing else tells them apart.
    fs::remove_file(path.join("r/plan.json")).unwrap();
    let manifest = fs::read_to_string(path.join("r/results.json")).unwrap();
    let executed = manifest.replace("kvlab sweep", "kvlab exec").replace("kvlab merge", "kvlab exec");
    fs::write(path.join("r/results.json"), executed).unwrap();
    for other in [&replay[..], &sweep, &fidelity, &tune] {
        refused(other, "exec");
    }
}

#[test]
fn no_file_of_the_users_is_taken_for_a_table_of_results() {
    let folder = with_trace();
    let path = folder.path();
    fs::create_dir(path.join("mine")).unwrap();
    fs::write(path.join("mine/notes.csv"), "a").unwrap();
    let replay = ["replay", "trace", "--theta", "1", "--out", "mine"];
    assert_eq!(run(path, &replay).0, Some(0), "files of other names are nobody's business");
    fs::remove_file(path.join("mine/results.json")).unwrap();
    fs::write(path.join("mine/items.csv"), "my own data").unwrap();
    let (code, text) = run(path, &replay);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("mine: this folder holds cells.parquet, series.parquet, items.csv"), "{text}");
    assert_eq!(fs::read_to_string(path.join("mine/items.csv")).unwrap(), "my own data");
    fs::write(path.join("mine/results.json"), "{}").unwrap();
    let (code, text) = run(path, &replay);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("mine: its results.json is none of kvlab's"), "{text}");
}

#[test]
fn parameters_that_are_no_number_or_cost_without_end_are_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    for (policy, parts) in [
        ("use: vase-dkv, with: {rank: 4294967295}", &["`rank`", "4294967295", "0 to 4096"][..]),
        ("use: curdkv, with: {rank: 999999999}", &["`rank`", "0 to 4096"]),
        (
            "label: r, stack: {score: {kind: leverage, params: {sketch: 999999999}}}",
            &["`sketch`", "0 to 4096"],
        ),
        ("label: r, stack: {score: {kind: leverage, params: {jitter: .nan}}}", &["`jitter`", ".nan"]),
        (
            "label: r, stack: {score: {kind: leverage, params: {jitter: -1}}}",
            &["`jitter`", "-1", "0 or more"],
        ),
        (
            "label: r, stack: {score: {kind: expected-attention, params: {future: 16777216}}}",
            &["`future`", "16777216", "1 to 65536"],
        ),
        (
            "label: r, stack: {score: {kind: expected-attention, params: {epsilon: .nan}}}",
            &["`epsilon`", ".nan"],
        ),
        (
            "label: r, stack: {score: {kind: expected-attention, params: {epsilon: -1}}}",
            &["`epsilon`", "-1", "0 or more"],
        ),
        ("use: vase-attnv, with: {temperature: 1e-45}", &["`temperature`", "1e-30 or more"]),
        ("label: r, stack: {score: {kind: r-kv, params: {threshold: .nan}}}", &["`threshold`", ".nan"]),
        (
            "label: r, stack: {score: {kind: recency}, select: {kind: weighted-sample, params: {exponent: .nan}}}",
            &["`exponent`", ".nan"],
        ),
    ] {
        let text =
            format!("id: a\nwhy: b\neviction: {{budgets: [64], recent: 8, policies: [{{{policy}}}]}}\n");
        fs::write(folder.path().join("s.yaml"), text).unwrap();
        let (code, said) = run(folder.path(), &["validate", "s.yaml"]);
        assert_eq!(code, Some(3), "{policy}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{policy}: {said}");
    }
}

#[test]
fn options_that_mean_nothing_to_what_is_asked_are_refused() {
    let folder = with_trace();
    let path = folder.path();
    fs::write(path.join("s.yaml"), STUDY).unwrap();
    let trees = "id: t\nwhy: w\ntrees: {stacks: [{label: a}]}\n";
    fs::write(path.join("t.yaml"), trees).unwrap();
    fs::write(path.join("p.jsonl"), "{\"id\": \"a\", \"question\": \"b\", \"answer\": \"five\"}\n").unwrap();
    for (args, parts) in [
        ("model inspect chain --ep cuda", &["--ep"][..]),
        ("model inspect chain --ort-lib x", &["--ort-lib"]),
        ("setup --check --ep cpu", &["--ep"]),
        ("record --out o --problems p.jsonl --count 3", &["--count", "--problems"]),
        ("record --out o --problems p.jsonl --level easy", &["--level", "--problems"]),
        ("record --out o --problems p.jsonl --seed 1", &["--seed", "--problems"]),
        ("record --out o --model smollm2 --count 3", &["--count", "`gsm8k`", "chain, chain-verify"]),
        ("record --out o --workload gsm8k --seed 3", &["--seed", "`gsm8k`"]),
        (
            "record --out o --workload passkey --level easy",
            &["--level", "`passkey`", "--workload chain, chain-verify"],
        ),
        ("record --out o --workload gsm8k --grader choice", &["--grader", "a capital letter"]),
        ("record --out o --branches 2 --dtype f16", &["--branches", "--dtype"]),
        ("record --out o --branches 2 --max-bytes 1MB", &["--branches", "--max-bytes"]),
        ("record --out o --weights none,w-o", &["--weights", "`none`"]),
        ("record --out o --batch 2", &["--branches"]),
        ("exec s.yaml --out o --branches 4", &["--branches", "`trees` and `pool`", "is `eviction`"]),
        ("exec s.yaml --out o --one-wording", &["--one-wording"]),
        ("exec s.yaml --out o --batch 2", &["--batch", "it is for `trees` sections"]),
        ("fidelity s.yaml --out o --batch 2", &["--batch"]),
        ("exec s.yaml --out o --problems p.jsonl --count 2", &["--count", "--problems"]),
        ("replay trace --theta 1 --budget 16", &["--budget", "--policy"]),
        ("replay trace --theta 1 --window 16", &["--window", "--policy"]),
        ("replay trace --policy snapkv --lens raw", &["--lens"]),
        ("replay trace --policy snapkv --min-exit-layer 1", &["--min-exit-layer"]),
        ("replay trace --policy snapkv --csv", &["--csv", "--out"]),
        ("replay trace --share off --tau 0.5", &["--tau", "--share asks"]),
        ("replay trace --verify always --margin 0.5", &["--margin", "--verify cgee"]),
        ("replay trace --exit never --theta 1", &["--theta", "--exit entropy"]),
        ("sweep s.yaml --trace trace --jsonl", &["--jsonl", "--out"]),
        ("sweep s.yaml --trace trace --out o --shard 1/2 --csv", &["--csv"]),
        ("sweep s.yaml --trace trace --dry-run --format csv", &["--format", "--dry-run"]),
        ("sweep t.yaml --trace trace --predict p.json", &["--predict", "`eviction`"]),
        ("validate s.yaml --deep", &["--deep", "s.yaml is none"]),
        ("inspect trace --format csv", &["--field"]),
        ("inspect trace --field lens.entropy_nats --chrome c.json", &["--field", "--chrome"]),
        ("list metrics --params snapkv", &["--params", "kvlab list policies"]),
        ("list schema --format csv", &["--format"]),
        ("trace synth branch-trees --dtype f16 --out o", &["--dtype", "branch-trees"]),
        ("trace synth --format csv --out o", &["--like"]),
        ("record --out o --count 0", &["--count", "accepted is a whole number from 1"]),
        ("record --out o --threads 0", &["--threads", "accepted is a whole number from 1"]),
        ("record --out o --limit x", &["--limit", "accepted is a whole number from 1"]),
    ] {
        let words: Vec<&str> = args.split(' ').collect();
        let (code, said) = run(path, &words);
        assert_eq!(code, Some(2), "{args}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args} lacks {part:?}: {said}");
        }
        assert!(!path.join("o").exists() && !path.join("o.partial").exists(), "{args}");
    }
    let (code, said) = run(path, &["record", "--out", "o", "--problems", "p.jsonl", "--grader", "number"]);
    assert!(code == Some(3) && said.contains("p.jsonl: line 1: the answer of `a` is \"five\""), "{said}");
}

/// What `--help` says about second names, and about what does not go together.
#[test]
fn help_names_second_names_and_what_excludes_what() {
    let folder = tempfile::tempdir().unwrap();
    let (_, replay) = run(folder.path(), &["replay", "--help"]);
    for name in ["kv-budget", "recent-buffer", "sink-tokens", "evict-every", "window-size"] {
        assert!(replay.contains(&format!("--{name}]")), "{name}: {replay}");
    }
    let (_, record) = run(folder.path(), &["record", "--help"]);
    let record = record.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(record.contains("--weights) and --max-bytes do not go with it"), "{record}");
}

/// Files that somebody else wrote or cut: the file, the place and what is accepted, in words of ours.
#[test]
fn damaged_files_are_named_with_the_place() {
    let folder = with_trace();
    let path = folder.path();
    let serving = "id: s\nwhy: w\nserve: {cost: {kind: measured}, problems: {count: 1, root_tokens: [4, 4], suffix_tokens: 2, branches: 2, \
                   generated_tokens: 2, verify_tokens: 2}, baseline: a, arms: [{label: a}]}\n";
    fs::write(path.join("m.yaml"), serving).unwrap();
    let (code, said) = run(path, &["sweep", "m.yaml", "--trace", "trace"]);
    assert!(code == Some(3) && said.contains("record it with `kvlab record --times`"), "{said}");
    let (_, said) = run(path, &["inspect", "trace"]);
    assert!(said.contains("lens      with the final norm and without it\ntimes     none"), "{said}");
    // A recording whose header was cut.
    let synth = ["trace", "synth", "--sequences", "2", "--len", "16", "--out", "cut"];
    assert_eq!(run(path, &synth).0, Some(0));
    fs::rename(path.join("cut"), path.join("cut.partial")).unwrap();
    fs::remove_file(path.join("cut.partial/manifest.json")).unwrap();
    fs::create_dir(path.join("cut.partial/journal")).unwrap();
    fs::write(path.join("cut.partial/journal/header.json"), "{\n  \"synthetic\": {").unwrap();
    let (code, said) = run(path, &synth);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("cut.partial/journal/header.json: line 2, column"), "{said}");
}
