//! The fast scorers agree with slow twins written from the papers.

use super::{at, positions};
use crate::support::{naive, synth};
use kvlab_sim::contract::PlainHead;
use kvlab_sim::policy::compose::prompt_mass;
use kvlab_sim::policy::{Draws, HeadView, Peer, RawParams, registry};
use kvlab_sim::replay::RecordedHead;
use kvlab_sim::rope::Rope;
use kvlab_sim::trace::{KeyState, RopeInfo, TraceSource};
use kvlab_sim::types::{KvHead, LayerIdx};
use proptest::prelude::*;

fn frequencies(head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|pair| 1.0 / f64::from(1u32 << (2 * pair))).collect()
}

fn rope(head_dim: usize) -> Rope {
    let info = RopeInfo {
        style: "rotate-half".to_owned(),
        theta: 4.0,
        scaling: None,
        keys: KeyState::PostRope,
        inv_freq: Some(frequencies(head_dim)),
        attention_scaling: None,
    };
    Rope::new(&info).unwrap()
}

fn compare(found: &[f32], expected: &[f64], what: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.len(), expected.len(), "{}", what);
    for (f, e) in found.iter().zip(expected) {
        // f32 sums of at most a few dozen terms of size 1: 1e-5 is twenty times their rounding.
        prop_assert!((f64::from(*f) - e).abs() < 1e-5 + 1e-4 * e.abs(), "{}: {} against {}", what, f, e);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn scorers_agree_with_their_naive_twins(
        spec in synth::tiny_spec(),
        pool in prop_oneof![Just(1u32), Just(3), Just(5)],
        window in 1u32..9,
        keep in 0.3f64..1.0,
    ) {
        let trace = synth::build(spec);
        let meta = &trace.sequences()[0];
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let shape = trace.shape();
        let plain: Vec<PlainHead> = shape
            .kv_head_ids()
            .map(|head| {
                let recorded = RecordedHead::new(&tensors, shape, LayerIdx::new(0), head, meta.len).unwrap();
                let head_dim = usize::from(shape.head_dim);
                let output_weights = (0..shape.group())
                    .map(|q| (0..3 * head_dim).map(|i| ((i * 7 + usize::from(q)) % 5) as f32 - 2.0).collect())
                    .collect();
                PlainHead { rope: Some(rope(head_dim)), output_weights, ..PlainHead::of(&recorded, meta.len) }
            })
            .collect();
        let head = &plain[0];
        let kv0 = RecordedHead::new(&tensors, shape, LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
        // The oracle needs a future: decisions are taken at `seen`.
        let seen = ((f64::from(meta.len) * keep) as u32).max(1);
        let resident = positions(seen);
        let mass = prompt_mass(head, seen);
        let peers: Vec<Peer<'_>> = plain.iter().map(|head| Peer { data: head, resident: &resident }).collect();
        let first = seen.saturating_sub(window);
        let recent = 2.min(seen as usize);
        let choice: Vec<usize> = (0..seen as usize - recent).collect();
        let view = HeadView {
            mass: &mass,
            peers: &peers,
            choice: &choice,
            room: choice.len() / 2,
            ..HeadView::new(at(seen, 0), head, &resident, recent, first..seen)
        };
        let scored: Vec<usize> = view.scored().iter().map(|pos| pos.idx()).collect();
        let all: Vec<usize> = (0..seen as usize).collect();
        let queries = first as usize..seen as usize;
        let score_of = |view: &HeadView<'_>, kind: &str, params: serde_json::Value| {
            let raw = RawParams::from_params(&params).unwrap();
            let entry = registry::find(registry::SCORES, "score", kind).unwrap();
            let mut out = Vec::new();
            (entry.build)(&raw).unwrap().score(view, &Draws::new(0, view.at), &mut out).unwrap();
            out
        };
        let score = |kind: &str, params: serde_json::Value| score_of(&view, kind, params);
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();

        let fast = score("window-mass", serde_json::json!({ "window": window, "pool": pool }));
        let slow = naive::window_mass(head, &scored, queries.clone(), pool as usize);
        compare(&fast, &slow, "window-mass")?;
        let recorded = HeadView { data: &kv0, ..view.clone() };
        let fast = score_of(&recorded, "window-mass", serde_json::json!({ "window": window, "pool": pool }));
        compare(&fast, &slow, "window-mass of a recording")?;
        compare(&score("kv-sketch", json(r#"{"rank": 0}"#)), &naive::kv_product(head, &scored), "kv-sketch")?;
        compare(&score("recency", json("{}")), &scored.iter().map(|&i| i as f64).collect::<Vec<_>>(), "recency")?;
        compare(&score("key-norm", json("{}")), &naive::key_norm(head, &scored), "key-norm")?;
        compare(&score("key-diff", json("{}")), &naive::key_diff(head, &all, &scored), "key-diff")?;
        for per_query in [false, true] {
            let fast = score("accumulated-attention", serde_json::json!({ "per_query": per_query }));
            let slow = naive::accumulated(head, &scored, seen as usize, per_query);
            compare(&fast, &slow, "accumulated-attention")?;
        }
        let heads: Vec<&PlainHead> = plain.iter().collect();
        let last = seen as usize - 1;
        compare(&score("last-attention", json("{}")), &naive::last_attention(&heads, last, &scored), "last-attention")?;
        let of_group = score("last-attention", json(r#"{"over": "group"}"#));
        compare(&of_group, &naive::last_attention(&heads[..1], last, &scored), "last-attention of the group")?;
        for lag in [3u32, 5] {
            let fast = score("lag-kv", serde_json::json!({ "lag": lag, "sinks": 2 }));
            let partitions = naive::lag_kv(head, seen as usize, lag as usize, 2);
            if partitions.is_empty() && seen < 2 + 2 * lag {
                let recency: Vec<f64> =
                    all.iter().map(|&i| if i < 2 { 1.0 } else { i as f64 / f64::from(seen) }).collect();
                compare(&fast, &recency[..fast.len()], "lag-kv with few tokens")?;
                continue;
            }
            let lag = lag as usize;
            for (p, deviations) in partitions.iter().enumerate() {
                let begin = 2 + p * lag;
                // Recent tokens are no part of the scores.
                let Some(ranks) = fast.get(begin..begin + lag) else { continue };
                let mut sorted = ranks.to_vec();
                sorted.sort_by(f32::total_cmp);
                let every: Vec<f64> = (0..lag).map(|rank| rank as f64 / lag as f64).collect();
                compare(&sorted, &every, "lag-kv: every rank once")?;
                for (a, b) in (0..lag).flat_map(|a| (0..lag).map(move |b| (a, b))) {
                    // Deviations that are equal up to rounding may come in any order.
                    let is_above = deviations[a] > deviations[b] + 1e-5;
                    prop_assert!(!is_above || ranks[a] > ranks[b], "lag-kv: {:?} for {:?}", ranks, deviations);
                }
            }
            prop_assert!(fast.iter().take(2).all(|score| (score - 1.0).abs() < 1e-6), "lag-kv: sinks");
        }
        let fast = score("r-kv", serde_json::json!({ "window": window, "pool": pool, "lambda": 0.3 }));
        let slow = naive::r_kv(head, seen as usize, scored.len(), queries.clone(), pool as usize, 0.3, Some(0.5));
        compare(&fast, &slow, "r-kv")?;
        let fast = score("r-kv", serde_json::json!({ "form": "vase", "window": window, "pool": pool, "lambda": 0.3 }));
        let slow = naive::r_kv(head, seen as usize, scored.len(), queries.clone(), pool as usize, 0.3, None);
        compare(&fast, &slow, "r-kv of VaSE")?;
        compare(&score("oracle", json("{}")), &naive::oracle(head, &scored, seen as usize), "oracle")?;
        let frequencies = frequencies(usize::from(shape.head_dim));
        let fast = score("expected-attention", serde_json::json!({ "window": window, "future": 9, "sinks": 1 }));
        let slow =
            naive::expected_attention(head, seen as usize, scored.len(), queries, 9, 1, &frequencies);
        compare(&fast, &slow, "expected-attention")?;
        let fast = score("leverage", json(r#"{"sketch": 0, "jitter": 0.5}"#));
        compare(&fast, &naive::leverage(head, &scored, 0.5, &frequencies), "leverage")?;

        // Wrappers: the inner score is the one above.
        let attention = naive::accumulated(head, &scored, seen as usize, false);
        let l1 = |i: usize| head.values[i].iter().map(|x| f64::from(x.abs())).sum::<f64>();
        let slow: Vec<f64> = scored.iter().zip(&attention).map(|(&i, a)| a * l1(i)).collect();
        let fast = score("value-weighted", json(r#"{"of": {"kind": "accumulated-attention"}}"#));
        compare(&fast, &slow, "value-weighted")?;
        let written = |i: usize| {
            let of = |w: &Vec<f32>| {
                let rows = w.chunks(head.values[i].len());
                rows.map(|row| row.iter().zip(&head.values[i]).map(|(w, v)| f64::from(*w) * f64::from(*v)).sum::<f64>().abs())
                    .sum::<f64>()
            };
            head.output_weights.iter().map(of).sum::<f64>() / head.output_weights.len() as f64
        };
        let fast = score("critical", json(r#"{"of": {"kind": "accumulated-attention"}, "first_share": 0.5}"#));
        let first_stage = fast.iter().filter(|score| **score >= f32::MAX).count();
        prop_assert_eq!(first_stage, choice.len() / 2 / 2);
        for (&i, (f, a)) in scored.iter().zip(fast.iter().zip(&attention)) {
            if *f < f32::MAX {
                let slow = (a + 1e-4) * written(i);
                prop_assert!((f64::from(*f) - slow).abs() < 1e-5 + 1e-3 * slow, "critical: {} against {}", f, slow);
            }
        }
    }
}
