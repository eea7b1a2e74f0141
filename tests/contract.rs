//! Properties that every registered policy must have. Registered means tested: nothing is added here by hand.

mod distributions;
mod faults;
mod granularity;
mod named;
mod served;
mod twins;

use crate::support::{naive, synth};
use kvlab_sim::contract::{self, Options, PlainHead};
use kvlab_sim::policy::compose::{Knobs, Stack};
use kvlab_sim::policy::exit::{ExitView, LayerFacts};
use kvlab_sim::policy::{At, PolicyError, RawParams, registry};
use kvlab_sim::replay::{
    EvictionCell, LayerModel, LayerOutcome, RecordedHead, Settings, replay_cells, replay_layer,
};
use kvlab_sim::trace::TraceSource;
use kvlab_sim::types::{KvHead, LayerIdx, Pos, SeqIdx};
use proptest::prelude::*;

fn at(seen: u32, head: u16) -> At {
    let (seq, layer, head) = (SeqIdx::new(0), LayerIdx::new(0), KvHead::new(head));
    At { seq, layer, head, eviction: 0, seen, prompt_len: seen }
}

fn positions(len: u32) -> Vec<Pos> {
    (0..len).map(Pos::new).collect()
}

/// A head with these vectors and nothing known about its model.
fn plain(queries: Vec<Vec<Vec<f32>>>, keys: Vec<Vec<f32>>, values: Vec<Vec<f32>>) -> PlainHead {
    PlainHead { queries, keys, values, ..PlainHead::default() }
}

/// What a stack does to each layer of each sequence, or why it cannot.
fn tried(
    trace: &dyn TraceSource,
    stack: &Stack,
    seed: u64,
    every: u32,
) -> Vec<Result<LayerOutcome, PolicyError>> {
    let settings = Settings { output_error_every: every, ..Settings::default() };
    let cells = [EvictionCell { stack, seed }];
    let (model, mut all) = (LayerModel::default(), Vec::new());
    for meta in trace.sequences() {
        for layer in trace.shape().layer_ids() {
            let tensors = trace.layer(meta.seq, layer).unwrap();
            all.extend(replay_cells(trace.shape(), meta, layer, &tensors, &model, &cells, settings).unwrap());
        }
    }
    all
}

fn outcomes(trace: &dyn TraceSource, stack: &Stack, seed: u64, every: u32) -> Vec<LayerOutcome> {
    tried(trace, stack, seed, every).into_iter().collect::<Result<_, _>>().unwrap()
}

/// Everything registered keeps every law, and every law is looked at.
#[test]
fn the_registry_keeps_the_laws() {
    let subjects = contract::subjects();
    assert!(subjects.len() > registry::SCORES.len() * registry::RESERVES.len());
    let mut cases = std::collections::BTreeMap::<&str, u32>::new();
    let mut broken = String::new();
    for subject in &subjects {
        let report = contract::check(subject, Options { seed: 3, cases: 12 });
        if !report.is_clean() {
            broken += &format!("{report}\n");
        }
        for (law, count) in report.checked {
            *cases.entry(law).or_default() += count;
        }
    }
    assert!(broken.is_empty(), "{broken}");
    let laws: Vec<&str> = cases.keys().copied().collect();
    assert_eq!(laws, ["P1", "P11", "P12", "P13", "P15", "P2", "P3", "P4", "P8", "P9"]);
    assert!(cases.values().all(|count| *count > 200), "{cases:?}");
}

/// Amounts that fit together: the budget is a multiple of the period.
fn knobs() -> impl Strategy<Value = Knobs> {
    (1u32..7, 1u32..5, 0u32..3, 1u32..9).prop_filter_map(
        "the budget must hold what is kept",
        |(recent, multiple, sinks, window)| {
            let capacity = recent * (multiple + 1);
            (recent + sinks.max(1) <= capacity).then_some(Knobs {
                capacity,
                recent,
                sinks,
                period: recent,
                window,
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Who serves the vectors does not matter: a recording, which shares work between cells, and plain vectors, as the loop of
    /// a model has them, give the same evictions, slot for slot.
    #[test]
    fn a_recording_decides_as_plain_vectors_do(spec in synth::tiny_spec(), knobs in knobs(), seed in any::<u64>(), holes in any::<u64>()) {
        let trace = synth::build(spec);
        let meta = &trace.sequences()[0];
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let head = RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
        let plain = PlainHead::of(&head, meta.len);
        let newest = meta.len.saturating_sub(knobs.recent + 1);
        let stays = |pos: &Pos| pos.get() < knobs.sinks || pos.get() >= newest || holes >> (pos.get() % 64) & 1 == 1;
        let resident: Vec<Pos> = positions(meta.len).into_iter().filter(stays).collect();
        for subject in contract::subjects() {
            let Ok(stack) = subject.build(&knobs) else { continue };
            let recorded = stack.evict(&head, at(meta.len, 0), &resident, knobs.capacity, seed);
            prop_assert_eq!(recorded, stack.evict(&plain, at(meta.len, 0), &resident, knobs.capacity, seed), "{}", subject.name());
        }
    }

    /// The proxies agree with slow twins: recall and output error of a stack that evicts.
    #[test]
    fn recall_agrees_with_its_naive_twin(spec in synth::tiny_spec(), knobs in knobs()) {
        let trace = synth::build(spec);
        let (shape, meta) = (trace.shape(), &trace.sequences()[0]);
        let stack = registry::composition("streaming-llm").unwrap().stack(&knobs, &RawParams::default()).unwrap();
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let cells = [EvictionCell { stack: &stack, seed: 0 }];
        let found = replay_layer(shape, meta, LayerIdx::new(0), &tensors, &cells, Settings { output_error_every: 0, ..Settings::default() }).unwrap();
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
        let facts: Vec<LayerFacts> = trace.lens(SeqIdx::new(0)).unwrap().iter().map(LayerFacts::from).collect();
        for entry in registry::EXITS {
            let build = |theta: f64| {
                let given = serde_json::json!({ "theta": theta, "epsilon": epsilon, "min_layer": min_layer, "patience": patience });
                let raw = RawParams::from_params(&given).unwrap();
                (entry.build)(&raw).or_else(|_| (entry.build)(&RawParams::default()))
            };
            let (Ok(low), Ok(high)) = (build(theta), build(theta + more)) else { continue };
            for position in facts.chunks_exact(usize::from(layers)) {
                let position = &ExitView::of(position, trace.shape().vocab);
                let run = low.layers_run(position);
                prop_assert!((1..=layers).contains(&run), "{}", entry.spec.id);
                prop_assert_eq!(run, low.layers_run(position));
                prop_assert!(high.layers_run(position) <= run, "{}: a higher theta ran more", entry.spec.id);
            }
        }
    }
}
