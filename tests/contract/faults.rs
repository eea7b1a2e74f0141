//! Faults met in other projects, tried here. Names say what went wrong there.

use super::{at, outcomes, plain, positions};
use kvlab_sim::policy::compose::{CompositionEntry, Knobs, Part, Reason, Stack, StackSpec};
use kvlab_sim::policy::{Draws, HeadView, PolicyError, RawParams, registry};
use kvlab_sim::replay::{EvictionCell, Settings, replay_layer};
use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::trace::{LayerTensors, TraceSource};
use kvlab_sim::types::{LayerIdx, ModelShape, Pos, ShapeError};

fn trace(q_heads: u16, kv_heads: u16, lengths: &[(u32, u32)]) -> Synthetic {
    let shape = ModelShape { layers: 1, q_heads, kv_heads, head_dim: 8, hidden: 16, vocab: 50 };
    let lengths = lengths.iter().map(|&(prompt_len, len)| SynthLength { prompt_len, len }).collect();
    Synthetic::build("sinks-and-hitters", SynthSpec { shape, lengths, seed: 4 }).unwrap()
}

fn stack(id: &str, knobs: &Knobs, params: serde_json::Value) -> Result<Stack, PolicyError> {
    registry::composition(id).unwrap().stack(knobs, &RawParams::from_params(&params).unwrap())
}

/// Compositions that decide on vectors alone, and so work on any trace. One is refused for want of weights.
fn everywhere(knobs: &Knobs) -> Vec<(&'static str, Stack)> {
    let stack = |entry: &'static CompositionEntry| {
        let stack = match entry.stack(knobs, &RawParams::default()) {
            Err(PolicyError::Refused { policy: "seer-gate", .. }) => return None,
            stack => stack.unwrap(),
        };
        let needs = stack.needs();
        (!needs.rope && !needs.output_weights).then_some((entry.spec.id, stack))
    };
    registry::COMPOSITIONS.iter().filter_map(stack).collect()
}

/// kvpress PR 264: keeping `1 - ratio` of a context of one or two tokens kept none, and attention turned to NaN.
#[test]
fn a_share_of_a_short_context_is_never_nothing() {
    for len in 1..=3u32 {
        for keep_ratio in [0.25, 0.1] {
            for score in registry::SCORES
                .iter()
                .filter(|score| !score.spec.needs.rope && !score.spec.needs.output_weights)
            {
                let knobs = Knobs { capacity: 1, recent: 0, sinks: 0, period: 1, window: 4 };
                let budget = serde_json::json!({ "keep_ratio": keep_ratio });
                let spec = StackSpec {
                    budget: Part::with("share-of-seen", &budget).unwrap(),
                    schedule: Part::plain("on-overflow"),
                    ..StackSpec::periodic("short", knobs, Part::plain(score.spec.id)).unwrap()
                };
                let stack = Stack::checked(spec);
                // Scorers whose inner score needs more are refused elsewhere.
                let Ok(stack) = stack else { continue };
                for outcome in outcomes(&trace(2, 1, &[(len, len + 2)]), &stack, 0, 1) {
                    let id = score.spec.id;
                    assert!(
                        outcome.evictions.iter().flat_map(|e| &e.heads).all(|set| set.count >= 1),
                        "{id}"
                    );
                    assert!(
                        outcome.recall.iter().all(|r| r.is_finite() && *r > 0.0),
                        "{id}: {:?}",
                        outcome.recall
                    );
                    assert!(outcome.error_sum.is_finite(), "{id}");
                }
            }
        }
    }
    // To evict everything is not offered: a share of nothing is refused with what is accepted.
    let entry = registry::find(registry::BUDGETS, "budget", "share-of-seen").unwrap();
    let raw = RawParams::from_params(&serde_json::json!({ "keep_ratio": 0.0 })).unwrap();
    let error = (entry.build)(&raw).unwrap_err().to_string();
    assert!(error.contains("keep_ratio") && error.contains("above 0"), "{error}");
}

/// VeloxQuant-MLX 84: each chunk of a prompt kept a full budget. Here a prompt is stored whole whatever its chunks, and cut after
/// it where the schedule says so; from then on the peak is the budget and what is stored until the next eviction.
#[test]
fn the_peak_after_a_long_prompt_is_the_budget_and_one_period() {
    let knobs = Knobs { capacity: 32, recent: 8, sinks: 2, period: 8, window: 8 };
    let trace = trace(2, 1, &[(200, 280)]);
    for (id, params, most) in [
        ("snapkv-prefill", serde_json::json!({}), 32 + 80),
        ("h2o", serde_json::json!({}), 32),
        ("knorm", serde_json::json!({}), 32),
    ] {
        let stack = stack(id, &knobs, params).unwrap();
        let outcome = outcomes(&trace, &stack, 0, 0).remove(0);
        let first = &outcome.evictions[0];
        assert!(first.seen <= 200 + 8, "{id}: the prompt is cut at the first chance");
        assert!(outcome.evictions.iter().flat_map(|e| &e.heads).all(|set| set.count == 32), "{id}");
        let last = outcome.evictions.last().unwrap();
        assert!(32 + (280 - last.seen) <= most, "{id}: {last:?}");
    }
}

/// H2O 11: with a budget above the length the policy never acts, and the full cache is taken for it. At equality nothing happens
/// either; with one token more exactly one leaves.
#[test]
fn a_budget_at_the_length_never_triggers_and_one_below_evicts_one() {
    let trace = trace(2, 1, &[(60, 100)]);
    for capacity in [2048, 100] {
        let knobs = Knobs { capacity, recent: 4, sinks: 2, period: 4, window: 4 };
        for (id, stack) in everywhere(&knobs) {
            let outcome = outcomes(&trace, &stack, 0, 1).remove(0);
            assert!(outcome.evictions.is_empty(), "{id} at {capacity}");
            assert!(outcome.recall.iter().all(|recall| (recall - 2.0).abs() < 1e-12), "{id} at {capacity}");
        }
    }
    let knobs = Knobs { capacity: 99, recent: 4, sinks: 2, period: 3, window: 4 };
    let stack = stack("h2o", &knobs, serde_json::json!({})).unwrap();
    let outcome = outcomes(&trace, &stack, 0, 0).remove(0);
    assert_eq!(outcome.evictions.len(), 1);
    assert_eq!((outcome.evictions[0].seen, outcome.evictions[0].heads[0].count), (100, 99));
}

/// H2O 32, SnapKV 16: scores come a query head, keys a KV head. Groups are reduced, sets are counted a KV head, and heads that
/// cannot be grouped are refused when the shape is read.
#[test]
fn grouped_queries_give_one_set_a_kv_head() {
    for (q_heads, kv_heads) in [(8, 2), (6, 1), (4, 4)] {
        let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
        for (id, stack) in everywhere(&knobs) {
            let outcome = outcomes(&trace(q_heads, kv_heads, &[(20, 50)]), &stack, 0, 0).remove(0);
            let sets: Vec<usize> = outcome.evictions.iter().map(|eviction| eviction.heads.len()).collect();
            assert!(sets.iter().all(|count| *count == usize::from(kv_heads)), "{id}: {sets:?}");
            let most = f64::from(q_heads) + 1e-9;
            assert!(outcome.recall.iter().all(|recall| *recall <= most), "{id}");
        }
    }
    let shape = ModelShape { layers: 1, q_heads: 6, kv_heads: 4, head_dim: 8, hidden: 16, vocab: 50 };
    let spec = SynthSpec { shape, lengths: vec![SynthLength { prompt_len: 1, len: 1 }], seed: 0 };
    let error = Synthetic::build("noise", spec).unwrap_err().to_string();
    assert!(error.contains(&ShapeError::Grouping { q_heads: 6, kv_heads: 4 }.to_string()), "{error}");
}

/// VeloxQuant-MLX 171: after an eviction the number of kept rows was taken for the next position. Kept sets name original
/// positions, and a decision after one counts tokens seen.
#[test]
fn positions_are_original_ones_after_an_eviction() {
    let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
    let trace = trace(2, 1, &[(100, 120)]);
    let outcome =
        outcomes(&trace, &stack("streaming-llm", &knobs, serde_json::json!({})).unwrap(), 0, 0).remove(0);
    assert_eq!(outcome.evictions.iter().map(|e| e.seen).collect::<Vec<_>>(), [104, 108, 112, 116, 120]);
    // Sinks, the selector's order, the recent buffer.
    let expected: Vec<Pos> =
        [0, 1].into_iter().chain((106..116).rev()).chain(116..120).map(Pos::new).collect();
    assert_eq!(outcome.evictions[4].heads[0], kvlab_sim::ledger::KeptSet::of(&expected));
}

/// kvpress 276: scores in 16 bits tied for most positions, and the order of storage decided. Here 90 % of the tokens are alike: the
/// earlier position wins, whatever the order of slots, and the tie is reported.
#[test]
fn ties_go_to_the_earlier_position_whatever_the_order_of_slots() {
    let row = |i: usize| if i.is_multiple_of(10) { vec![0.5f32, 0.25] } else { vec![1.0f32, 1.0] };
    let rows: Vec<Vec<f32>> = (0..40).map(row).collect();
    let head = plain(vec![rows.clone()], rows.clone(), rows);
    let knobs = Knobs { capacity: 20, recent: 4, sinks: 0, period: 4, window: 4 };
    let stack = stack("knorm", &knobs, serde_json::json!({})).unwrap();
    let resident = positions(40);
    let expected = stack.evict(&head, at(40, 0), &resident, 20, 0).unwrap();
    assert!(expected.tied);
    // Four small keys, then the earliest of the others.
    let kept: Vec<u32> = expected.kept.iter().map(|pos| pos.get()).collect();
    assert_eq!(kept, [0, 10, 20, 30, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 36, 37, 38, 39]);
    let mut shuffled = resident.clone();
    shuffled[..36].reverse();
    shuffled.swap(3, 17);
    assert_eq!(stack.evict(&head, at(40, 0), &shuffled, 20, 0).unwrap(), expected);
}

/// rand 1004, dicetest 3: a weighted sampler panicked on a NaN and divided by zero. All weights zero: recency decides; a NaN is an
/// error that names the place; too few positive weights: the rest is filled by recency, and nobody is chosen twice.
#[test]
fn a_sampler_survives_zero_and_missing_weights_and_refuses_nan() {
    let entry = registry::find(registry::SELECTS, "select", "weighted-sample").unwrap();
    let select = (entry.build)(&RawParams::default()).unwrap();
    let rows = vec![vec![0.0f32; 2]; 5];
    let head = plain(vec![rows.clone()], rows.clone(), rows);
    let resident = positions(5);
    let view = HeadView::new(at(5, 0), &head, &resident, 0, 0..5);
    let chosen = |weights: &[f32]| {
        select.select(&view, weights, &[0, 1, 2, 3, 4], 4, &Draws::new(0, view.at)).unwrap()
    };
    let (none, one, enough) =
        (chosen(&[0.0; 5]), chosen(&[0.0, 0.0, 0.4, 0.0, 0.0]), chosen(&[0.1, 0.0, 0.4, 0.2, 0.3]));
    assert_eq!((none.slots.as_slice(), none.filled), (&[4, 3, 2, 1][..], 4));
    assert_eq!((one.slots.as_slice(), one.parts()), (&[2, 4, 3, 1][..], (&[2][..], &[4, 3, 1][..])));
    assert_eq!(enough.filled, 0);
    let mut rows = vec![vec![1.0f32; 2]; 12];
    rows[5][0] = f32::NAN;
    let head = plain(vec![rows.clone()], rows.clone(), rows);
    let knobs = Knobs { capacity: 8, recent: 2, sinks: 0, period: 2, window: 2 };
    let stack = stack("vase-attnv", &knobs, serde_json::json!({ "value_tokens": 0 })).unwrap();
    let error = stack.evict(&head, at(12, 0), &positions(12), 8, 0).unwrap_err();
    assert!(matches!(error, PolicyError::NotANumber { .. }), "{error}");
}

/// What only fills up has a reason of its own and is counted, for each head, for blocks of a layer, and in the rows of a study: attention
/// is all on one key, so that every other weight is zero.
#[test]
fn tokens_that_only_fill_up_are_told_from_those_that_were_drawn() {
    let source = trace(2, 1, &[(10, 40)]);
    let (shape, meta) = (source.shape(), &source.sequences()[0]);
    let LayerTensors { mut q, mut k, v } = source.layer(meta.seq, LayerIdx::new(0)).unwrap();
    q.fill(30.0);
    k.fill(-30.0);
    k.slice_mut(ndarray::s![.., 3, ..]).fill(30.0);
    let knobs = Knobs { capacity: 8, recent: 4, sinks: 0, period: 4, window: 4 };
    let alone = serde_json::json!({ "value_tokens": 0, "pool": 1 });
    let vase = stack("vase-attnv", &knobs, alone.clone()).unwrap();
    let tensors = LayerTensors { q, k, v };
    let (layer, kv_head) = (LayerIdx::new(0), kvlab_sim::types::KvHead::new(0));
    let head = kvlab_sim::replay::RecordedHead::new(&tensors, shape, layer, kv_head, meta.len).unwrap();
    let eviction = vase.evict(&head, at(12, 0), &positions(12), 8, 0).unwrap();
    // Four recent tokens; the one with all of the weight is drawn, and the three before the recent ones fill up.
    let expected = [
        (3, Reason::Selected),
        (7, Reason::Filled),
        (6, Reason::Filled),
        (5, Reason::Filled),
        (8, Reason::Recent),
    ];
    let found: Vec<(u32, Reason)> =
        eviction.kept.iter().map(|pos| pos.get()).zip(eviction.reasons.iter().copied()).collect();
    assert_eq!(found[..5], expected);
    assert_eq!(eviction.filled, 3);
    assert_eq!(vase.reason_word(Reason::Filled), "filled");
    // All ways to replay count alike: cells together, and one that needs its own states.
    let settings = Settings::default();
    let replayed = |stack: &Stack| {
        let cells = [EvictionCell { stack, seed: 0 }];
        replay_layer(shape, meta, LayerIdx::new(0), &tensors, &cells, settings).unwrap().remove(0)
    };
    let together = replayed(&vase);
    let heads = together.evictions.iter().map(|eviction| eviction.heads.len() as u64).sum::<u64>();
    assert_eq!(together.filled, 3 * heads, "every eviction of every head");
    let snapkv = replayed(&stack("snapkv", &knobs, serde_json::json!({ "pool": 1 })).unwrap());
    assert_eq!(snapkv.filled, 0, "a choice by score has no weights");
}

/// A trace whose attention is all on one key: nothing is left of it after that key goes, and every number stays finite.
#[test]
fn attention_on_a_single_token_leaves_finite_numbers() {
    let source = trace(2, 1, &[(10, 40)]);
    let (shape, meta) = (source.shape(), &source.sequences()[0]);
    let LayerTensors { mut q, mut k, v } = source.layer(meta.seq, LayerIdx::new(0)).unwrap();
    q.fill(30.0);
    k.fill(-30.0);
    k.slice_mut(ndarray::s![.., 3, ..]).fill(30.0);
    let tensors = LayerTensors { q, k, v };
    let knobs = Knobs { capacity: 8, recent: 4, sinks: 0, period: 4, window: 4 };
    for (id, stack) in everywhere(&knobs) {
        let cells = [EvictionCell { stack: &stack, seed: 0 }];
        let settings = Settings { output_error_every: 1, ..Settings::default() };
        let outcome =
            replay_layer(shape, meta, LayerIdx::new(0), &tensors, &cells, settings).unwrap().remove(0);
        assert!(outcome.recall.iter().all(|recall| recall.is_finite()), "{id}");
        assert!(outcome.error_sum.is_finite(), "{id}: {}", outcome.error_sum);
    }
}
