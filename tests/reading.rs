//! Studies with selections, stores and the model's head: what the rows say.

use crate::support::synth;
use kvlab_sim::results::Results;
use kvlab_sim::run::{RunOptions, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::synth::Synthetic;
use kvlab_sim::trace::{LayerTensors, LensRow, SequenceMeta, TraceError, TraceSource};
use kvlab_sim::types::{LayerIdx, ModelShape, SeqIdx};
use ndarray::{Array2, Array3};

const STUDY: &str = "
id: reading
why: What is read and held?
eviction:
  budgets: [24]
  recent: 4
  sinks: 2
  output_error_every: 4
  policies:
    - use: full
    - use: streaming-llm
    - {use: quest, with: {page: 4, least_pages: 1, dense_layers: 0}}
    - use: kv-int4
    - use: kv-mixed
    - {use: snapkv, label: snapkv in 8 bits, store: {kind: per-token-int, params: {bits: 8}}}
    - {use: snapkv, label: snapkv by blocks, granularity: 'block:4'}
";

/// A generated trace with an output matrix and a head made of simple numbers.
struct WithHead {
    inner: Synthetic,
    hides: bool,
}

fn wave(seed: usize, scale: f32) -> f32 {
    f32::from(u8::try_from((seed * 37 + 11) % 29).unwrap()) / 29.0 * scale - scale / 2.0
}

impl TraceSource for WithHead {
    fn name(&self) -> &str {
        "with-head"
    }
    fn digest(&self) -> String {
        self.inner.digest()
    }
    fn is_synthetic(&self) -> bool {
        true
    }
    fn shape(&self) -> &ModelShape {
        self.inner.shape()
    }
    fn sequences(&self) -> &[SequenceMeta] {
        self.inner.sequences()
    }
    fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        self.inner.layer(seq, layer)
    }
    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        self.inner.lens(seq)
    }
    fn w_o(&self, layer: LayerIdx) -> Result<Array3<f32>, TraceError> {
        let mut at = layer.idx() * 1000;
        Ok(Array3::from_shape_simple_fn((16, 4, 8), || {
            at += 1;
            wave(at, 0.4)
        }))
    }
    fn final_norm(&self) -> Result<Vec<f32>, TraceError> {
        Ok((0..16).map(|i| 1.0 + wave(i, 0.2)).collect())
    }
    fn final_norm_eps(&self) -> Option<f64> {
        Some(1e-5)
    }
    fn last_hidden(&self, seq: SeqIdx) -> Result<Array2<f32>, TraceError> {
        if self.hides {
            return Err(TraceError::MissingField { field: "hidden", held: Vec::new() });
        }
        let len = self.inner.sequences()[seq.idx()].len as usize;
        Ok(Array2::from_shape_fn((len, 16), |(pos, channel)| wave(pos * 16 + channel, 2.0)))
    }
    fn unembedding(&self) -> Result<Array2<f32>, TraceError> {
        Ok(Array2::from_shape_fn((50, 16), |(token, channel)| wave(token * 7 + channel * 3, 1.0)))
    }
}

fn run(source: &dyn TraceSource, text: &str) -> Results {
    let scenario = Scenario::parse(text, "test").unwrap();
    let options = RunOptions { threads: 2, command: "test".to_owned(), progress: &|_, _| {} };
    study(&scenario, source, source_info(source, "none", ""), &options).unwrap()
}

fn row(results: &Results, policy: &str) -> usize {
    (0..results.cells.rows())
        .find(|&row| results.cells.value("policy", row) == Value::Text(policy.to_owned()))
        .unwrap()
}

fn real(results: &Results, column: &str, policy: &str) -> f64 {
    let row = row(results, policy);
    assert_eq!(
        results.cells.value("status", row),
        Value::Text("ok".to_owned()),
        "{policy}: {:?}",
        results.cells.value("error", row)
    );
    match results.cells.value(column, row) {
        Value::Real(number) => number,
        other => panic!("{column} of {policy} is {other:?}"),
    }
}

#[test]
fn rows_say_what_is_read_and_held_in_which_representation() {
    let results = run(&synth::fixed(), STUDY);
    let of = |column: &str, policy: &str| real(&results, column, policy);
    // Sequences of 12 + 58, 5 + 59 and 30 + 11 tokens: the mean of the lengths at their decode steps, then over sequences.
    let mean = |from: u32, to: u32| f64::from((from + 1..=to).sum::<u32>()) / f64::from(to - from);
    let attended = (mean(12, 70) + mean(5, 64) + mean(30, 41)) / 3.0;
    assert!((of("attended_tokens", "full") - attended).abs() < 1e-9);
    assert!((of("attended_tokens", "kv-int4") - attended).abs() < 1e-9);
    assert!(of("attended_tokens", "quest") <= 24.0 && of("attended_tokens", "quest") > 15.0);
    // 70 tokens, two layers, two KV heads, a key and a value of 8 channels of two bytes; 4 bits and two half floats a vector.
    let exact = f64::from(70 * 2 * 2 * 2 * 8 * 2);
    assert!((of("peak_stored_kv_bytes", "full") - exact).abs() < 1e-9);
    assert!((of("peak_stored_kv_bytes", "kv-int4") - exact / 16.0 * 8.0).abs() < 1e-9);
    // Two keys for each of 18 pages of four.
    assert!(
        (of("peak_stored_kv_bytes", "quest") - exact * (1.0 + 18.0 / 70.0)).abs() < 1e-9,
        "memory does not shrink"
    );
    assert!(of("read_kv_bytes_per_step", "quest") < of("read_kv_bytes_per_step", "full"));
    assert!((of("read_kv_bytes_per_step", "full") - attended * 2.0 * 2.0 * 2.0 * 8.0 * 2.0).abs() < 1e-6);
    assert!(of("value_reconstruction_error", "kv-mixed") < of("value_reconstruction_error", "kv-int4"));
    assert!(of("key_reconstruction_error", "snapkv in 8 bits") < of("key_reconstruction_error", "kv-int4"));
    assert!(of("peak_stored_kv_bytes", "snapkv in 8 bits") < of("peak_stored_kv_bytes", "kv-int4"));
    assert!(of("blocks_held_in_place", "snapkv by blocks") < of("blocks_held_in_place", "full"));
    let text = |column: &str, policy: &str| results.cells.value(column, row(&results, policy));
    assert_eq!(text("attend", "quest"), Value::Text("quest".to_owned()));
    assert_eq!(text("store", "snapkv in 8 bits"), Value::Text("per-token-int".to_owned()));
    assert_eq!(text("granularity", "snapkv by blocks"), Value::Text("block:4".to_owned()));
    assert_eq!((text("attend", "full"), text("store", "full")), (Value::Absent, Value::Absent));
    assert_eq!(text("key_reconstruction_error", "full"), Value::Absent);
    assert_eq!(text("budget_tokens", "kv-int4"), Value::Absent, "a budget makes no difference");
    assert_eq!(text("budget_tokens", "quest"), Value::Int(24));
    // Evicted tokens are gone; those selected from are all there.
    assert!((of("mean_keep_ratio", "quest") - 1.0).abs() < 1e-12);
    // VaSE's study: a point a layer, and wide values lose more.
    let Value::Text(cell) = text("cell", "kv-int4") else { panic!("no id") };
    let points: Vec<f64> = (0..results.series.rows())
        .filter(|&at| results.series.value("cell", at) == Value::Text(cell.clone()))
        .filter(|&at| results.series.value("metric", at) == Value::Text("range_error_correlation".to_owned()))
        .map(|at| match results.series.value("value", at) {
            Value::Real(value) => value,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(points.len(), 2);
    assert!(points.iter().all(|r| *r > 0.0 && *r <= 1.0), "{points:?}");
}

#[test]
fn the_direct_path_to_the_next_token_is_followed_where_the_trace_has_it() {
    let source = WithHead { inner: synth::fixed(), hides: false };
    let results = run(&source, STUDY);
    let of = |column: &str, policy: &str| real(&results, column, policy);
    assert!(of("direct_next_token_kl", "full").abs() < 1e-300);
    assert!((of("direct_top1_agreement", "full") - 1.0).abs() < 1e-12);
    assert!(of("direct_next_token_kl", "streaming-llm") > 0.0);
    assert!(of("direct_next_token_kl", "kv-int4") > 0.0);
    // Usual steps: multiples of 32, so 0 and 32 of 58 and 59 steps, and 0 of 11.
    let den = results.cells.value("direct_top1_agreement_den", row(&results, "full"));
    assert_eq!(den, Value::Int(5));
    assert!(
        of("projected_output_error_rms", "streaming-llm") >= of("projected_output_error", "streaming-llm")
    );
    let every = STUDY.replace("  policies", "  next_token_every: 8\n  policies");
    let den = |results: &Results| results.cells.value("direct_top1_agreement_den", row(results, "quest"));
    assert_eq!(den(&run(&source, &every)), Value::Int(8 + 8 + 2));
    let never = run(&source, &STUDY.replace("  policies", "  next_token_every: 0\n  policies"));
    assert_eq!(den(&never), Value::Absent);
    // Asked for by number it must be there; left to the trace it may be missing.
    let hidden = WithHead { inner: synth::fixed(), hides: true };
    assert_eq!(den(&run(&hidden, STUDY)), Value::Absent);
    let scenario = Scenario::parse(&every, "test").unwrap();
    let options = RunOptions { threads: 1, command: "test".to_owned(), progress: &|_, _| {} };
    let error =
        study(&scenario, &hidden, source_info(&hidden, "none", ""), &options).unwrap_err().to_string();
    assert!(error.contains("hidden"), "{error}");
}
