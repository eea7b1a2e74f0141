//! Laws of the branch families: registered means tested.

use super::{VOCAB, some_trees};
use kvlab_sim::policy::exit::{ExitView, LayerFacts};
use kvlab_sim::policy::share::ShareView;
use kvlab_sim::policy::verify::VerifyView;
use kvlab_sim::policy::winner::Candidate;
use kvlab_sim::policy::{Needs, Randomness, RawParams, registry};
use kvlab_sim::trace::{Outcome, Prefix};
use kvlab_sim::types::TokenId;
use proptest::prelude::*;
use serde_json::json;

fn plain() -> RawParams {
    RawParams::default()
}

/// Whoever shares the root's prefix reuses it whole; whoever keeps its own reuses no more than is equal and leaves a token to compute.
#[test]
fn what_is_reused_is_there() {
    for seed in 0..6 {
        for facts in some_trees(seed) {
            for entry in registry::SHARES {
                let share = (entry.build)(&plain()).unwrap();
                for &branch in &facts.leaves {
                    let view = ShareView { problem: &facts.problem, branch, layers: 7 };
                    let sharing = share.decide(&view).unwrap();
                    assert_eq!(sharing, share.decide(&view).unwrap());
                    let (branches, mine) = (&facts.problem.branches, &facts.problem.branches[branch]);
                    match sharing.prefix {
                        Prefix::Root => assert_eq!(sharing.reused_tokens, branches[0].prefix_len),
                        Prefix::Own => {
                            let reused = sharing.reused_tokens as usize;
                            assert!(reused < mine.tokens.len(), "{}", entry.spec.id);
                            let is_there = |other: &&kvlab_sim::trace::Branch| {
                                other.tokens.get(..reused) == Some(&mine.tokens[..reused])
                            };
                            assert!(
                                branches[..branch].iter().any(|other| is_there(&other)),
                                "{}",
                                entry.spec.id
                            );
                        }
                    }
                    assert!(share.gate_layers(7) <= 7);
                    let has_gate = entry.spec.needs.similarity;
                    assert_eq!(share.gate_layers(7) > 0, has_gate, "{}", entry.spec.id);
                }
            }
        }
    }
}

/// Exact caches only help: a root-only cache reuses no more than the root's prefix, blocks no more than tokens.
#[test]
fn a_radix_tree_reuses_at_least_what_full_blocks_do() {
    for facts in some_trees(1) {
        for against in ["root", "earlier"] {
            let build = |id: &str| {
                let raw = RawParams::from_params(&json!({ "against": against })).unwrap();
                (registry::find(registry::SHARES, "share", id).unwrap().build)(&raw).unwrap()
            };
            let (blocks, tokens) = (build("exact-prefix"), build("radix"));
            for &branch in &facts.leaves {
                let view = ShareView { problem: &facts.problem, branch, layers: 7 };
                let reused =
                    |share: &dyn kvlab_sim::policy::share::Share| share.decide(&view).unwrap().reused_tokens;
                let (blocks, tokens) = (reused(blocks.as_ref()), reused(tokens.as_ref()));
                assert!(blocks <= tokens && blocks.is_multiple_of(16) && tokens - blocks < 16);
            }
        }
    }
}

#[test]
fn a_verify_policy_decides_the_same_twice_and_looks_at_the_seed_only_when_it_draws() {
    let mut skips = std::collections::BTreeMap::<&str, usize>::new();
    let trees: Vec<_> = (0..6).flat_map(some_trees).collect();
    for facts in &trees {
        let outcomes: Vec<&Outcome> =
            facts.leaves.iter().map(|&branch| facts.outcome(branch, Prefix::Own).unwrap()).collect();
        for entry in registry::VERIFIES {
            let verify = (entry.build)(&plain()).unwrap();
            let decide =
                |seed| verify.skips(&VerifyView { outcomes: &outcomes, problem: facts.index, seed }).unwrap();
            assert_eq!(decide(1), decide(1));
            if entry.spec.randomness == Randomness::Deterministic {
                assert_eq!(decide(1), decide(2), "{}", entry.spec.id);
            }
            *skips.entry(entry.spec.id).or_default() += usize::from(decide(1));
        }
    }
    assert_eq!((skips["always"], skips["never"]), (0, trees.len()));
    for (id, count) in skips.iter().filter(|(id, _)| !["always", "never"].contains(id)) {
        assert!((1..trees.len()).contains(count), "{id}: {count} of {}", trees.len());
    }
}

/// A higher rate skips a superset: a draw belongs to a problem, not to a rate.
#[test]
fn random_skips_are_nested() {
    let skips = |rate: f64, problem: u32| {
        let raw = RawParams::from_params(&json!({ "rate": rate })).unwrap();
        let verify = (registry::find(registry::VERIFIES, "verify", "random").unwrap().build)(&raw).unwrap();
        verify.skips(&VerifyView { outcomes: &[], problem, seed: 7 }).unwrap()
    };
    let count = |rate| (0..1000).filter(|&problem| skips(rate, problem)).count();
    // Four standard deviations of a binomial count.
    assert!(count(0.3).abs_diff(300) < 58 && count(0.0) == 0 && count(1.0) == 1000);
    assert!((0..300).all(|problem| !skips(0.3, problem) || skips(0.6, problem)));
}

/// Equal branches: the first wins, whoever chooses.
#[test]
fn ties_go_to_the_earlier_branch() {
    let candidate = |answer: &'static str, score| Candidate { score, confidence: 0.5, answer: Some(answer) };
    for entry in registry::WINNERS {
        let winner = (entry.build)(&plain()).unwrap();
        for score in [None, Some(0.25)] {
            let equal =
                [candidate("b", score), candidate("a", score), candidate("a", score), candidate("b", score)];
            assert_eq!(winner.choose(&equal), Some(0), "{}", entry.spec.id);
        }
        assert_eq!(winner.choose(&[]), None, "{}", entry.spec.id);
        let silent = Candidate { score: None, confidence: 0.1, answer: None };
        assert_eq!(winner.choose(&[silent, silent]), Some(0), "{}", entry.spec.id);
        let broken = Candidate { confidence: f64::NAN, ..silent };
        assert!(winner.choose(&[broken, broken]).is_some(), "{}", entry.spec.id);
    }
}

#[test]
fn winners_choose_by_what_they_are_named_after() {
    let candidates = [
        Candidate { score: Some(0.9), confidence: 0.25, answer: Some("a") },
        Candidate { score: Some(0.6), confidence: 0.81, answer: Some("b") },
        Candidate { score: Some(0.2), confidence: 0.95, answer: Some("c") },
        Candidate { score: Some(0.5), confidence: 0.30, answer: Some("a") },
    ];
    let choose = |id: &str, candidates: &[Candidate<'_>]| {
        let entry = registry::find(registry::WINNERS, "winner", id).unwrap();
        (entry.build)(&plain()).unwrap().choose(candidates)
    };
    // 0.45, 0.54, 0.195, 0.274.
    assert_eq!(choose("score-confidence", &candidates), Some(1));
    assert_eq!(choose("highest-score", &candidates), Some(0));
    assert_eq!(choose("highest-confidence", &candidates), Some(2));
    assert_eq!(choose("majority", &candidates), Some(0));
    // a: 0.225 + 0.15, b: 0.486, c: 0.19.
    assert_eq!(choose("weighted-majority", &candidates), Some(1));
    // After a skip score · √c is c^1.5, so the surest branch wins.
    let skipped = candidates.map(|candidate| Candidate { score: None, ..candidate });
    assert_eq!(choose("score-confidence", &skipped), Some(2));
    assert_eq!(choose("highest-score", &skipped), Some(2));
}

fn facts(values: &[(f32, f32, f32, f32)]) -> Vec<LayerFacts> {
    let one = |&(entropy_nats, top1_prob, cosine, yes): &(f32, f32, f32, f32)| LayerFacts {
        entropy_nats,
        raw_entropy_nats: Some(2.0 * entropy_nats),
        top1: TokenId::new(u32::from(top1_prob > 0.5)),
        top1_prob,
        top2_prob: Some((1.0 - top1_prob).min(top1_prob)),
        cos_previous: Some(cosine),
        js_previous_nats: Some(0.1 * entropy_nats),
        p_yes: Some(yes),
        raw_p_yes: Some(1.0 - yes),
    };
    values.iter().map(one).collect()
}

proptest! {
    /// At least one layer, at most all; the same twice; and a pass that is asked after every layer stops where the whole view says.
    #[test]
    fn exits_stay_within_the_model_and_need_no_later_layer(values in prop::collection::vec((0.0f32..4.0, 0.0f32..1.0, -1.0f32..1.0, 0.0f32..1.0), 1..12), history in prop::collection::vec(0u16..12, 0..40)) {
        let layers = facts(&values);
        let all = layers.len() as u16;
        for entry in registry::EXITS {
            let Ok(exit) = (entry.build)(&plain()) else { continue };
            let view = ExitView { history: &history, ..ExitView::of(&layers, VOCAB) };
            let run = exit.layers_run(&view);
            prop_assert!((1..=all).contains(&run), "{}", entry.spec.id);
            prop_assert_eq!(run, exit.layers_run(&view));
            // Only a prefix of the layers is known in a running model.
            let mut known = layers[..usize::from(run)].to_vec();
            known.resize(layers.len(), LayerFacts { entropy_nats: f32::NAN, raw_entropy_nats: None, ..layers[0] });
            prop_assert!(exit.layers_run(&ExitView { layers: &known, ..view }) <= run.max(1), "{}", entry.spec.id);
            let is_fact_free = entry.spec.needs == Needs::NONE;
            prop_assert!(is_fact_free || entry.spec.needs.lens || entry.spec.needs.verdicts, "{}", entry.spec.id);
        }
    }
}

/// Each rule stops where its definition says, on facts made by hand.
#[test]
fn exit_rules_stop_where_they_say() {
    let layers = facts(&[
        (3.0, 0.2, 0.5, 0.5),
        (1.5, 0.4, 0.9, 0.6),
        (1.2, 0.6, 0.995, 0.8),
        (0.3, 0.97, 0.999, 0.9),
        (0.1, 0.99, 0.999, 0.95),
    ]);
    let run = |id: &str, params: serde_json::Value| {
        let entry = registry::find(registry::EXITS, "exit", id).unwrap();
        let exit = (entry.build)(&RawParams::from_params(&params).unwrap()).unwrap();
        exit.layers_run(&ExitView::of(&layers, VOCAB))
    };
    assert_eq!(run("fixed", json!({ "share": 0.5 })), 3);
    assert_eq!(run("entropy-below", json!({ "theta": 1.3 })), 3);
    // 1.3 / ln 60 = 0.3175.
    assert_eq!(run("entropy-below", json!({ "theta": 0.3175, "unit": "share-of-ln-vocab" })), 3);
    assert_eq!(run("entropy-below", json!({ "theta": 1.3, "lens": "raw" })), 4);
    assert_eq!(run("max-prob", json!({ "confidence": 0.5 })), 3);
    assert_eq!(run("max-prob", json!({ "confidence": 0.5, "min_layer": 3 })), 4);
    // Margins: 0, 0, 0.2, 0.94, 0.98.
    assert_eq!(run("margin", json!({ "margin": 0.9 })), 4);
    assert_eq!(run("saturation", json!({ "cosine": 0.99 })), 3);
    // Top tokens: 0, 0, 1, 1, 1.
    assert_eq!(run("patience", json!({ "patience": 1 })), 2);
    assert_eq!(run("patience", json!({ "patience": 2 })), 5);
    // Divergences: 0.3, 0.15, 0.12, 0.03, 0.01.
    assert_eq!(run("soft-patience", json!({ "divergence": 0.14, "patience": 1 })), 3);
    assert_eq!(run("soft-patience", json!({ "divergence": 0.14, "patience": 3 })), 5);
    // |2 p - 1|: 0, 0.2, 0.6, 0.8, 0.9.
    assert_eq!(run("two-way-margin", json!({ "margin": 0.5 })), 3);
    assert_eq!(run("two-way-margin", json!({ "margin": 0.5, "stable": 4 })), 4);
    // The classifier that reads the largest probability only: 10 (p - 0.5) is 1 at the third layer, of sigmoid 0.73.
    assert_eq!(run("classifier", json!({ "weights": [-5, 0, 10, 0, 0, 0], "confidence": 0.75 })), 4);
    assert_eq!(run("never", json!({})), 5);
}
