//! Scores and kept sets of kvpress 0.5.5 on SmolLM2, layer by layer. Relative tolerance of scores: 1e-4.

use super::{LEN, floats, positions};
use kvlab_sim::contract::PlainHead;
use kvlab_sim::policy::compose::{HeadInput, Knobs, Stack, prompt_mass};
use kvlab_sim::policy::score::kv_sketch;
use kvlab_sim::policy::{At, Draws, HeadView, Peer, RawParams, registry};
use kvlab_sim::types::{KvHead, LayerIdx, Pos, SeqIdx};
use safetensors::SafeTensors;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/evict/");

fn rows(flat: &[f32]) -> Vec<Vec<f32>> {
    flat.chunks_exact(64).map(<[f32]>::to_vec).collect()
}

/// The KV heads of one layer: all keys, the queries of the last 64 positions, and at layer 14 values and all queries of
/// KV head 0. What is not stored is zero.
fn layer(layer: u16) -> Vec<PlainHead> {
    let (snapkv, scores) = (read("snapkv.safetensors"), read("scores.safetensors"));
    let (snapkv, scores) =
        (SafeTensors::deserialize(&snapkv).unwrap(), SafeTensors::deserialize(&scores).unwrap());
    let keys = floats(&snapkv, &format!("layer{layer}.k"));
    let window = floats(&snapkv, &format!("layer{layer}.q"));
    let of = |flat: &[f32], at: usize, len: usize| rows(&flat[at * len * 64..(at + 1) * len * 64]);
    let zeros = || vec![vec![0.0; 64]; LEN as usize];
    let mut heads: Vec<PlainHead> = (0..3)
        .map(|head| {
            let padded = |q: usize| {
                let mut all = zeros();
                all.splice(LEN as usize - 64.., of(&window, q, 64));
                all
            };
            let queries = (3 * head..3 * head + 3).map(padded).collect();
            PlainHead { queries, keys: of(&keys, head, 400), values: zeros(), ..PlainHead::default() }
        })
        .collect();
    if layer == 14 {
        let (values, queries) = (floats(&scores, "layer14.v"), floats(&scores, "layer14.q_of_head0"));
        heads.iter_mut().enumerate().for_each(|(at, head)| head.values = of(&values, at, 400));
        heads[0].queries = (0..3).map(|q| of(&queries, q, 400)).collect();
    }
    heads
}

fn read(file: &str) -> Vec<u8> {
    std::fs::read(format!("{FOLDER}{file}")).unwrap()
}

/// What the peer says about one KV head.
struct Golden {
    scores: Vec<f32>,
    /// `[ratio]`: kept positions, and the gap at the boundary.
    kept: Vec<(Vec<u32>, f32)>,
}

fn golden(layer: u16, press: &str, head: usize) -> Golden {
    let bytes = read("scores.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let name = |what: &str| format!("layer{layer}.{press}.{what}");
    let kept = |ratio: &str, count: usize| {
        let all = positions(&tensors, &name(&format!("kept_{ratio}")));
        let gap = floats(&tensors, &name(&format!("gap_{ratio}")))[head];
        (all[head * count..(head + 1) * count].to_vec(), gap)
    };
    let scores = floats(&tensors, &name("scores"));
    Golden {
        scores: scores[head * LEN as usize..(head + 1) * LEN as usize].to_vec(),
        kept: vec![kept("0.5", 200), kept("0.75", 100)],
    }
}

fn at(head: usize) -> At {
    let head = KvHead::new(u16::try_from(head).unwrap());
    At { seq: SeqIdx::new(0), layer: LayerIdx::new(0), head, eviction: 0, seen: LEN, prompt_len: LEN }
}

fn all() -> Vec<Pos> {
    (0..LEN).map(Pos::new).collect()
}

/// Scores of all tokens of head `head`, nothing recent, everything resident.
fn scores(heads: &[PlainHead], head: usize, kind: &str, params: serde_json::Value, mass: &[f32]) -> Vec<f32> {
    let resident = all();
    let peers: Vec<Peer<'_>> = heads.iter().map(|head| Peer { data: head, resident: &resident }).collect();
    let view = HeadView::new(at(head), &heads[head], &resident, 0, LEN - 64..LEN);
    let view = HeadView { peers: &peers, mass, ..view };
    let entry = registry::find(registry::SCORES, "score", kind).unwrap();
    let score = (entry.build)(&RawParams::from_params(&params).unwrap()).unwrap();
    let mut out = Vec::new();
    score.score(&view, &Draws::new(0, view.at), &mut out).unwrap();
    out
}

fn close(found: &[f32], expected: &[f32], skip: impl Fn(usize) -> bool, place: &str) {
    assert_eq!(found.len(), expected.len());
    for (pos, (f, e)) in found.iter().zip(expected).enumerate().filter(|(pos, _)| !skip(*pos)) {
        assert!((f - e).abs() <= 1e-4 * e.abs().max(1e-12), "{place}, position {pos}: {f} against {e}");
    }
}

/// Kept sets of a whole layer under a composition that evicts after the prompt. Where the peer's boundary is tied, every
/// score above it must be kept.
fn kept_sets(layer: u16, press: &str, heads: &[PlainHead], checked: usize, build: &dyn Fn(u32) -> Stack) {
    let resident = all();
    for (ratio, capacity) in [(0, 200u32), (1, 100)] {
        let stack = build(capacity);
        let masses: Vec<Vec<f32>> = heads
            .iter()
            .map(|head| if stack.accumulates() { prompt_mass(head, LEN) } else { Vec::new() })
            .collect();
        let inputs: Vec<HeadInput<'_>> = heads
            .iter()
            .zip(&masses)
            .enumerate()
            .map(|(head, (data, mass))| HeadInput { data, at: at(head), resident: &resident, mass, capacity })
            .collect();
        let evictions = stack.evict_layer(&inputs, 0).unwrap();
        for (head, eviction) in evictions.iter().enumerate().take(checked) {
            let golden = golden(layer, press, head);
            let (expected, gap) = &golden.kept[ratio];
            let mut kept: Vec<u32> = eviction.kept.iter().map(|pos| pos.get()).collect();
            kept.sort_unstable();
            let place = format!("{press}, layer {layer}, head {head}, {capacity} tokens");
            if *gap > 0.0 {
                assert_eq!(&kept, expected, "{place}");
            } else {
                let boundary =
                    expected.iter().map(|&pos| golden.scores[pos as usize]).fold(f32::MAX, f32::min);
                // Two scores that are equal there may differ in the last bits here.
                let margin = boundary.abs() * 1e-5;
                let above = (0..LEN).filter(|&pos| golden.scores[pos as usize] > boundary + margin);
                above.for_each(|pos| assert!(kept.contains(&pos), "{place}: {pos} is above the tie"));
            }
        }
    }
}

fn composition(id: &str, knobs: Knobs, params: serde_json::Value) -> Stack {
    registry::composition(id).unwrap().stack(&knobs, &RawParams::from_params(&params).unwrap()).unwrap()
}

fn knobs(capacity: u32) -> Knobs {
    Knobs { capacity, recent: 0, sinks: 0, period: 1, window: 64 }
}

#[test]
fn key_norms_are_those_of_knorm() {
    for l in [0, 10, 14, 29] {
        let heads = layer(l);
        for head in 0..3 {
            let found = scores(&heads, head, "key-norm", serde_json::json!({}), &[]);
            close(&found, &golden(l, "knorm", head).scores, |_| false, "knorm");
        }
        let params = serde_json::json!({ "driver": "prefill" });
        kept_sets(l, "knorm", &heads, 3, &|capacity| composition("knorm", knobs(capacity), params.clone()));
    }
}

#[test]
fn key_differences_are_those_of_keydiff() {
    for l in [0, 10, 14, 29] {
        let heads = layer(l);
        for head in 0..3 {
            let found = scores(&heads, head, "key-diff", serde_json::json!({}), &[]);
            close(&found, &golden(l, "keydiff", head).scores, |_| false, "keydiff");
        }
        let params = serde_json::json!({ "driver": "prefill" });
        kept_sets(l, "keydiff", &heads, 3, &|capacity| {
            composition("keydiff", knobs(capacity), params.clone())
        });
    }
}

#[test]
fn last_attention_is_that_of_tova() {
    for l in [0, 10, 14, 29] {
        let heads = layer(l);
        for head in 0..3 {
            let found = scores(&heads, head, "last-attention", serde_json::json!({}), &[]);
            // The peer forces the last token.
            close(&found, &golden(l, "tova", head).scores, |pos| pos == 399, "tova");
        }
        let params = serde_json::json!({ "driver": "prefill", "recent": 1 });
        kept_sets(l, "tova", &heads, 3, &|capacity| composition("tova", knobs(capacity), params.clone()));
    }
}

#[test]
fn key_value_products_are_those_of_cur() {
    let heads = layer(14);
    for head in 0..3 {
        let found = scores(&heads, head, "kv-sketch", serde_json::json!({ "rank": 0, "local": 16 }), &[]);
        // The peer forces the sinks.
        close(&found, &golden(14, "cur", head).scores, |pos| pos < 4, "cur");
    }
    let params = serde_json::json!({ "driver": "prefill", "sinks": 4 });
    kept_sets(14, "cur", &heads, 3, &|capacity| composition("cur", knobs(capacity), params.clone()));
}

/// With the peer's own sketch: scores, and the kept sets that follow from them.
#[test]
fn sketched_products_are_those_of_cur_with_the_same_sketch() {
    let bytes = read("scores.safetensors");
    let drawn = floats(&SafeTensors::deserialize(&bytes).unwrap(), "layer14.sketch");
    let column = |rank: usize| (0..64).map(|c| drawn[c * 20 + rank] / 20f32.sqrt()).collect();
    let sketch: Vec<Vec<f32>> = (0..20).map(column).collect();
    let (heads, resident) = (layer(14), all());
    let params = kv_sketch::Params { rank: 20, local: 16, ..kv_sketch::Params::default() };
    for (head, data) in heads.iter().enumerate() {
        let view = HeadView::new(at(head), data, &resident, 0, 0..LEN);
        let mut found = Vec::new();
        kv_sketch::scores_under(&view, params, &sketch, &mut found);
        let golden = golden(14, "cur_sketch", head);
        close(&found, &golden.scores, |pos| pos < 4, "cur with a sketch");
        for (expected, gap) in golden.kept {
            assert!(gap > 0.0);
            let mut order: Vec<u32> = (4..LEN).collect();
            order.sort_by(|&a, &b| found[b as usize].total_cmp(&found[a as usize]));
            let mut kept: Vec<u32> = (0..4).chain(order.into_iter().take(expected.len() - 4)).collect();
            kept.sort_unstable();
            assert_eq!(kept, expected, "head {head}");
        }
    }
}

#[test]
fn partition_ranks_are_those_of_lagkv() {
    let heads = layer(14);
    for head in 0..3 {
        let found = scores(&heads, head, "lag-kv", serde_json::json!({}), &[]);
        close(&found, &golden(14, "lagkv", head).scores, |_| false, "lagkv");
    }
    let params = serde_json::json!({ "driver": "prefill" });
    kept_sets(14, "lagkv", &heads, 3, &|capacity| {
        composition("lagkv", Knobs { sinks: 4, ..knobs(capacity) }, params.clone())
    });
}

#[test]
fn accumulated_attention_is_that_of_observed_attention() {
    let heads = layer(14);
    let mass = prompt_mass(&heads[0], LEN);
    let found = scores(&heads, 0, "accumulated-attention", serde_json::json!({ "per_query": true }), &mass);
    close(&found, &golden(14, "observed", 0).scores, |_| false, "observed attention");
    let params = serde_json::json!({ "driver": "prefill" });
    kept_sets(14, "observed", &heads, 1, &|capacity| {
        composition("h2o-normalised", knobs(capacity), params.clone())
    });
}

/// StreamingLLM keeps four sinks and the newest tokens, by definition: nothing need be stored.
#[test]
fn streaming_llm_keeps_sinks_and_the_newest() {
    let (heads, resident) = (layer(0), all());
    for capacity in [200, 100] {
        let params = serde_json::json!({ "driver": "prefill" });
        let stack = composition("streaming-llm", Knobs { sinks: 4, ..knobs(capacity) }, params);
        let mut kept: Vec<u32> = stack
            .evict(&heads[0], at(0), &resident, capacity, 0)
            .unwrap()
            .kept
            .iter()
            .map(|pos| pos.get())
            .collect();
        kept.sort_unstable();
        assert_eq!(kept, (0..4).chain(LEN - (capacity - 4)..LEN).collect::<Vec<_>>());
    }
}
