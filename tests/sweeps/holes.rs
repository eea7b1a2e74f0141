//! Keys and values that layer exits leave out: counted as one would count them by hand, and dealt with in four ways.

use super::lint::deep;
use super::options;
use kvlab_sim::policy::RawParams;
use kvlab_sim::policy::registry;
use kvlab_sim::replay::{lens_decode_rows, replay_exit};
use kvlab_sim::results::Results;
use kvlab_sim::run::{source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::synth::Synthetic;
use kvlab_sim::trace::{LayerTensors, LensRow, SequenceMeta, TraceError, TraceSource};
use kvlab_sim::types::{LayerIdx, ModelShape, SeqIdx};
use serde_json::json;

const LAYERS: usize = 6;

/// A trace whose positions turn sure after different layers: 3 nats before, 1 from there on.
struct Uneven(Synthetic);

impl TraceSource for Uneven {
    fn name(&self) -> &str {
        "uneven"
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
        self.0.layer(seq, layer)
    }
    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        let mut rows = self.0.lens(seq)?;
        for row in &mut rows {
            let sure_from = row.pos.get() * 7 % 5;
            row.entropy_nats = if u32::from(row.layer.get()) < sure_from { 3.0 } else { 1.0 };
        }
        Ok(rows)
    }
}

fn run(theta: f64, policy: &str) -> Results {
    let text = format!(
        "{{id: holes, why: What is missing?, exit: {{theta: {theta}, epsilon: 4, min_layer: 0{policy}}}}}"
    );
    let source = Uneven(deep());
    let scenario = Scenario::parse(&text, "test").unwrap();
    study(&scenario, &source, source_info(&source, "none", ""), &options(1)).unwrap()
}

fn real(results: &Results, column: &str) -> f64 {
    match results.cells.value(column, 0) {
        Value::Real(value) => value,
        other => panic!("{column}: {other:?}"),
    }
}

fn text(results: &Results, column: &str) -> String {
    match results.cells.value(column, 0) {
        Value::Text(value) => value,
        _ => String::new(),
    }
}

/// (positions with something missing, pairs of a position and a layer missing, pairs left out), by looking at every later position of the sequence.
fn by_hand(theta: f64) -> (usize, usize, usize) {
    let source = Uneven(deep());
    let given = json!({ "theta": theta, "epsilon": 4.0, "min_layer": 0 });
    let entry = registry::find(registry::EXITS, "exit", "entropy").unwrap();
    let exit = (entry.build)(&RawParams::from_params(&given).unwrap()).unwrap();
    let (mut tokens, mut missing, mut skipped) = (0, 0, 0);
    for meta in source.sequences() {
        let rows = lens_decode_rows(source.lens(meta.seq).unwrap(), meta);
        let runs = replay_exit(exit.as_ref(), &rows, 6, source.shape().vocab).layers_run;
        for (at, &run) in runs.iter().enumerate() {
            let is_missing = |layer: &usize| runs[at + 1..].iter().any(|&later| usize::from(later) > *layer);
            let here = (usize::from(run)..LAYERS).filter(is_missing).count();
            tokens += usize::from(here > 0);
            missing += here;
            skipped += LAYERS - usize::from(run);
        }
    }
    (tokens, missing, skipped)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts as numbers")]
#[test]
fn four_ways_with_holes_cost_what_they_do() {
    let theta = 2.5;
    let (tokens, missing, skipped) = by_hand(theta);
    assert!(tokens > 0 && missing > tokens && skipped > missing, "{tokens} {missing} {skipped}");
    // A layer's keys and values of one token: two KV heads of 8 channels, keys and values, two bytes each.
    let pair = 2 * 8 * 2 * 2;
    for (policy, passes, projections) in [
        ("", 0, 0),
        (", hole_policy: verify-only", 0, 0),
        (", hole_policy: copy-state", 0, skipped),
        (", hole_policy: recompute", missing, 0),
    ] {
        let results = run(theta, policy);
        let count = |column: &str| real(&results, column) as usize;
        assert_eq!((count("kv_hole_tokens"), count("kv_hole_bytes")), (tokens, missing * pair), "{policy}");
        assert_eq!(results.cells.value("kv_hole_rate_num", 0), Value::Int(i64::try_from(missing).unwrap()));
        assert_eq!(
            (count("hole_layer_passes"), count("hole_projections")),
            (passes, projections),
            "{policy}"
        );
        assert_eq!(count("hole_filled_bytes"), (passes + projections) * pair, "{policy}");
        assert_eq!(text(&results, "lint").contains("copy-state: "), policy.contains("copy-state"));
    }
    // What is the default changes no cell, and what is not makes another one.
    let cell = |policy: &str| text(&run(theta, policy), "cell");
    assert_eq!(cell(""), cell(", hole_policy: verify-only"));
    assert_ne!(cell(""), cell(", hole_policy: recompute"));
}

#[test]
fn exits_that_must_leave_no_holes_are_refused_with_the_numbers() {
    let (tokens, missing, _) = by_hand(2.5);
    let refused = run(2.5, ", hole_policy: forbid");
    assert_eq!(text(&refused, "status"), "skipped");
    let error = text(&refused, "error");
    assert!(
        error.contains(&format!("leave {missing} pairs")) && error.contains(&format!("of {tokens} tokens")),
        "{error}"
    );
    assert!(error.contains("verify-only, copy-state or recompute"), "{error}");
    // Nothing exits at 0: nothing is missing, and nothing is refused.
    assert_eq!(text(&run(0.0, ", hole_policy: forbid"), "status"), "ok");
    let error =
        Scenario::parse("{id: a, why: b, exit: {theta: 1, epsilon: 1, hole_policy: fill}}", "s").unwrap_err();
    assert!(error.to_string().contains("unknown variant `fill`"), "{error}");
}
