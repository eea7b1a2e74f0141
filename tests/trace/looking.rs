//! Looking at traces: facts against tensors, timelines, sizes, and slices that replay like the whole.

use super::support::{Folder, Recorded, SHAPE, end, generated, recorded_header, start};
use super::weights::{values, with_all_weights};
use kvlab_sim::observe::ChromeTrace;
use kvlab_sim::results::SourceInfo;
use kvlab_sim::run::{RunOptions, source_info, study, timeline};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Table;
use kvlab_sim::trace::edit::{Selection, Storage, slice};
use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::trace::{
    Depth, Dtype, Leftover, LensFact, LensPosition, RawLensFact, Trace, TraceSource, TraceWriter, Weight,
    statistics, summary, verify_to,
};
use kvlab_sim::types::{Pos, TokenId};
use serde_json::Value;
use std::collections::BTreeMap;

/// Entropy, log-sum-exp and the two largest logits of a state, in binary64 and straight from the definitions.
fn naive(state: &[f64]) -> (f64, f64, Vec<(TokenId, f32)>) {
    let unembedding = values(Weight::Unembedding);
    let logits: Vec<f64> = unembedding
        .chunks(3)
        .map(|row| row.iter().zip(state).map(|(u, h)| f64::from(*u) * h).sum())
        .collect();
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = logits.iter().map(|z| (z - most).exp()).sum();
    let logsumexp = most + total.ln();
    let entropy = logits.iter().map(|z| (z - logsumexp).exp() * (logsumexp - z)).sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let top = order[..2].iter().map(|&at| (TokenId::new(at as u32), logits[at] as f32)).collect();
    (entropy, logsumexp, top)
}

/// A trace whose lens facts are those of its hidden states and head, but for `edit`.
fn consistent(folder: &Folder, edit: impl Fn(&mut LensFact, u32, usize)) {
    let header = with_all_weights(recorded_header(Dtype::F32));
    let eps = header.weights.final_norm.as_ref().unwrap().eps;
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Refuse).unwrap();
    for weight in writer.missing_weights() {
        writer.put_weight(weight, &values(weight)).unwrap();
    }
    let gain = values(Weight::FinalNorm);
    let mut recorded = Recorded::new(9, 1);
    recorded.lens = (0..9)
        .map(|pos| {
            let fact = |layer: usize| {
                let raw: Vec<f64> = recorded.hidden[layer].row(pos).iter().map(|x| f64::from(*x)).collect();
                let scale = (raw.iter().map(|x| x * x).sum::<f64>() / 3.0 + eps).sqrt();
                let normed: Vec<f64> =
                    raw.iter().zip(&gain).map(|(x, g)| x / scale * f64::from(*g)).collect();
                let ((entropy, logsumexp, top), (raw_entropy, raw_logsumexp, _)) =
                    (naive(&normed), naive(&raw));
                let mut fact = LensFact {
                    entropy_nats: entropy as f32,
                    logsumexp: logsumexp as f32,
                    raw: Some(RawLensFact {
                        entropy_nats: raw_entropy as f32,
                        logsumexp: raw_logsumexp as f32,
                    }),
                    top,
                };
                edit(&mut fact, pos as u32, layer);
                fact
            };
            LensPosition { pos: Pos::new(pos as u32), layers: vec![fact(0), fact(1)] }
        })
        .collect();
    writer.begin_sequence(start(9)).unwrap();
    writer.push(&recorded.chunk(0..9)).unwrap();
    writer.end_sequence(end()).unwrap();
    writer.finish().unwrap();
}

#[test]
fn lens_facts_are_computed_again_from_hidden_states_and_the_head() {
    let folder = Folder::empty();
    consistent(&folder, |_, _, _| ());
    assert_eq!(verify_to(&folder.trace(), Depth::All).unwrap().lens_recomputed, 18);
    let sampled = verify_to(&folder.trace(), Depth::Sample).unwrap().lens_recomputed;
    assert!((16..=18).contains(&sampled), "{sampled}");
    // A number that nothing but the tensors can contradict.
    fn of_raw_states(fact: &mut LensFact, pos: u32, layer: usize) {
        if (pos, layer) == (7, 1) {
            fact.raw.iter_mut().for_each(|raw| raw.entropy_nats = (raw.entropy_nats - 0.5).abs());
        }
    }
    fn shifted(fact: &mut LensFact, pos: u32, layer: usize) {
        if (pos, layer) == (3, 0) {
            fact.logsumexp += 0.25;
            fact.top.iter_mut().for_each(|top| top.1 += 0.25);
        }
    }
    fn of_another_token(fact: &mut LensFact, pos: u32, layer: usize) {
        if (pos, layer) == (5, 1)
            && let Some(last) = fact.top.len().checked_sub(1)
        {
            let free = (0..).map(TokenId::new).find(|id| fact.top.iter().all(|(token, _)| token != id));
            fact.top[last].0 = free.unwrap();
        }
    }
    for (words, edit) in [
        ("sequence 0, position 5, layer 1, rank", of_another_token as fn(&mut LensFact, u32, usize)),
        ("raw_entropy_nats, sequence 0, position 7, layer 1", of_raw_states),
        ("logsumexp, sequence 0, position 3, layer 0", shifted),
    ] {
        let folder = Folder::empty();
        consistent(&folder, edit);
        let error = verify_to(&folder.trace(), Depth::All).unwrap_err();
        assert!(error.to_string().contains(words), "`{words}` is not in: {error}");
    }
    // A trace without hidden states has nothing to compare.
    assert_eq!(verify_to(&Folder::with_trace().trace(), Depth::All).unwrap().lens_recomputed, 0);
}

const SCENARIO: &str = "id: a\nwhy: b\nseeds: [0, 1]\neviction:\n  budgets: [32]\n  recent: 8\n  policies:\n    - use: snapkv\n    - use: vase-attnv\nexit: {theta: [0.5, 2], epsilon: 1}\n";

fn source() -> Synthetic {
    let lengths = vec![SynthLength { prompt_len: 20, len: 70 }, SynthLength { prompt_len: 30, len: 90 }];
    Synthetic::build("sinks-and-hitters", SynthSpec { shape: SHAPE, lengths, seed: 2 }).unwrap()
}

#[test]
fn a_timeline_is_a_chrome_trace_with_matching_ends_and_the_memory_of_the_run() {
    let source = source();
    let scenario = Scenario::parse(SCENARIO, "s").unwrap();
    let plan = scenario.plan(SHAPE.vocab);
    let mut observer = ChromeTrace::new(Vec::new(), "a \"title\"");
    timeline(&source, None, scenario.eviction.as_ref().unwrap(), &plan.eviction[0], &mut observer).unwrap();
    let document: Value = serde_json::from_slice(&observer.finish().unwrap()).unwrap();
    assert_eq!(document["otherData"]["title"], "a \"title\"");
    let events = document["traceEvents"].as_array().unwrap();
    let mut open: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    let (mut last, mut evictions, mut passes, mut most) = (0.0, 0, 0, 0);
    for event in events.iter().filter(|event| event["ph"] != "M") {
        let (ts, key) =
            (event["ts"].as_f64().unwrap(), (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap()));
        // A complete event is written when it ends.
        let end = ts + event["dur"].as_f64().unwrap_or(0.0);
        assert!(end >= last - 1e-9, "{event} after {last}");
        last = end;
        match event["ph"].as_str().unwrap() {
            "B" => assert!(open.insert(key, ts).is_none(), "{event}"),
            "E" => assert!(open.remove(&key).unwrap() <= ts),
            "X" => {
                passes += 1;
                assert!(open[&key] <= ts, "{event} begins before its branch");
            }
            "i" => {
                evictions += 1;
                assert!(open.contains_key(&key));
            }
            "C" => most = most.max(event["args"]["live entries"].as_u64().unwrap_or(0)),
            other => panic!("{other}"),
        }
    }
    assert!(open.is_empty() && evictions > 0 && passes > 100, "{open:?} {evictions} {passes}");
    // Nothing is held at the end, and one layer and head of the longer sequence is held at least.
    let counters: Vec<u64> = events
        .iter()
        .filter(|event| event["ph"] == "C" && event["name"] == "KV memory")
        .map(|event| event["args"]["live entries"].as_u64().unwrap())
        .collect();
    assert_eq!(counters.last(), Some(&0));
    assert!(most >= 32 * 2);
}

/// The rows of a study that belong to one trace, without what names the trace and how many sequences it has.
fn rows(trace: &Trace) -> Table {
    let info: SourceInfo = source_info(trace, "model", "cpu");
    let options = RunOptions { threads: 1, command: String::new(), progress: &|_, _| () };
    let results = study(&Scenario::parse(SCENARIO, "s").unwrap(), trace, info, &options).unwrap();
    let mut rows = Table::new();
    for (name, column) in results.cells.names().iter().zip(results.cells.columns()) {
        if !["cell", "source", "log_digest"].contains(&name.as_str()) {
            rows.push(name, column.clone()).unwrap();
        }
    }
    rows
}

#[test]
fn a_slice_replays_like_its_sequences_in_the_whole() {
    let folder = Folder::empty();
    source().write(&folder.trace(), Dtype::F32, 2, 16, Leftover::Refuse).unwrap();
    let whole = Trace::open(&folder.trace()).unwrap();
    let sliced = |seq: u32| {
        let target = folder.trace().with_file_name(format!("slice{seq}"));
        let selection = Selection { sequences: Some(vec![seq]), ..Selection::default() };
        slice(&whole, &selection, Storage { dtype: None, shard_tokens: Some(7) }, &target, "test").unwrap();
        Trace::open(&target).unwrap()
    };
    // The whole with only its first sequence read, and the slice that has nothing else.
    let limited = SCENARIO.replace("seeds", "source: {limit: 1}\nseeds");
    let info = source_info(&whole, "model", "cpu");
    let options = RunOptions { threads: 2, command: String::new(), progress: &|_, _| () };
    let first = study(&Scenario::parse(&limited, "s").unwrap(), &whole, info, &options).unwrap();
    let slice0 = rows(&sliced(0));
    for (name, column) in slice0.names().iter().zip(slice0.columns()) {
        assert_eq!(Some(column), first.cells.column(name), "{name}");
    }
    // Decisions of sequence 1 do not depend on its place, but for draws, which are keyed by it.
    let (second, other) = (rows(&sliced(1)), rows(&whole));
    let policies = second.text("policy").unwrap();
    assert!(policies.iter().flatten().any(|policy| policy == "snapkv"));
    let count = |table: &Table| table.real("evictions").unwrap().iter().flatten().sum::<f64>();
    assert!(count(&second) > 0.0 && (count(&slice0) + count(&second) - count(&other)).abs() < 1e-9);
}

#[test]
fn sizes_add_up_and_studies_say_what_is_missing() {
    let folder = Folder::with_trace();
    let trace = Trace::open(&folder.trace()).unwrap();
    let found = summary(&trace).unwrap();
    // Ten tokens, two layers, four heads of four channels of four bytes, q, k and v.
    let size = |name: &str| found.fields.iter().find(|field| field.name == name).unwrap().bytes;
    assert_eq!((size("q"), size("k"), size("v")), (10 * 2 * 2 * 4 * 4, 10 * 2 * 4 * 4, 10 * 2 * 4 * 4));
    assert!(size("tokens.token") > 0 && found.fields[0].name == "q");
    let missing =
        |study: &str| found.studies.iter().find(|known| known.study == study).unwrap().missing.clone();
    assert!(missing("eviction").is_empty() && missing("layer exit by entropy").is_empty());
    assert_eq!(missing("eviction by what a value does to the residual stream"), ["weights.w_o"]);
    assert_eq!(missing("eviction by keys or queries before rotation"), ["rope.inv_freq"]);
    assert_eq!(missing("verify skip"), ["branches.depth"]);
    let numbers = statistics(&trace, "v").unwrap();
    assert_eq!((numbers.len(), numbers[1].layer, numbers[1].count), (2, Some(1), 40));
    let v =
        generated().layer(kvlab_sim::types::SeqIdx::new(0), kvlab_sim::types::LayerIdx::new(1)).unwrap().v;
    assert!(v.iter().all(|value| f64::from(*value) <= numbers[1].max.unwrap()));
    let prompt = statistics(&trace, "tokens.is_prompt").unwrap();
    // Three of nine, and one of one.
    assert_eq!((prompt[0].count, prompt[0].mean), (10, Some(0.4)));
    let error = statistics(&trace, "hidden").unwrap_err();
    assert!(error.to_string().starts_with("the trace holds no `hidden`; it holds: "), "{error}");
}
