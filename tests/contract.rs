//! Properties that every registered policy must have. Registered means tested: nothing is added here by hand.

use crate::support::heads::{PlainHead, WatchedHead};
use crate::support::{naive, stacks, synth};
use kvlab_sim::policy::compose::{Knobs, Reason, Stack};
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

/// P14: parameters survive serialise → parse, and an unknown key is refused with the accepted ones.
#[test]
fn parameters_round_trip_and_unknown_keys_are_refused() {
    let knobs = Knobs { capacity: 64, recent: 16, sinks: 4, period: 16, window: 16 };
    for (spec, defaults) in registry::all() {
        let build = |raw: &RawParams| -> Result<serde_json::Value, PolicyError> {
            use kvlab_sim::policy::Family;
            Ok(match spec.family {
                Family::Score => (registry::find(registry::SCORES, "score", spec.id)?.build)(raw)?.params(),
                Family::Reserve => {
                    (registry::find(registry::RESERVES, "reserve", spec.id)?.build)(raw)?.params()
                }
                Family::Select => {
                    (registry::find(registry::SELECTS, "select", spec.id)?.build)(raw)?.params()
                }
                Family::Budget => {
                    (registry::find(registry::BUDGETS, "budget", spec.id)?.build)(raw)?.params()
                }
                Family::Schedule => {
                    (registry::find(registry::SCHEDULES, "schedule", spec.id)?.build)(raw)?.params()
                }
                Family::Exit => (registry::find(registry::EXITS, "exit", spec.id)?.build)(raw)?.params(),
                Family::Composition => registry::composition(spec.id)?.stack(&knobs, raw)?.params(),
            })
        };
        let from_defaults = build(&RawParams::from_params(&defaults).unwrap()).unwrap();
        assert_eq!(
            from_defaults,
            build(&RawParams::default()).unwrap(),
            "{} {}",
            spec.family.word(),
            spec.id
        );
        let mut wrong = defaults.as_object().unwrap().clone();
        wrong.insert("no_such_key".to_owned(), 1.into());
        let error = build(&RawParams::from_params(&wrong).unwrap()).unwrap_err();
        assert!(error.to_string().contains("no_such_key"), "{}: {error}", spec.id);
    }
}

/// The invariants at the end of the policy specification: with N_v = K nothing is drawn, so AttnV is pure range.
#[test]
fn attnv_with_all_slots_reserved_is_pure_range() {
    let trace = synth::fixed();
    let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
    let params = RawParams::from_params(&serde_json::json!({ "value_tokens": 12 })).unwrap();
    let stack = registry::composition("vase-attnv").unwrap().stack(&knobs, &params).unwrap();
    assert_eq!(outcomes(&trace, &stack, 1, 0), outcomes(&trace, &stack, 2, 0));
    let meta = &trace.sequences()[0];
    let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
    let head =
        RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
    let eviction = stack.evict(&head, at(meta.len, 0), &positions(meta.len), 16, 1).unwrap();
    let count = |reason| eviction.reasons.iter().filter(|r| **r == reason).count();
    let counts = [Reason::Sink, Reason::Reserved, Reason::Selected, Reason::Recent].map(count);
    assert_eq!(counts, [2, 10, 0, 4]);
    let narrowest = eviction.kept[2..12].iter().map(|pos| head.ranges()[pos.idx()]).fold(f32::MAX, f32::min);
    let dropped = (2..meta.len - 4).map(Pos::new).filter(|pos| !eviction.kept.contains(pos));
    assert!(dropped.map(|pos| head.ranges()[pos.idx()]).all(|range| range <= narrowest));
}

/// Golden vector G7: inclusion probabilities of two draws without replacement from weights [0.5, 0.3, 0.15, 0.05].
///
/// 20,000 evictions on a fixed seed; each frequency has a standard error below 0.0036, and five of them are allowed.
/// On a fixed seed the outcome is fixed; over random seeds this fails with probability below 3e-6.
#[test]
fn sampling_without_replacement_has_the_golden_inclusion_probabilities() {
    let select = (registry::find(registry::SELECTS, "select", "weighted-sample").unwrap().build)(
        &RawParams::default(),
    )
    .unwrap();
    let rows = vec![vec![0.0f32; 2]; 4];
    let head = PlainHead { queries: vec![rows.clone()], keys: rows.clone(), values: rows };
    let resident = positions(4);
    let mut counts = [0u32; 4];
    for eviction in 0..20_000 {
        let here = At { eviction, ..at(4, 0) };
        let view = HeadView { at: here, data: &head, resident: &resident, recent: 0, window: 0..4 };
        let chosen =
            select.select(&view, &[0.5, 0.3, 0.15, 0.05], &[0, 1, 2, 3], 2, &Draws::new(5, here)).unwrap();
        chosen.slots.iter().for_each(|&slot| counts[slot] += 1);
    }
    for (count, expected) in counts.iter().zip([0.828_837, 0.668_731, 0.372_180, 0.130_252]) {
        let found = f64::from(*count) / 20_000.0;
        assert!((found - expected).abs() < 0.018, "{found} against {expected}");
    }
}

/// Sampling with too few positive weights fills the rest with the most recent candidates, and never picks one twice.
#[test]
fn too_few_positive_weights_are_filled_with_the_most_recent() {
    let select = (registry::find(registry::SELECTS, "select", "weighted-sample").unwrap().build)(
        &RawParams::default(),
    )
    .unwrap();
    let rows = vec![vec![0.0f32; 2]; 6];
    let head = PlainHead { queries: vec![rows.clone()], keys: rows.clone(), values: rows };
    let resident = positions(6);
    let view = HeadView { at: at(6, 0), data: &head, resident: &resident, recent: 0, window: 0..6 };
    let draws = Draws::new(0, view.at);
    let all = [0, 1, 2, 3, 4, 5];
    let chosen = |scores: &[f32]| select.select(&view, scores, &all, 3, &draws).unwrap().slots;
    assert_eq!(chosen(&[0.0; 6]), [5, 4, 3], "no weight at all: recency");
    assert_eq!(chosen(&[0.0, 0.7, 0.0, 0.0, 0.0, 0.0]), [1, 5, 4]);
    assert!(select.select(&view, &[-1.0, 0.0, 0.0, 0.0, 0.0, 0.0], &all, 3, &draws).is_err());
}

/// A score that is no number stops the eviction, with its place.
#[test]
fn a_nan_is_an_error_that_names_the_place() {
    let mut rows = vec![vec![1.0f32; 2]; 12];
    rows[3][1] = f32::NAN;
    let head = PlainHead { queries: vec![rows.clone()], keys: rows.clone(), values: rows };
    let knobs = Knobs { capacity: 8, recent: 2, sinks: 0, period: 2, window: 2 };
    for id in ["vase-dkv", "snapkv", "vase-attnv"] {
        let stack = registry::composition(id).unwrap().stack(&knobs, &RawParams::default()).unwrap();
        let error = stack.evict(&head, at(12, 0), &positions(12), 8, 0).unwrap_err();
        assert!(matches!(error, PolicyError::NotANumber { .. }), "{id}: {error}");
        assert!(error.to_string().contains("layer 0"), "{error}");
    }
}

/// A replay serves logits from rows that cells share; they are the bits that a plain head computes.
#[test]
fn shared_logits_are_the_bits_of_a_plain_head() {
    let trace = synth::fixed();
    let meta = &trace.sequences()[0];
    let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
    let recorded =
        RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(1), meta.len).unwrap();
    let plain = PlainHead::of(&recorded, meta.len);
    let keys: Vec<Pos> = [3, 0, 40, 17, 5].map(Pos::new).to_vec();
    for (member, query) in [(0, 17), (1, 17), (1, 69), (0, 2)] {
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        recorded.logits(member, Pos::new(query), &keys, &mut found);
        plain.logits(member, Pos::new(query), &keys, &mut expected);
        assert_eq!(
            found.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
    }
}

/// Golden vector G9: keys [[1,0],[0,2],[1,1]], values [[1,1],[0,1],[2,0]] without a sketch.
#[test]
fn the_kv_product_has_the_golden_scores() {
    let keys = vec![vec![1.0f32, 0.0], vec![0.0, 2.0], vec![1.0, 1.0]];
    let values = vec![vec![1.0f32, 1.0], vec![0.0, 1.0], vec![2.0, 0.0]];
    let head = PlainHead { queries: vec![keys.clone()], keys, values };
    let resident = positions(3);
    let view = HeadView { at: at(3, 0), data: &head, resident: &resident, recent: 0, window: 0..3 };
    let raw = RawParams::from_params(&serde_json::json!({ "rank": 0 })).unwrap();
    let score = (registry::find(registry::SCORES, "score", "kv-sketch").unwrap().build)(&raw).unwrap();
    let mut out = Vec::new();
    score.score(&view, &Draws::new(0, view.at), &mut out).unwrap();
    for (found, expected) in out.iter().zip([0.142_857, 0.285_714, 0.571_429]) {
        assert!((found - expected).abs() < 1e-6);
    }
}

/// Amounts that cannot work are refused with the numbers.
#[test]
fn a_budget_smaller_than_what_must_be_kept_is_refused_with_the_numbers() {
    let build = |capacity, recent, sinks| {
        let knobs = Knobs { capacity, recent, sinks, period: recent, window: recent };
        registry::composition("streaming-llm").unwrap().stack(&knobs, &RawParams::default())
    };
    assert!(build(32, 16, 4).is_ok());
    let error = build(16, 16, 4).unwrap_err();
    assert!(matches!(error, PolicyError::BudgetTooSmall { capacity: 16, needed: 20, .. }), "{error}");
    let error = build(40, 16, 4).unwrap_err();
    assert!(
        matches!(error, PolicyError::PeriodMismatch { capacity: 40, period: 16, below: 32, above: 48 }),
        "{error}"
    );
    let all_due = registry::composition("full").unwrap();
    let knobs = Knobs { capacity: 1, recent: 16, sinks: 4, period: 16, window: 16 };
    let full = all_due.stack(&knobs, &RawParams::default()).unwrap();
    assert!(!full.is_due(Moment::DecodeStep, 1_000_000), "the full cache never evicts, whatever the amounts");
}
