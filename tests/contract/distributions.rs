//! Samplers against the distributions that they claim. Seeds are fixed, so each test gives the same figures every time; the
//! failure rate stated is that over random seeds, if the sampler is right.

use super::{at, plain, positions};
use crate::support::synth;
use kvlab_sim::policy::compose::{Knobs, Reason};
use kvlab_sim::policy::{At, Draws, HeadView, RawParams, registry};
use kvlab_sim::replay::RecordedHead;
use kvlab_sim::trace::TraceSource;
use kvlab_sim::types::{KvHead, LayerIdx};

/// How often each of four candidates is among two drawn, over `evictions` evictions.
fn inclusion(weights: [f32; 4], exponent: f64, evictions: u32) -> [f64; 4] {
    let raw = RawParams::from_params(&serde_json::json!({ "exponent": exponent })).unwrap();
    let select =
        (registry::find(registry::SELECTS, "select", "weighted-sample").unwrap().build)(&raw).unwrap();
    let rows = vec![vec![0.0f32; 2]; 4];
    let head = plain(vec![rows.clone()], rows.clone(), rows);
    let resident = positions(4);
    let mut counts = [0u32; 4];
    for eviction in 0..evictions {
        let here = At { eviction, ..at(4, 0) };
        let view = HeadView::new(here, &head, &resident, 0, 0..4);
        let chosen = select.select(&view, &weights, &[0, 1, 2, 3], 2, &Draws::new(5, here)).unwrap();
        chosen.slots.iter().for_each(|&slot| counts[slot] += 1);
    }
    counts.map(|count| f64::from(count) / f64::from(evictions))
}

/// Inclusion probabilities of two sequential draws without replacement, summed over all ordered pairs.
fn exact(weights: [f64; 4]) -> [f64; 4] {
    let total: f64 = weights.iter().sum();
    let mut probability = [0.0; 4];
    for i in 0..4 {
        for j in (0..4).filter(|j| *j != i) {
            let pair = weights[i] / total * weights[j] / (total - weights[i]);
            probability[i] += pair;
            probability[j] += pair;
        }
    }
    probability
}

/// Golden vector G7, and the same draws by hand. 20,000 evictions: each frequency has a standard error below 0.0036, five of
/// them are allowed, and four frequencies are looked at: failure rate below 3e-6.
#[test]
fn sampling_without_replacement_has_the_golden_inclusion_probabilities() {
    let by_hand = exact([0.5, 0.3, 0.15, 0.05]);
    for (found, expected) in by_hand.iter().zip([0.828_837, 0.668_731, 0.372_180, 0.130_252]) {
        assert!((found - expected).abs() < 1e-6);
    }
    for (found, expected) in inclusion([0.5, 0.3, 0.15, 0.05], 1.0, 20_000).iter().zip(by_hand) {
        assert!((found - expected).abs() < 0.018, "{found} against {expected}");
    }
}

/// Weights to the power ½, 2 and 0 (uniform): twelve frequencies as above, failure rate below 8e-6.
#[test]
fn the_exponent_is_a_power_of_the_weights() {
    let weights = [0.5f64, 0.3, 0.15, 0.05];
    for exponent in [0.5, 2.0, 0.0] {
        let expected = exact(weights.map(|w| w.powf(exponent)));
        let found = inclusion([0.5, 0.3, 0.15, 0.05], exponent, 20_000);
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 0.018, "exponent {exponent}: {f} against {e}");
        }
    }
}

/// Random eviction and random reservation draw every candidate equally often. 70 tokens, of which 4 are recent: a budget of 20
/// keeps 16 of 66, so p = 0.2424; 4,000 evictions give a standard error of 0.0068, and five of them are allowed over 132
/// frequencies: failure rate below 8e-5.
#[test]
fn random_policies_draw_every_candidate_equally_often() {
    let trace = synth::fixed();
    let meta = &trace.sequences()[0];
    let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
    let head =
        RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), meta.len).unwrap();
    let knobs = Knobs { capacity: 20, recent: 4, sinks: 0, period: 4, window: 4 };
    let reserve = serde_json::json!({ "value_tokens": 16, "reserved": "random", "sinks": 0 });
    for (id, params, wanted) in
        [("random", serde_json::json!({}), Reason::Selected), ("vase-attnv", reserve, Reason::Reserved)]
    {
        let stack = registry::composition(id)
            .unwrap()
            .stack(&knobs, &RawParams::from_params(&params).unwrap())
            .unwrap();
        let mut counts = [0u32; 66];
        for eviction in 0..4000 {
            let here = At { eviction, ..at(meta.len, 0) };
            let outcome = stack.evict(&head, here, &positions(meta.len), 20, 9).unwrap();
            for (pos, reason) in outcome.kept.iter().zip(&outcome.reasons) {
                if *reason == wanted {
                    counts[pos.idx()] += 1;
                }
            }
        }
        assert_eq!(counts.iter().sum::<u32>(), 16 * 4000, "{id}");
        for (pos, count) in counts.iter().enumerate() {
            let found = f64::from(*count) / 4000.0;
            assert!((found - 16.0 / 66.0).abs() < 0.034, "{id}: position {pos} is kept in {found}");
        }
    }
}
