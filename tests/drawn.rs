//! Tables and series that are there to be drawn: which tokens are held and why, where a problem's time went, how similar wordings are.

use crate::support::synth;
use kvlab_sim::ledger::KeptSet;
use kvlab_sim::metrics::metric;
use kvlab_sim::policy::compose::{Knobs, Reason};
use kvlab_sim::policy::{RawParams, registry};
use kvlab_sim::replay::{EvictionCell, LayerModel, Settings, replay_layer, retained};
use kvlab_sim::results::Results;
use kvlab_sim::run::{RunError, RunOptions, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::{Table, Value};
use kvlab_sim::trace::TraceSource;
use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};
use kvlab_sim::types::LayerIdx;

fn run(source: &dyn TraceSource, text: &str) -> Result<Results, RunError> {
    let scenario = Scenario::parse(text, "test").unwrap();
    let options = RunOptions { threads: 2, command: "test".to_owned(), progress: &|_, _| {} };
    study(&scenario, source, source_info(source, "none", ""), &options)
}

fn text(table: &Table, name: &str, row: usize) -> String {
    table.text(name).unwrap()[row].as_deref().unwrap_or_default().to_owned()
}

fn int(table: &Table, name: &str, row: usize) -> i64 {
    table.int(name).unwrap()[row].unwrap()
}

fn real(table: &Table, name: &str, row: usize) -> f64 {
    table.real(name).unwrap()[row].unwrap()
}

/// The decisions that the map of reasons is drawn from are those of the replay, for every composition that runs on this trace.
#[test]
fn reasons_are_given_for_the_very_sets_that_the_replay_keeps() {
    let trace = synth::fixed();
    let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
    let mut compared = 0;
    for entry in registry::COMPOSITIONS {
        let Ok(stack) = entry.stack(&knobs, &RawParams::default()) else { continue };
        for meta in trace.sequences() {
            let layer = LayerIdx::new(1);
            let tensors = trace.layer(meta.seq, layer).unwrap();
            let cell = EvictionCell { stack: &stack, seed: 3 };
            let settings = Settings::default();
            let Ok(outcomes) = replay_layer(trace.shape(), meta, layer, &tensors, &[cell], settings) else {
                continue;
            };
            let model = LayerModel::default();
            let found = retained(trace.shape(), meta, layer, &tensors, &model, cell).unwrap();
            let sets: Vec<(u32, Vec<KeptSet>)> = found
                .iter()
                .map(|(seen, heads)| (*seen, heads.iter().map(|e| KeptSet::of(&e.kept)).collect()))
                .collect();
            let expected: Vec<(u32, Vec<KeptSet>)> =
                outcomes[0].evictions.iter().map(|e| (e.seen, e.heads.clone())).collect();
            assert_eq!(sets, expected, "{}", stack.label());
            compared += sets.len();
            for eviction in found.iter().flat_map(|(_, heads)| heads) {
                assert_eq!(eviction.kept.len(), eviction.reasons.len(), "{}", stack.label());
            }
        }
    }
    assert!(compared > 100, "only {compared} evictions were compared");
}

#[test]
fn a_reason_is_named_after_what_decided() {
    let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
    let word = |id: &str, reason| {
        registry::composition(id).unwrap().stack(&knobs, &RawParams::default()).unwrap().reason_word(reason)
    };
    assert_eq!(word("vase-attnv", Reason::Reserved), "value");
    assert_eq!(word("vase-attnv", Reason::Selected), "sampled");
    assert_eq!(word("snapkv", Reason::Selected), "score");
    assert_eq!(word("snapkv", Reason::Recent), "recent");
}

const RETAINED: &str = "
id: retained
why: What is held, and why?
seeds: [0]
eviction:
  budgets: [16]
  recent: 4
  sinks: 2
  retained: {sequence: 1, layer: 1, kv_head: 0}
  policies: [{use: full}, {use: snapkv}, {use: vase-attnv}]
";

/// After an eviction a head holds its budget of 16 tokens: the first two are sinks where there are any, the last four recent.
#[test]
fn the_table_of_held_tokens_adds_up_to_the_budget() {
    let results = run(&synth::fixed(), RETAINED).unwrap();
    let table = results.more("retained").unwrap();
    let cells: Vec<String> = (0..table.rows()).map(|row| text(table, "cell", row)).collect();
    let mut held: std::collections::BTreeMap<(String, i64), i64> = Default::default();
    for (row, cell) in cells.iter().enumerate() {
        let (seen, from, upto) = (int(table, "seen", row), int(table, "from", row), int(table, "upto", row));
        let reason = text(table, "reason", row);
        *held.entry((cell.clone(), seen)).or_default() += upto - from + 1;
        match reason.as_str() {
            "sink" => assert!(upto < 2),
            "recent" => assert!(from >= seen - 4 && upto == seen - 1),
            "value" | "sampled" => assert!(from >= 2 && upto < seen - 4),
            // SnapKV protects no sinks.
            "score" => assert!(upto < seen - 4),
            other => panic!("{other}"),
        }
    }
    assert!(held.len() > 4 && held.values().all(|tokens| *tokens == 16), "{held:?}");
    let full = (0..results.cells.rows()).find(|&row| text(&results.cells, "policy", row) == "full").unwrap();
    assert!(!cells.contains(&text(&results.cells, "cell", full)), "the full cache decides nothing");
}

#[test]
fn a_head_that_is_not_there_is_refused_with_those_that_are() {
    for (key, wrong) in
        [("layer: 1", "layer: 7"), ("kv_head: 0", "kv_head: 9"), ("sequence: 1", "sequence: 99")]
    {
        let error = run(&synth::fixed(), &RETAINED.replace(key, wrong)).unwrap_err().to_string();
        let (name, found) = wrong.split_once(": ").unwrap();
        assert!(error.contains(&format!("eviction.retained.{name} is {found}")), "{error}");
        assert!(error.contains("accepted: 0 to "), "{error}");
    }
}

/// Without the key, the ids of cells are those of studies from before it existed, and there is no table.
#[test]
fn held_tokens_are_written_on_request_only() {
    let with = run(&synth::fixed(), RETAINED).unwrap();
    let line = "  retained: {sequence: 1, layer: 1, kv_head: 0}\n";
    let without = run(&synth::fixed(), &RETAINED.replace(line, "")).unwrap();
    assert!(without.more("retained").is_none());
    assert_ne!(text(&with.cells, "cell", 1), text(&without.cells, "cell", 1));
    assert_eq!(with.cells.real("attn_mass_recall").unwrap(), without.cells.real("attn_mass_recall").unwrap());
}

/// All KV heads have equally many query heads, so the mean over heads and layers is the recall of the cell, sequences weighed by steps.
#[test]
fn the_recall_of_heads_has_the_recall_of_the_cell_as_its_mean() {
    let text_of = RETAINED.replace("why:", "source: {limit: 1}\nwhy:").replace("sequence: 1", "sequence: 0");
    let results = run(&synth::fixed(), &text_of).unwrap();
    let shape = *synth::fixed().shape();
    for row in 0..results.cells.rows() {
        let cell = text(&results.cells, "cell", row);
        let series = &results.series;
        let of_heads: Vec<f64> = (0..series.rows())
            .filter(|&at| {
                text(series, "cell", at) == cell && text(series, "metric", at) == "head_mass_recall"
            })
            .map(|at| real(series, "value", at))
            .collect();
        assert_eq!(of_heads.len(), usize::from(shape.layers) * usize::from(shape.kv_heads));
        let mean = of_heads.iter().sum::<f64>() / of_heads.len() as f64;
        let recall = real(&results.cells, "attn_mass_recall", row);
        assert!((mean - recall).abs() < 1e-9, "{mean} {recall}");
    }
}

const SERVE: &str = "
id: phases
why: Where does the time go?
serve:
  cost: {kind: unit}
  problems: {count: 5, root_tokens: [20, 30], suffix_tokens: 5, branches: 3, generated_tokens: 4, verify_tokens: 10}
  arrivals: {kind: poisson, per_second: 20000, seed: 1}
  baseline: plain
  arms: [{label: plain}, {label: shared, reuse: 1}]
";

#[test]
fn phases_of_a_problem_add_up_to_its_latency() {
    let results = run(&synth::fixed(), SERVE).unwrap();
    let table = results.more("phases").unwrap();
    for row in 0..results.cells.rows() {
        let cell = text(&results.cells, "cell", row);
        let of_cell: Vec<usize> = (0..table.rows()).filter(|&at| text(table, "cell", at) == cell).collect();
        let sum = |name: &str| of_cell.iter().map(|&at| real(table, name, at)).sum::<f64>();
        let all: f64 =
            ["waiting_ms", "gate_ms", "prefill_ms", "decode_ms", "verify_ms"].map(sum).iter().sum();
        let latency = real(&results.cells, "serve_latency_ms", row) * of_cell.len() as f64;
        assert!((all - latency).abs() < 1e-9, "{all} {latency}");
        assert!(sum("prefill_ms") > 0.0 && sum("decode_ms") > 0.0 && sum("verify_ms") > 0.0);
    }
}

const TREES: &str = "
id: wordings
why: How similar are wordings?
trees:
  stacks:
    - label: full
    - label: gated
      share: {kind: asks, params: {tau: 0.85}}
      exit: {kind: entropy, params: {min_layer: 1}}
";

#[test]
fn similarities_are_told_by_level_for_stacks_with_a_gate() {
    let params = BranchParams { problems: 8, branches: 6, generated: 5, ..BranchParams::default() };
    let source = SyntheticBranches::build(*synth::fixed().shape(), 3, params).unwrap();
    let results = run(&source, TREES).unwrap();
    let table = results.more("wordings").unwrap();
    let mut sharing = 0;
    for row in 0..table.rows() {
        assert_eq!(text(table, "stack", row), "gated");
        let order = ["sigma_min", "sigma_p10", "sigma_p50", "sigma_p90", "sigma_max"]
            .map(|name| real(table, name, row));
        assert!(order.windows(2).all(|pair| pair[0] <= pair[1]), "{order:?}");
        assert!(int(table, "changed_answers", row) <= int(table, "both_answers", row));
        sharing += int(table, "sharing", row);
    }
    assert!(table.rows() > 1, "several levels");
    let gated =
        (0..results.cells.rows()).find(|&row| text(&results.cells, "policy", row) == "gated").unwrap();
    assert_eq!(results.cells.value("share_rate_num", gated), Value::Int(sharing), "the gate shares these");
}

#[test]
fn the_map_of_entropies_has_every_layer_at_every_position() {
    let trace = synth::fixed();
    let study =
        "id: map\nwhy: Where is it sure?\nexit: {lens: [final-norm], theta: 1, epsilon: 1, min_layer: 0}\n";
    let results = run(&trace, study).unwrap();
    let series = &results.series;
    let rows: Vec<usize> =
        (0..series.rows()).filter(|&row| text(series, "metric", row) == "token_entropy_nats").collect();
    let first = &trace.sequences()[0];
    let decode = first.len - first.prompt_len + 1;
    assert_eq!(rows.len(), usize::from(trace.shape().layers) * decode as usize);
    let lens = trace.lens(first.seq).unwrap();
    let row = rows[3];
    let (layer, x) = (int(series, "layer", row), real(series, "x", row));
    let fact = lens
        .iter()
        .find(|fact| i64::from(fact.layer.get()) == layer && (f64::from(fact.pos.get()) - x).abs() < 0.5)
        .unwrap();
    assert!((real(series, "value", row) - f64::from(fact.entropy_nats)).abs() < 1e-12);
    assert!(metric("token_entropy_nats").is_some());
}
