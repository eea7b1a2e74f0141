//! 1 = 2 = 4 threads, byte for byte, and cells do not feel one another.

use crate::support::synth;
use kvlab_sim::results::{Formats, Results, write};
use kvlab_sim::run::{RunOptions, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::{LayerTensors, LensRow, SequenceMeta, TraceError, TraceSource};
use kvlab_sim::types::{LayerIdx, ModelShape, SeqIdx};

const STUDY: &str = "
id: threads
why: Do threads change a byte?
seeds: [0, 1, 2]
eviction:
  budgets: [16, 24]
  recent: 4
  sinks: 2
  output_error_every: 3
  policies: [{use: full}, {use: random}, {use: streaming-llm}, {use: snapkv}, {use: snapkv-prefill}, {use: vase-attnv}, {use: vase-dkv}]
exit:
  lens: [final-norm, raw]
  theta: {from: 0.1, to: 3.9, steps: 7}
  epsilon: [0.2, 1]
  min_layer: 0
";

fn run(text: &str, threads: usize) -> Results {
    let trace = synth::fixed();
    let scenario = Scenario::parse(text, "test").unwrap();
    let options = RunOptions { threads, command: "test".to_owned(), progress: &|_, _| {} };
    study(&scenario, &trace, source_info(&trace, "none", ""), &options).unwrap()
}

fn bytes(results: &Results) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), results, Formats::WITH_CSV).unwrap();
    let mut files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 5, "a manifest and two tables in two formats");
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn one_two_and_four_threads_give_the_same_bytes() {
    let one = bytes(&run(STUDY, 1));
    assert_eq!(one, bytes(&run(STUDY, 2)));
    assert_eq!(one, bytes(&run(STUDY, 4)));
}

/// A cell has the same id, digest and numbers alone as in company.
#[test]
fn cells_do_not_depend_on_their_company() {
    let all = run(STUDY, 2);
    let policies = ["full", "random", "streaming-llm", "snapkv", "snapkv-prefill", "vase-attnv", "vase-dkv"];
    let listed = policies.map(|policy| format!("{{use: {policy}}}")).join(", ");
    assert!(STUDY.contains(&listed));
    let find = |results: &Results, policy: &str| -> Vec<Vec<Value>> {
        let columns = [
            "cell",
            "log_digest",
            "attn_mass_recall",
            "attn_mass_recall_lo",
            "attn_output_error",
            "kv_byte_steps",
            "boundary_tie_rate",
            "wide_value_coverage",
            "union_coverage",
            "head_jaccard",
        ];
        (0..results.cells.rows())
            .filter(|&row| results.cells.value("policy", row) == Value::Text(policy.to_owned()))
            .map(|row| columns.iter().map(|column| results.cells.value(column, row)).collect())
            .collect()
    };
    let series = |results: &Results, cell: &Value| -> Vec<[Value; 3]> {
        (0..results.series.rows())
            .filter(|&row| results.series.value("cell", row) == *cell)
            .map(|row| ["metric", "x", "value"].map(|column| results.series.value(column, row)))
            .collect()
    };
    for policy in policies {
        let alone = run(&STUDY.replace(&listed, &format!("{{use: {policy}}}")), 1);
        let found = find(&all, policy);
        assert_eq!(found, find(&alone, policy), "{policy}");
        for cell in found {
            assert_eq!(series(&all, &cell[0]), series(&alone, &cell[0]), "{policy}");
        }
    }
    assert_eq!(find(&all, "vase-attnv").len(), 6, "two budgets and three seeds");
}

/// A trace whose keys and values are so large that squared norms overflow.
struct Huge(kvlab_sim::trace::synth::Synthetic);

impl TraceSource for Huge {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn digest(&self) -> String {
        self.0.digest()
    }
    fn is_synthetic(&self) -> bool {
        true
    }
    fn shape(&self) -> &ModelShape {
        self.0.shape()
    }
    fn sequences(&self) -> &[SequenceMeta] {
        self.0.sequences()
    }
    fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        let LayerTensors { q, k, v } = self.0.layer(seq, layer)?;
        Ok(LayerTensors { q, k: k * 1e12, v: v * 1e12 })
    }
    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        self.0.lens(seq)
    }
}

/// A policy that cannot decide costs its own row, with the reason, and no other.
#[test]
fn a_score_that_is_no_number_fails_its_cell_only() {
    let trace = Huge(synth::fixed());
    let scenario = Scenario::parse(&STUDY[..STUDY.find("exit:").unwrap()], "test").unwrap();
    let options = RunOptions { threads: 2, command: "test".to_owned(), progress: &|_, _| {} };
    let results = study(&scenario, &trace, source_info(&trace, "none", ""), &options).unwrap();
    let mut failed = 0;
    for row in 0..results.cells.rows() {
        let is_dkv = results.cells.value("policy", row) == Value::Text("vase-dkv".to_owned());
        let status = if is_dkv { "failed" } else { "ok" };
        assert_eq!(results.cells.value("status", row), Value::Text(status.to_owned()), "row {row}");
        if is_dkv {
            failed += 1;
            let Value::Text(error) = results.cells.value("error", row) else { panic!("no reason") };
            assert!(error.contains("kv-sketch") && error.contains("sequence 0, layer 0"), "{error}");
            assert_eq!(results.cells.value("attn_mass_recall", row), Value::Absent);
        }
    }
    assert_eq!(failed, 6);
}

/// Seeds matter to stochastic stacks, and only to them.
#[test]
fn deterministic_stacks_have_one_cell_a_budget_and_full_has_one() {
    let results = run(STUDY, 2);
    let count = |policy: &str| {
        (0..results.cells.rows())
            .filter(|&row| results.cells.value("policy", row) == Value::Text(policy.to_owned()))
            .count()
    };
    assert_eq!(["full", "snapkv", "streaming-llm", "random", "vase-dkv"].map(count), [1, 2, 2, 6, 6]);
    let full = (0..results.cells.rows())
        .find(|&row| results.cells.value("policy", row) == Value::Text("full".to_owned()))
        .unwrap();
    assert_eq!(
        results.cells.value("attn_mass_recall", full),
        Value::Real(1.0),
        "the full cache recalls exactly everything"
    );
    assert_eq!(results.cells.value("evictions", full), Value::Real(0.0));
    assert!(synth::fixed().is_synthetic());
    assert_eq!(results.cells.value("synthetic", full), Value::Bool(true));
}
