//! Measured times: recorded on demand, and what a serving study makes of them.

use crate::support::synth;
use kvlab_sim::trace::{Dtype, Leftover, Trace, TraceSource, verify};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs kvlab in `folder`, with the runtime of this machine.
fn kvlab(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvlab")).current_dir(folder).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SERVE: &str = "id: s\nwhy: w\nserve:\n  cost: {kind: measured}\n  problems: {count: 3, root_tokens: [20, 30], suffix_tokens: 4, \
    branches: 2, generated_tokens: 4, verify_tokens: 12}\n  arrivals: {kind: at-once}\n  baseline: alone\n  \
    arms: [{label: alone}, {label: shared, reuse: 1.0}]\n";

/// Parameters of the cost model, as the table of cells has them, and the simulated latencies.
fn cells(folder: &Path) -> (Value, Vec<f64>) {
    let text = std::fs::read_to_string(folder.join("cells.jsonl")).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let params: Value = serde_json::from_str(rows[0]["params"].as_str().unwrap()).unwrap();
    (params["cost"].clone(), rows.iter().map(|row| row["serve_latency_ms"].as_f64().unwrap()).collect())
}

/// Two recordings: one with times, twice used as a cost model, from the trace and from a file; two without, byte for byte the same.
#[test]
fn recorded_times_are_a_cost_model_and_a_recording_without_them_is_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let record = |out: &str, more: &[&str]| {
        let common =
            ["record", "--workload", "chain", "--count", "1", "--max-new-tokens", "4", "--ep", "cpu"];
        let output = kvlab(path, &[&common, &["--threads", "2", "--out", out][..], more].concat());
        assert!(output.status.success(), "{}", said(&output));
        Trace::open(&path.join(out)).unwrap()
    };
    let (one, two) = (record("one", &[]), record("two", &[]));
    assert_eq!(one.digest(), two.digest());
    assert!(one.times().is_err());
    let timed = record("timed", &["--times"]);
    verify(&path.join("timed")).unwrap();
    let times = timed.times().unwrap();
    for part in ["prefill", "decode", "suffix", "layer", "gate", "head", "evict"] {
        let lines = times.iter().filter(|time| time.part.as_deref() == Some(part));
        assert!(lines.clone().count() > 0, "{part}");
        assert!(lines.into_iter().all(|time| time.median_nanos >= Some(time.nanos)), "{part}");
    }
    let branches = record("trees", &["--times", "--branches", "2"]);
    assert!(!branches.times().unwrap().is_empty());

    std::fs::write(path.join("s.yaml"), SERVE).unwrap();
    let output = kvlab(path, &["sweep", "s.yaml", "--trace", "timed", "--out", "served", "--jsonl"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("fitted to"), "{}", said(&output));
    let (cost, latencies) = cells(&path.join("served"));
    assert_eq!(cost["measurements"], times.len());
    assert!(cost["mean_relative_error"].as_f64().unwrap() >= 0.0 && latencies.iter().all(|ms| *ms > 0.0));

    // The same lines from a file give the same simulated times.
    std::fs::copy(path.join("timed/facts/times.jsonl"), path.join("times.jsonl")).unwrap();
    let layers = timed.shape().layers;
    let file = SERVE.replace(
        "{kind: measured}",
        &format!("{{kind: measured, params: {{file: times.jsonl, layers: {layers}}}}}"),
    );
    std::fs::write(path.join("f.yaml"), &file).unwrap();
    let output = kvlab(path, &["sweep", "f.yaml", "--out", "filed", "--jsonl"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(cells(&path.join("filed")), (cost, latencies));
}

#[test]
fn times_that_are_not_there_are_missed_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    synth::fixed().write(&path.join("trace"), Dtype::F32, 4, 32, Leftover::Refuse).unwrap();
    std::fs::write(path.join("s.yaml"), SERVE).unwrap();
    let lacking = SERVE.replace("{kind: measured}", "{kind: measured, params: {file: gone.jsonl}}");
    std::fs::write(path.join("f.yaml"), lacking).unwrap();
    let both = SERVE.replace(
        "{kind: measured}",
        "{kind: measured, params: {file: x, measurements: [{new_tokens: 1, context_tokens: 0, nanos: 5}]}}",
    );
    std::fs::write(path.join("b.yaml"), both).unwrap();
    for (args, words) in [
        (&["sweep", "s.yaml", "--out", "r"][..], "--trace"),
        (&["sweep", "s.yaml", "--trace", "trace", "--out", "r"], "facts/times.jsonl"),
        (&["sweep", "f.yaml", "--out", "r"], "gone.jsonl"),
        (&["sweep", "b.yaml", "--out", "r"], "accepted is one of them"),
    ] {
        let output = kvlab(path, args);
        assert!(matches!(output.status.code(), Some(2 | 3)), "{}", said(&output));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
        assert!(!path.join("r").exists());
    }
}
