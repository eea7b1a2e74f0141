//! Studies of some of the problems: which ones is decided by their ids and a seed, stands in the table, and is part of what a cell is.

use super::process::{run, said};
use super::{files, options};
use crate::support::synth;
use kvlab_sim::results::Results;
use kvlab_sim::run::{source_info, study};
use kvlab_sim::scenario::{Scenario, SourceFlags, Strata};
use kvlab_sim::table::Value;
use kvlab_sim::trace::synth::{BranchParams, SynthLength, SynthSpec, Synthetic, SyntheticBranches};
use kvlab_sim::trace::{
    Dtype, LayerTensors, Leftover, LensRow, Problem, SequenceMeta, TraceError, TraceSource,
};
use kvlab_sim::types::{LayerIdx, ModelShape, SeqIdx};
use std::collections::BTreeSet;

const STUDY: &str = "
id: some
why: What do some of the problems say?
eviction:
  budgets: [16]
  recent: 4
  sinks: 2
  policies: [{use: full}, {use: snapkv}]
exit: {theta: 2, epsilon: 1, min_layer: 0}
trees:
  stacks: [{label: gated, share: {kind: asks}, verify: {kind: cgee}}]
compare: {baseline: full}
";

/// Twenty easy, ten middling and ten hard problems, in sequences and branch trees alike.
struct Levels {
    sequences: Synthetic,
    metas: Vec<SequenceMeta>,
    trees: SyntheticBranches,
}

fn name(at: usize) -> String {
    match at % 4 {
        0 | 1 => format!("chain-easy-0-{at}"),
        2 => format!("chain-medium-0-{at}"),
        _ => format!("chain-hard-0-{at}"),
    }
}

impl Levels {
    fn new() -> Self {
        let shape = ModelShape { layers: 2, q_heads: 2, kv_heads: 1, head_dim: 4, hidden: 8, vocab: 20 };
        let lengths = (0..40).map(|at| SynthLength { prompt_len: 6, len: 30 + at % 5 }).collect();
        let sequences = Synthetic::build("sinks-and-hitters", SynthSpec { shape, lengths, seed: 3 }).unwrap();
        let named = |(at, meta): (usize, &SequenceMeta)| SequenceMeta { item: name(at), ..meta.clone() };
        let metas = sequences.sequences().iter().enumerate().map(named).collect();
        let params = BranchParams { problems: 40, branches: 3, generated: 4, ..BranchParams::default() };
        Self { sequences, metas, trees: SyntheticBranches::build(shape, 3, params).unwrap() }
    }
}

impl TraceSource for Levels {
    fn name(&self) -> &str {
        "levels"
    }
    fn digest(&self) -> String {
        format!("{}{}", self.sequences.digest(), self.trees.digest())
    }
    fn is_synthetic(&self) -> bool {
        true
    }
    fn shape(&self) -> &ModelShape {
        self.sequences.shape()
    }
    fn sequences(&self) -> &[SequenceMeta] {
        &self.metas
    }
    fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        self.sequences.layer(seq, layer)
    }
    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        self.sequences.lens(seq)
    }
    fn problems(&self) -> u32 {
        40
    }
    fn problem(&self, index: u32) -> Result<Problem, TraceError> {
        Ok(Problem { item: name(index as usize), ..self.trees.problem(index)? })
    }
}

fn results(source: &Levels, what: &str, threads: usize) -> Results {
    let scenario = Scenario::parse(&format!("{STUDY}{what}"), "test").unwrap();
    study(&scenario, source, source_info(source, "", ""), &options(threads)).unwrap()
}

fn texts(results: &Results, table: &str, column: &str) -> Vec<String> {
    let table = if table == "cells" { &results.cells } else { results.more(table).unwrap() };
    (0..table.rows())
        .map(|row| match table.value(column, row) {
            Value::Text(text) => text,
            other => panic!("{column}: {other:?}"),
        })
        .collect()
}

/// Recall of the policy by item, in the order of the table.
fn recall(results: &Results, policy: &str) -> Vec<(String, f64)> {
    let at = texts(results, "cells", "policy").iter().position(|label| label == policy).unwrap();
    let cell = &texts(results, "cells", "cell")[at];
    let items = results.more("items").unwrap();
    (0..items.rows())
        .filter(|&row| {
            items.value("cell", row) == Value::Text(cell.clone())
                && items.value("metric", row) == Value::Text("attn_mass_recall".to_owned())
        })
        .map(|row| match (items.value("item", row), items.value("value", row)) {
            (Value::Text(item), Value::Real(value)) => (item, value),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn drawn_problems_give_what_they_give_among_all_others() {
    let source = Levels::new();
    let all = results(&source, "", 1);
    let some = results(&source, "source: {fraction: 0.3, stratify: id-prefix, seed: 7}", 1);
    let drawn = recall(&some, "snapkv");
    // Twelve of forty: six, three and three of twenty, ten and ten.
    let of = |level: &str| drawn.iter().filter(|(item, _)| Strata::IdPrefix.of(item) == level).count();
    assert_eq!((of("chain-easy-0"), of("chain-medium-0"), of("chain-hard-0")), (6, 3, 3));
    let known = recall(&all, "snapkv");
    assert!(drawn.iter().all(|one| known.contains(one)), "the same numbers as in a study of all");
    let order: Vec<usize> = drawn.iter().map(|one| known.iter().position(|k| k == one).unwrap()).collect();
    assert!(order.is_sorted(), "in the order of the trace");
    // A cell is the mean over the drawn ones, and says how many they are and how they came.
    let at = texts(&some, "cells", "policy").iter().position(|label| label == "snapkv").unwrap();
    let mean = drawn.iter().map(|(_, value)| value).sum::<f64>() / 12.0;
    let Value::Real(found) = some.cells.value("attn_mass_recall", at) else { panic!() };
    assert!((found - mean).abs() < 1e-12);
    assert_eq!(some.cells.value("sequences", at), Value::Int(12));
    assert!(texts(&some, "cells", "drawn").iter().all(|word| word == "fraction 0.3, by id-prefix, seed 7"));
    assert!(all.cells.column("drawn").is_none());
    // Branch trees are drawn by the same ids, and keep their places in the trace.
    let problems = some.more("problems").unwrap();
    let items: BTreeSet<String> = texts(&some, "problems", "item").into_iter().collect();
    assert_eq!(items, drawn.iter().map(|(item, _)| item.clone()).collect());
    for row in 0..problems.rows() {
        let (Value::Int(place), Value::Text(item)) =
            (problems.value("problem", row), problems.value("item", row))
        else {
            panic!()
        };
        assert_eq!(name(usize::try_from(place).unwrap()), item);
    }
    assert_eq!(results(&source, "source: {fraction: 0.3, stratify: id-prefix, seed: 7}", 3), some);
}

#[test]
fn which_problems_are_drawn_is_part_of_what_a_cell_is() {
    let source = Levels::new();
    let cells = |what: &str| texts(&results(&source, what, 1), "cells", "cell");
    let (first, drawn) = (cells("source: {limit: 12}"), cells("source: {limit: 12, stratify: id-prefix}"));
    let other = cells("source: {limit: 12, stratify: id-prefix, seed: 1}");
    for (a, b) in [(&first, &drawn), (&drawn, &other), (&first, &other)] {
        assert!(a.iter().zip(b).all(|(a, b)| a != b), "twelve problems each, and no cell is the same");
    }
    // Two ways to ask for the same problems give the same cells.
    assert_eq!(drawn, cells("source: {fraction: 0.3, stratify: id-prefix}"));
    assert_eq!(cells(""), cells("source: {limit: 40}"));
}

#[test]
fn a_draw_that_is_none_is_refused() {
    let refused =
        |what: &str| Scenario::parse(&format!("{STUDY}source: {what}"), "test").unwrap_err().to_string();
    for (what, parts) in [
        ("{fraction: 0}", ["source.fraction is 0", "above 0, at most 1"]),
        ("{fraction: 1.5}", ["source.fraction is 1.5", "at most 1"]),
        ("{fraction: .nan}", ["source.fraction is NaN", "at most 1"]),
        ("{limit: 5, seed: 1}", ["source.seed is 1", "the first problems are read"]),
        ("{stratify: level}", ["unknown variant `level`", "id-prefix"]),
    ] {
        let message = refused(what);
        assert!(parts.iter().all(|part| message.contains(part)), "{what}: {message}");
    }
    let flags = SourceFlags { seed: Some(1), ..SourceFlags::default() };
    let message = Scenario::parse(STUDY, "test").unwrap().reading(&flags).unwrap_err().to_string();
    assert!(message.contains("--draw-seed is 1"), "{message}");
}

/// Flags of `sweep`, `replay` and `tune` say what a scenario could have said, and a sweep that reads others runs them.
#[test]
fn flags_read_what_the_scenario_would() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    synth::fixed().write(&folder.path().join("trace"), Dtype::F32, 4, 32, Leftover::Refuse).unwrap();
    let study = STUDY.split("trees:").next().unwrap();
    write("s.yaml", study);
    write("two.yaml", &format!("{study}source: {{limit: 2, fraction: 0.9}}\n"));
    let sweep = |scenario: &str, more: &[&str], code: i32| {
        said(&run(folder.path(), &[&["sweep", scenario, "--trace", "trace"], more].concat(), code))
    };
    sweep("two.yaml", &["--out", "a"], 0);
    sweep("s.yaml", &["--limit", "2", "--fraction", "0.9", "--out", "b"], 0);
    let tables = |name: &str| {
        let mut files = files(&folder.path().join(name));
        // They hold the command lines, which differ.
        files.retain(|(name, _)| name.extension().is_some_and(|extension| extension == "parquet"));
        files
    };
    assert!(tables("a") == tables("b") && !tables("a").is_empty());
    let manifest = std::fs::read_to_string(folder.path().join("b/results.json")).unwrap();
    assert!(manifest.contains("source: {limit: 2, fraction: 0.9}"), "{manifest}");
    let news = sweep("s.yaml", &["--out", "b"], 0);
    assert!(news.contains("cells in b are of other studies") && !news.contains("there already"), "{news}");
    let news = sweep("s.yaml", &["--fraction", "2"], 3);
    assert!(news.contains("s.yaml: --fraction is 2; accepted: above 0, at most 1"), "{news}");
    let dry =
        run(folder.path(), &["sweep", "s.yaml", "--trace", "trace", "--fraction", "0.4", "--dry-run"], 0);
    let text = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(text.contains("over 1 sequences"), "{text}");
    let args =
        ["sweep", "plan", "s.yaml", "--trace", "trace", "--out", "o", "--shards", "2", "--fraction", "0.4"];
    let plan = String::from_utf8(run(folder.path(), &args, 0).stdout).unwrap();
    assert!(plan.contains("--trace trace --fraction 0.4 --out o --shard 1/2"), "{plan}");
    let replay =
        ["replay", "trace", "--policy", "snapkv", "--budget", "24", "--recent", "4", "--format", "csv"];
    let asked = run(folder.path(), &[&replay[..], &["--fraction", "0.4", "--out", "r"]].concat(), 0);
    let manifest = std::fs::read_to_string(folder.path().join("r/results.json")).unwrap();
    assert!(manifest.contains("source: {fraction: 0.4}") && !asked.stdout.is_empty(), "{manifest}");
}
