//! Against the RKSC authors' notebook: similarities, exits and skips.

use kvlab_sim::policy::exit::{ExitView, LayerFacts, Lens};
use kvlab_sim::policy::share::asks;
use kvlab_sim::policy::verify::cgee::{self, Lead};
use kvlab_sim::policy::{RawParams, registry};
use kvlab_sim::trace::Similarity;
use kvlab_sim::types::TokenId;
use serde_json::{Value, json};

fn golden(key: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/rksc/rksc.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    all[key].as_array().unwrap().clone()
}

fn reals(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// σ within 2e-6: the notebook sums in binary32.
#[test]
fn similarities_are_those_of_the_notebook() {
    let cases = golden("asks");
    assert_eq!(cases.len(), 12);
    for case in cases {
        let cosines: Vec<Similarity> = reals(&case["cosines"])
            .iter()
            .map(|&cos| Similarity { cos_last: cos as f32, cos_mean: 0.0 })
            .collect();
        let with = asks::Params { with_embedding: true, ..asks::Params::default() };
        for (params, key) in [(with, "sigma_with_embedding"), (asks::Params::default(), "sigma_layers")] {
            let (found, expected) = (params.sigma(&cosines).unwrap(), case[key].as_f64().unwrap());
            assert!((found - expected).abs() < 2e-6, "{key}: {found} {expected}");
        }
        assert_eq!(with.sigma(&cosines).unwrap() >= 0.75, case["shared_at_0.75"].as_bool().unwrap());
    }
}

fn facts(case: &Value) -> Vec<LayerFacts> {
    let (raw, normed) = (reals(&case["raw_entropy"]), reals(&case["entropy"]));
    raw.iter()
        .zip(&normed)
        .map(|(&raw, &normed)| LayerFacts {
            entropy_nats: normed as f32,
            raw_entropy_nats: Some(raw as f32),
            top1: TokenId::new(0),
            top1_prob: 0.5,
            top2_prob: None,
            cos_previous: None,
            js_previous_nats: None,
            p_yes: None,
            raw_p_yes: None,
        })
        .collect()
}

/// Zero-based exit layers. The hook records entropies from its minimum layer on, as we do; the analyzer compares with the layer before it too,
/// which is a minimum of one less.
#[test]
fn exits_are_those_of_both_implementations_in_the_notebook() {
    let (mut seen, mut layers) = (0, std::collections::BTreeSet::new());
    for case in golden("cgee") {
        let facts = facts(&case);
        for (key, min_layer) in [("hook", 2), ("analyzer", 1)] {
            for row in case[key].as_array().unwrap() {
                let row = reals(row);
                let given =
                    json!({ "theta": row[0], "epsilon": row[1], "min_layer": min_layer, "lens": "raw" });
                let entry = registry::find(registry::EXITS, "exit", "entropy").unwrap();
                let exit = (entry.build)(&RawParams::from_params(&given).unwrap()).unwrap();
                assert_eq!(exit.lens(), Lens::Raw);
                let run = exit.layers_run(&ExitView::of(&facts, 49_152));
                assert_eq!(run - 1, row[2] as u16, "{key} {row:?}");
                seen += 1;
                layers.insert(run);
            }
        }
    }
    assert_eq!(seen, 12 * 16);
    assert!(layers.len() > 3, "{layers:?}");
}

#[test]
fn skips_are_those_of_the_notebook() {
    let rule = cgee::Params::default();
    let mut seen = 0;
    for (key, decided) in [("verify_skip", "skip"), ("solve", "skipped")] {
        for case in golden(key) {
            let skips = rule.skips(Lead::of(&reals(&case["confidences"])));
            assert_eq!(skips, case[decided].as_bool().unwrap(), "{case}");
            seen += 1;
        }
    }
    assert_eq!(seen, 13);
}
