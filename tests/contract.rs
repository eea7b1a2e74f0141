//! Properties that every registered policy must have. Registered means tested: nothing is added here by hand.

mod named;

use crate::support::heads::{PlainHead, WatchedHead};
use crate::support::{naive, stacks, synth};
use kvlab_sim::policy::compose::{Knobs, Stack};
use kvlab_sim::policy::schedule::Moment;
use kvlab_sim::policy::{At, Draws, HeadData, HeadView, Law, PolicyError, RawParams, registry};
use kvlab_sim::replay::{EvictionCell, LayerOutcome, RecordedHead, Settings, replay_layer};
use kvlab_sim::trace::TraceSource;
use kvlab_sim::types::{KvHead, LayerIdx, Pos, SeqIdx};
use proptest::prelude::*;

fn at(seen: u32, head: u16) -> At {
    At { seq: SeqIdx::new(0), layer: LayerIdx::new(0), head: KvHead::new(head), eviction: 0, seen }
}

fn positions(len: u32) -> Vec<Pos> {
    (0..len).map(Pos::new).collect()
}

/// Every stack that accepts these amounts.
fn fitting(knobs: &Knobs) -> Vec<(String, Stack)> {
    stacks::all()
        .into_iter()
        .map(|(name, build)| {
            let stack = build(knobs);
            let stack = stack.unwrap_or_else(|error| panic!("{name} refuses {knobs:?}: {error}"));
            (name, stack)
        })
        .collect()
}

fn outcomes(trace: &dyn TraceSource, stack: &Stack, seed: u64, every: u32) -> Vec<LayerOutcome> {
    let settings = Settings { output_error_every: every };
    let cells = [EvictionCell { stack, seed }];
    let mut all = Vec::new();
    for meta in trace.sequences() {
        for layer in trace.shape().layer_ids() {
            let tensors = trace.layer(meta.seq, layer).unwrap();
            all.extend(replay_layer(trace.shape(), meta, layer, &tensors, &cells, settings).unwrap());
        }
    }
    all
}

/// The most attention that as many tokens as `stack` holds could have, at each step of each (sequence, layer): the
/// largest probabilities, chosen anew with hindsight, summed over query heads. `[sequence x layer][step]`.
fn clairvoyant(trace: &dyn TraceSource, stack: &Stack) -> Vec<Vec<f64>> {
    let shape = trace.shape();
    let mut bounds = Vec::new();
    for meta in trace.sequences() {
        for layer in shape.layer_ids() {
            let tensors = trace.layer(meta.seq, layer).unwrap();
            let mut bound = vec![0.0; (meta.len - meta.prompt_len) as usize];
            for kv in shape.kv_head_ids() {
                let head = PlainHead::of(
                    &RecordedHead::new(&tensors, shape, layer, kv, meta.len).unwrap(),
                    meta.len,
                );
                let due = |moment, stored: u32| stack.is_due(moment, stored);
                let mut stored = meta.prompt_len;
                if due(Moment::PrefillDone, stored) {
                    stored = stack.knobs().capacity;
                }
                for (step, best) in bound.iter_mut().enumerate() {
                    stored += 1;
                    for mut row in naive::attention(&head, meta.prompt_len as usize + step) {
                        row.sort_unstable_by(|a, b| b.total_cmp(a));
                        *best += row.iter().take(stored as usize).sum::<f64>();
                    }
                    if due(Moment::DecodeStep, stored) {
                        stored = stack.knobs().capacity;
                    }
                }
            }
            bounds.push(bound);
        }
    }
    bounds
}

/// What P1 to P3 and P12 ask of one eviction.
fn check_eviction(
    name: &str,
    stack: &Stack,
    head: &dyn HeadData,
    resident: &[Pos],
    seed: u64,
) -> Result<(), TestCaseError> {
    let seen = resident.last().map_or(0, |pos| pos.get() + 1);
    let Knobs { capacity, recent, .. } = *stack.knobs();
    let eviction = stack
        .evict(head, at(seen, 0), resident, capacity, seed)
        .map_err(|error| TestCaseError::fail(format!("{name}: {error}")))?;
    let kept = &eviction.kept;
    let expected = (capacity as usize).min(resident.len());
    prop_assert_eq!(kept.len(), expected, "P1: {} keeps exactly the budget", name);
    let mut sorted = kept.clone();
    sorted.sort_unstable();
    sorted.dedup();
    prop_assert_eq!(sorted.len(), kept.len(), "P2: {} keeps no token twice", name);
    prop_assert!(kept.iter().all(|pos| resident.contains(pos)), "P2: {} keeps resident tokens only", name);
    let tail = (recent as usize).min(kept.len());
    prop_assert_eq!(
        &kept[kept.len() - tail..],
        &resident[resident.len() - tail..],
        "P3: {} keeps recent tokens",
        name
    );
    let sinks = stack.knobs().sinks;
    let expected_sinks = resident.iter().filter(|pos| pos.get() < sinks).count();
    prop_assert_eq!(
        kept.iter().filter(|pos| pos.get() < sinks).count(),
        expected_sinks,
        "P3: {} keeps sinks",
        name
    );
    let again = stack.evict(head, at(seen, 0), resident, capacity, seed);
    prop_assert_eq!(again.as_ref(), Ok(&eviction), "P4: {} decides the same twice", name);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// P1 to P4 on recorded-like data, for any subset of tokens that may be resident.
    #[test]
    fn evictions_keep_the_budget_the_protected_and_nothing_twice(
        spec in synth::tiny_spec(),
        knobs in stacks::knobs(),
        seed in any::<u64>(),
        holes in any::<u64>(),
    ) {
        let trace = synth::build(spec);
        let meta = &trace.sequences()[0];
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let head = RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
        // Sinks and the newest tokens are resident in every cache that a stack leaves behind; others may be gone.
        let newest = meta.len.saturating_sub(knobs.recent + 1);
        let resident: Vec<Pos> = positions(meta.len)
            .into_iter()
            .filter(|pos| pos.get() < knobs.sinks || pos.get() >= newest || holes >> (pos.get() % 64) & 1 == 1)
            .collect();
        for (name, stack) in fitting(&knobs) {
            check_eviction(&name, &stack, &head, &resident, seed)?;
        }
    }

    /// P12: ties, zeros, denormals and one huge value are no reason to break P1 to P4.
    #[test]
    fn degenerate_vectors_change_no_rule(
        knobs in stacks::knobs(),
        len in 1u32..50,
        kind in 0u8..5,
        spike in 0u32..50,
    ) {
        let base = match kind { 0 => 0.0, 1 => 1.0, 2 => f32::MIN_POSITIVE / 8.0, 3 => -1e-20, _ => 3e4 };
        let mut rows = vec![vec![base; 4]; len as usize];
        rows[(spike % len) as usize] = vec![if kind == 4 { -3e4 } else { 1e9 }; 4];
        let head = PlainHead { queries: vec![rows.clone(), rows.clone()], keys: rows.clone(), values: rows };
        for (name, stack) in fitting(&knobs) {
            // Squared norms of 1e9 overflow f32 in a product: then an error is right, and silence is wrong.
            let is_product = name.starts_with("kv-sketch") || name == "vase-dkv";
            if is_product && kind != 4 && len > knobs.capacity {
                let result = stack.evict(&head, at(len, 0), &positions(len), knobs.capacity, 1);
                let honest =
                    matches!(result, Ok(_) | Err(PolicyError::NotANumber { .. } | PolicyError::Contract { .. }));
                prop_assert!(honest, "P12: {}", name);
                continue;
            }
            check_eviction(&name, &stack, &head, &positions(len), 1)?;
        }
    }

    /// P9 and P11: recall is a share, `full` reaches 1, and a budget that is never exceeded is the full cache.
    #[test]
    fn recall_is_bounded_by_the_clairvoyant_choice(spec in synth::tiny_spec(), knobs in stacks::knobs(), seed in any::<u64>()) {
        let trace = synth::build(spec);
        let heads = f64::from(trace.shape().q_heads);
        let longest = trace.sequences().iter().map(|meta| meta.len).max().unwrap();
        let roomy = Knobs { capacity: (longest / knobs.period + 1) * knobs.period + knobs.capacity, ..knobs };
        let roomy = Knobs { capacity: roomy.capacity / knobs.period * knobs.period, ..roomy };
        for (name, build) in stacks::all() {
            let stack = build(&knobs).unwrap();
            for (outcome, bound) in outcomes(&trace, &stack, seed, 3).iter().zip(clairvoyant(&trace, &stack)) {
                for (recall, best) in outcome.recall.iter().zip(&bound) {
                    prop_assert!(*recall >= 0.0 && *recall <= best + 1e-5, "P9: {} recalls {} of {}", name, recall, best);
                    prop_assert!(*best <= heads + 1e-9);
                }
                prop_assert_eq!(outcome.recall.len(), bound.len());
                prop_assert!(outcome.error_sum >= 0.0 && outcome.error_sum.is_finite(), "{}", name);
            }
            for outcome in outcomes(&trace, &build(&roomy).unwrap(), seed, 3) {
                prop_assert!(outcome.evictions.is_empty(), "P11: {} never triggers", name);
                prop_assert!(outcome.recall.iter().all(|r| (r - heads).abs() < 1e-12), "P11: {} keeps everything", name);
                prop_assert!(outcome.error_sum < 1e-4 * heads * (1 + outcome.error_terms) as f64, "P11: {}", name);
            }
        }
    }

    /// Who serves the vectors does not matter: a recording, which shares work between cells, and plain vectors, as the loop of
    /// a model has them, give the same evictions, slot for slot.
    #[test]
    fn a_recording_decides_as_plain_vectors_do(spec in synth::tiny_spec(), knobs in stacks::knobs(), seed in any::<u64>(), holes in any::<u64>()) {
        let trace = synth::build(spec);
        let meta = &trace.sequences()[0];
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let head = RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
        let plain = PlainHead::of(&head, meta.len);
        let newest = meta.len.saturating_sub(knobs.recent + 1);
        let resident: Vec<Pos> =
            positions(meta.len).into_iter().filter(|pos| pos.get() < knobs.sinks || pos.get() >= newest || holes >> (pos.get() % 64) & 1 == 1).collect();
        for (name, stack) in fitting(&knobs) {
            let recorded = stack.evict(&head, at(meta.len, 0), &resident, knobs.capacity, seed);
            prop_assert_eq!(recorded, stack.evict(&plain, at(meta.len, 0), &resident, knobs.capacity, seed), "{}", name);
        }
    }

    /// P8: whoever claims the stack law keeps a superset under a larger budget, from the same resident tokens.
    #[test]
    fn a_larger_budget_keeps_a_superset_where_that_is_claimed(spec in synth::tiny_spec(), knobs in stacks::knobs(), seed in any::<u64>()) {
        let trace = synth::build(spec);
        let meta = &trace.sequences()[0];
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let head = RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
        let larger = Knobs { capacity: knobs.capacity + knobs.period, ..knobs };
        for (name, build) in stacks::all() {
            let (Ok(small), Ok(large)) = (build(&knobs), build(&larger)) else { continue };
            if !small.claims(Law::Stack) || small.value_tokens() != 0 {
                continue;
            }
            let all = positions(meta.len);
            let few = small.evict(&head, at(meta.len, 0), &all, knobs.capacity, seed).unwrap().kept;
            let more = large.evict(&head, at(meta.len, 0), &all, larger.capacity, seed).unwrap().kept;
            prop_assert!(few.iter().all(|pos| more.contains(pos)), "P8: {} {:?} {:?}", name, few, more);
        }
    }

    /// P15: whoever claims head symmetry decides on vectors, not on head numbers.
    #[test]
    fn heads_can_be_permuted_where_that_is_claimed(spec in synth::tiny_spec(), knobs in stacks::knobs(), seed in any::<u64>()) {
        let trace = synth::build(spec);
        let meta = &trace.sequences()[0];
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let head = RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
        for (name, stack) in fitting(&knobs) {
            if stack.claims(Law::HeadSymmetric) {
                let all = positions(meta.len);
                let here = stack.evict(&head, at(meta.len, 0), &all, knobs.capacity, seed);
                let there = stack.evict(&head, at(meta.len, 1), &all, knobs.capacity, seed);
                prop_assert_eq!(here, there, "P15: {}", name);
            }
        }
    }

    /// P13: a stack reads no field that it did not declare.
    #[test]
    fn declared_needs_are_enough(spec in synth::tiny_spec(), knobs in stacks::knobs()) {
        let trace = synth::build(spec);
        let meta = &trace.sequences()[0];
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let head = RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
        for (name, stack) in fitting(&knobs) {
            let watched = WatchedHead::new(&head);
            stack.evict(&watched, at(meta.len, 0), &positions(meta.len), knobs.capacity, 0).unwrap();
            prop_assert_eq!(watched.read().and(stack.needs()), stack.needs(), "P13: {}", name);
        }
    }

    /// The fast scorers agree with slow twins written from the papers.
    #[test]
    fn scorers_agree_with_their_naive_twins(spec in synth::tiny_spec(), pool in prop_oneof![Just(1u32), Just(3), Just(5)], window in 1u32..9) {
        let trace = synth::build(spec);
        let meta = &trace.sequences()[0];
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let recorded = RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
        let plain = PlainHead::of(&recorded, meta.len);
        let resident = positions(meta.len);
        let first = meta.len.saturating_sub(window);
        let view = HeadView { at: at(meta.len, 0), data: &recorded, resident: &resident, recent: 2.min(meta.len as usize), window: first..meta.len };
        let scored: Vec<usize> = view.scored().iter().map(|pos| pos.idx()).collect();
        let draws = Draws::new(0, view.at);
        let score = |kind: &str, params: serde_json::Value| {
            let raw = RawParams::from_params(&params).unwrap();
            let entry = registry::find(registry::SCORES, "score", kind).unwrap();
            let mut out = Vec::new();
            (entry.build)(&raw).unwrap().score(&view, &draws, &mut out).unwrap();
            out
        };
        let compare = |found: Vec<f32>, expected: Vec<f64>, what: &str| {
            for (f, e) in found.iter().zip(&expected) {
                // f32 sums of at most a few dozen terms of size 1: 1e-5 is twenty times their rounding.
                prop_assert!((f64::from(*f) - e).abs() < 1e-5 + 1e-4 * e.abs(), "{}: {} against {}", what, f, e);
            }
            prop_assert_eq!(found.len(), expected.len());
            Ok(())
        };
        let fast = score("window-mass", serde_json::json!({ "window": window, "pool": pool }));
        compare(fast, naive::window_mass(&plain, &scored, first as usize..meta.len as usize, pool as usize), "window-mass")?;
        compare(score("kv-sketch", serde_json::json!({ "rank": 0 })), naive::kv_product(&plain, &scored), "kv-sketch")?;
        compare(score("recency", serde_json::json!({})), scored.iter().map(|&i| i as f64).collect(), "recency")?;
    }

    /// The proxies agree with slow twins: recall and output error of a stack that evicts.
    #[test]
    fn recall_agrees_with_its_naive_twin(spec in synth::tiny_spec(), knobs in stacks::knobs()) {
        let trace = synth::build(spec);
        let (shape, meta) = (trace.shape(), &trace.sequences()[0]);
        let stack = registry::composition("streaming-llm").unwrap().stack(&knobs, &RawParams::default()).unwrap();
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let cells = [EvictionCell { stack: &stack, seed: 0 }];
        let found = replay_layer(shape, meta, LayerIdx::new(0), &tensors, &cells, Settings { output_error_every: 0 }).unwrap();
        let mut expected = vec![0.0; (meta.len - meta.prompt_len) as usize];
        for kv in shape.kv_head_ids() {
            let head = RecordedHead::new(&tensors, shape, LayerIdx::new(0), kv, meta.len).unwrap();
            let plain = PlainHead::of(&head, meta.len);
            let mut resident: Vec<usize> = (0..meta.prompt_len as usize).collect();
            for (step, t) in (meta.prompt_len as usize..meta.len as usize).enumerate() {
                resident.push(t);
                for row in naive::attention(&plain, t) {
                    expected[step] += resident.iter().map(|&i| row[i]).sum::<f64>();
                }
                // Sinks and the newest tokens, whenever a multiple of the period above the budget is stored.
                let stored = resident.len() as u32;
                if stored > knobs.capacity && stored.is_multiple_of(knobs.period) {
                    let sinks = resident.iter().filter(|&&i| (i as u32) < knobs.sinks).count();
                    let newest = resident.split_off(resident.len() - (knobs.capacity as usize - sinks));
                    resident.retain(|&i| (i as u32) < knobs.sinks);
                    resident.extend(newest.into_iter().filter(|i| *i as u32 >= knobs.sinks));
                }
            }
        }
        for (f, e) in found[0].recall.iter().zip(&expected) {
            prop_assert!((f - e).abs() < 1e-5, "{} against {}", f, e);
        }
    }

    /// Exit policies run at least one layer and at most all, and a higher theta never runs more.
    #[test]
    fn exits_stay_within_the_model_and_follow_theta(spec in synth::tiny_spec(), theta in 0.0f64..5.0, more in 0.0f64..2.0, epsilon in 0.0f64..3.0, min_layer in 0u16..3, patience in 1u16..3) {
        let trace = synth::build(spec);
        let layers = trace.shape().layers;
        let rows = trace.lens(SeqIdx::new(0)).unwrap();
        for entry in registry::EXITS {
            let build = |theta: f64| {
                let given = serde_json::json!({ "theta": theta, "epsilon": epsilon, "min_layer": min_layer, "patience": patience });
                let raw = RawParams::from_params(&given).unwrap();
                (entry.build)(&raw).or_else(|_| (entry.build)(&RawParams::default())).unwrap()
            };
            let (low, high) = (build(theta), build(theta + more));
            for position in rows.chunks_exact(usize::from(layers)) {
                let run = low.layers_run(position);
                prop_assert!((1..=layers).contains(&run), "{}", entry.spec.id);
                prop_assert_eq!(run, low.layers_run(position));
                prop_assert!(high.layers_run(position) <= run, "{}: a higher theta ran more", entry.spec.id);
            }
        }
    }
}
