//! Named cases of the contract: golden vectors, invariants of the specification, and faults met elsewhere.

use super::{at, outcomes, plain, positions, tried};
use crate::support::synth;
use kvlab_sim::policy::compose::{Knobs, Part, Reason, Stack, StackSpec};
use kvlab_sim::policy::schedule::Moment;
use kvlab_sim::policy::{Draws, Family, HeadData, HeadView, PolicyError, RawParams, registry};
use kvlab_sim::replay::RecordedHead;
use kvlab_sim::trace::TraceSource;
use kvlab_sim::types::{KvHead, LayerIdx, Pos};

/// P14: parameters survive serialise → parse, and an unknown key is refused with the accepted ones.
#[test]
fn parameters_round_trip_and_unknown_keys_are_refused() {
    let knobs = Knobs { capacity: 64, recent: 16, sinks: 4, period: 16, window: 16 };
    for listed in registry::all() {
        let (family, id) = (listed.spec.family, listed.spec.id);
        let build = |raw: &RawParams| -> Result<serde_json::Value, PolicyError> {
            Ok(match family {
                Family::Score => (registry::find(registry::SCORES, "score", id)?.build)(raw)?.params(),
                Family::Reserve => (registry::find(registry::RESERVES, "reserve", id)?.build)(raw)?.params(),
                Family::Select => (registry::find(registry::SELECTS, "select", id)?.build)(raw)?.params(),
                Family::Budget => (registry::find(registry::BUDGETS, "budget", id)?.build)(raw)?.params(),
                Family::Schedule => {
                    (registry::find(registry::SCHEDULES, "schedule", id)?.build)(raw)?.params()
                }
                Family::Exit => (registry::find(registry::EXITS, "exit", id)?.build)(raw)?.params(),
                Family::Pool => (registry::find(registry::POOLS, "pool", id)?.build)(raw)?.params(),
                Family::Share => (registry::find(registry::SHARES, "share", id)?.build)(raw)?.params(),
                Family::Verify => (registry::find(registry::VERIFIES, "verify", id)?.build)(raw)?.params(),
                Family::Winner => (registry::find(registry::WINNERS, "winner", id)?.build)(raw)?.params(),
                Family::Attend => (registry::find(registry::ATTENDS, "attend", id)?.build)(raw)?.params(),
                Family::Store => (registry::find(registry::STORES, "store", id)?.build)(raw)?.params(),
                Family::Composition => registry::composition(id)?.stack(&knobs, raw)?.params(),
            })
        };
        let report = kvlab_sim::contract::check_params(id, &listed.defaults, &build);
        assert!(report.is_clean(), "{} {report}", family.word());
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

/// Sampling with too few positive weights fills the rest with the most recent candidates, and never picks one twice.
#[test]
fn too_few_positive_weights_are_filled_with_the_most_recent() {
    let select = (registry::find(registry::SELECTS, "select", "weighted-sample").unwrap().build)(
        &RawParams::default(),
    )
    .unwrap();
    let rows = vec![vec![0.0f32; 2]; 6];
    let head = plain(vec![rows.clone()], rows.clone(), rows);
    let resident = positions(6);
    let view = HeadView::new(at(6, 0), &head, &resident, 0, 0..6);
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
    let head = plain(vec![rows.clone()], rows.clone(), rows);
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
    let plain = kvlab_sim::contract::PlainHead::of(&recorded, meta.len);
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
    let head = plain(vec![keys.clone()], keys, values);
    let resident = positions(3);
    let view = HeadView::new(at(3, 0), &head, &resident, 0, 0..3);
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
    assert!(
        matches!(error, PolicyError::BudgetTooSmall { capacity: 16, needed: 20, works: Some(32), .. }),
        "{error}"
    );
    assert!(
        error.to_string().ends_with("20 tokens are needed; the smallest budget that works is 32"),
        "{error}"
    );
    let error = build(40, 16, 4).unwrap_err();
    assert!(
        matches!(error, PolicyError::PeriodMismatch { capacity: 40, period: 16, below: Some(32), above: 48 }),
        "{error}"
    );
    // 16 is the nearest multiple and cannot hold what must stay: it is not offered.
    let error = build(21, 16, 4).unwrap_err();
    assert!(error.to_string().ends_with("tokens; the smallest budget that works is 32"), "{error}");
    let all_due = registry::composition("full").unwrap();
    let knobs = Knobs { capacity: 1, recent: 16, sinks: 4, period: 16, window: 16 };
    let full = all_due.stack(&knobs, &RawParams::default()).unwrap();
    assert!(
        !full.is_due(Moment::DecodeStep, 1_000_000, 1_000_000, 1),
        "the full cache never evicts, whatever the amounts"
    );
}

/// Every budget that an error offers works: a budget of it is tried. What no budget mends is told without one.
#[test]
fn budgets_that_are_offered_work() {
    let mut offered = 0;
    for (id, params) in [
        ("streaming-llm", serde_json::json!({})),
        ("vase-attnv", serde_json::json!({})),
        ("vase-attnv", serde_json::json!({ "value_share": 0.07 })),
        ("vase-attnv", serde_json::json!({ "value_tokens": 9 })),
        ("random", serde_json::json!({ "sinks": 3, "value_share": 0.1 })),
    ] {
        let build = |capacity, recent, sinks, period| {
            let knobs = Knobs { capacity, recent, sinks, period, window: 4 };
            registry::composition(id).unwrap().stack(&knobs, &RawParams::from_params(&params).unwrap())
        };
        for (recent, sinks, period) in [(4, 4, 4), (16, 4, 16), (5, 7, 3), (0, 1, 1), (3, 0, 8)] {
            for capacity in 1..60 {
                let budgets = match build(capacity, recent, sinks, period) {
                    Err(PolicyError::BudgetTooSmall { works, needed, .. }) => {
                        assert!(
                            works.is_some_and(|works| works >= needed && works > capacity),
                            "{id} {params}"
                        );
                        vec![works.unwrap()]
                    }
                    Err(PolicyError::PeriodMismatch { below, above, .. }) => {
                        below.into_iter().chain([above]).collect()
                    }
                    other => {
                        other.unwrap();
                        continue;
                    }
                };
                for budget in budgets {
                    offered += 1;
                    build(budget, recent, sinks, period).unwrap();
                }
            }
        }
    }
    assert!(offered > 300, "{offered}");
    let knobs = Knobs { capacity: 64, recent: 16, sinks: 4, period: 16, window: 16 };
    let few = RawParams::from_params(&serde_json::json!({ "value_tokens": 2 })).unwrap();
    let error = registry::composition("vase-attnv").unwrap().stack(&knobs, &few).unwrap_err();
    assert!(matches!(error, PolicyError::Refused { .. }), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("2 reserved tokens (N_v) cannot hold the 4 sinks")
            && said.contains("whatever the budget"),
        "{said}"
    );
}

/// Parameters that stand beside one another and mean the same thing, or nothing, are refused; so are powers below 0.
#[test]
fn parameters_that_would_be_passed_over_are_refused() {
    let knobs = Knobs { capacity: 64, recent: 16, sinks: 4, period: 16, window: 16 };
    let build = |id: &str, params: serde_json::Value| {
        registry::composition(id).unwrap().stack(&knobs, &RawParams::from_params(&params).unwrap())
    };
    for (id, params, expected) in [
        (
            "vase-attnv",
            serde_json::json!({ "value_tokens": 8, "value_share": 0.5 }),
            "`value_tokens` and `value_share`",
        ),
        (
            "vase-attnv",
            serde_json::json!({ "rest": "top-k", "exponent": 2.0 }),
            "`exponent` is the power of sampling weights",
        ),
        (
            "vase-attnv",
            serde_json::json!({ "exponent": -1.0 }),
            "`exponent` is -1; accepted: a finite number, 0 or more",
        ),
        (
            "attn-range",
            serde_json::json!({ "exponent": -0.5 }),
            "`exponent` is -0.5; accepted: a finite number, 0 or more",
        ),
    ] {
        let error = build(id, params).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for params in [
        serde_json::json!({ "value_tokens": null, "value_share": 0.5 }),
        serde_json::json!({ "value_tokens": 8 }),
        serde_json::json!({ "rest": "top-k", "exponent": 1.0 }),
        serde_json::json!({ "exponent": 0.0 }),
    ] {
        build("vase-attnv", params).unwrap();
    }
}

/// Without reserved slots and sinks AttnV is sampling by attention alone (`attn_sample`): the same draws as a stack of these
/// parts.
#[test]
fn attnv_without_reserve_and_sinks_is_attn_sample() {
    let trace = synth::fixed();
    let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
    let params = RawParams::from_params(&serde_json::json!({ "value_tokens": 0, "sinks": 0 })).unwrap();
    let stack = registry::composition("vase-attnv").unwrap().stack(&knobs, &params).unwrap();
    let score = Part::with("window-mass", &serde_json::json!({ "window": 4 })).unwrap();
    let spec = StackSpec::periodic("parts", Knobs { sinks: 0, ..knobs }, score).unwrap();
    let parts = Stack::checked(StackSpec { select: Part::plain("weighted-sample"), ..spec }).unwrap();
    assert_eq!(outcomes(&trace, &stack, 7, 0), outcomes(&trace, &parts, 7, 0));
    assert_ne!(outcomes(&trace, &stack, 7, 0), outcomes(&trace, &stack, 8, 0));
}

/// After one eviction, no composition with the same sinks, recent buffer and budget has more future attention than the oracle.
#[test]
fn the_oracle_bounds_everything_after_one_eviction() {
    let trace = synth::fixed();
    let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
    let total = |stack: &Stack| -> f64 {
        outcomes(&trace, stack, 3, 0).iter().flat_map(|outcome| &outcome.recall).sum()
    };
    let prefill = |score: &str| {
        let spec = StackSpec::periodic(score, knobs, Part::plain(score)).unwrap();
        Stack::checked(StackSpec { schedule: Part::plain("end-of-prefill"), ..spec }).unwrap()
    };
    let best = total(&prefill("oracle"));
    let mut rivals = 0;
    for score in registry::SCORES {
        let stack = prefill(score.spec.id);
        if stack.needs().rope || stack.needs().output_weights || stack.is_layer_wide() {
            continue;
        }
        let found = total(&stack);
        assert!(found <= best + 1e-6, "{}: {found} above {best}", score.spec.id);
        rivals += usize::from(found < best - 1e-6);
    }
    assert!(rivals > 8, "{rivals} are below");
}

/// What a policy needs and a source does not have is said, with the policy's name; a running model has no future.
#[test]
fn what_is_not_at_hand_is_named() {
    let trace = synth::fixed();
    let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
    for (id, words) in
        [("leverage", "rotary frequencies"), ("expected-attention", "rope.inv_freq"), ("criticalkv", "w_o")]
    {
        let stack = registry::composition(id).unwrap().stack(&knobs, &RawParams::default()).unwrap();
        let failure = tried(&trace, &stack, 0, 0).remove(0).unwrap_err().to_string();
        assert!(failure.contains(words), "{id}: {failure}");
    }
    // Re-rotation turns keys back, so it needs to know how they were turned; without a step to measure it is not asked.
    let rerotate = RawParams::from_params(&serde_json::json!({ "rerotate": true })).unwrap();
    let stack = registry::composition("streaming-llm").unwrap().stack(&knobs, &rerotate).unwrap();
    let failure = tried(&trace, &stack, 0, 1).remove(0).unwrap_err().to_string();
    assert!(failure.contains("rotary frequencies"), "{failure}");
}

/// A prompt that is to be kept whole and does not fit is refused with the numbers, and the cell says so.
#[test]
fn a_prompt_that_does_not_fit_is_refused_with_the_numbers() {
    let trace = synth::fixed();
    let knobs = Knobs { capacity: 16, recent: 8, sinks: 0, period: 8, window: 4 };
    let params = RawParams::from_params(&serde_json::json!({ "keep_prompt": true })).unwrap();
    let stack = registry::composition("random").unwrap().stack(&knobs, &params).unwrap();
    let all = tried(&trace, &stack, 0, 0);
    let failures: Vec<Option<String>> =
        all.iter().map(|outcome| outcome.as_ref().err().map(ToString::to_string)).collect();
    // Prompts of 12, 5 and 30 tokens, two layers each.
    assert_eq!(
        failures.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, true, false, false, true, true]
    );
    assert!(
        failures[0].as_ref().unwrap().contains("12 tokens")
            && failures[0].as_ref().unwrap().contains("8 recent")
    );
}

/// Scores that can be below 0 are no weights: the combination is refused when it is built.
#[test]
fn a_sampler_refuses_scores_that_can_be_negative() {
    let knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };
    let mut refused = Vec::new();
    for score in registry::SCORES {
        let spec = StackSpec::periodic("sampled", knobs, Part::plain(score.spec.id)).unwrap();
        match Stack::checked(StackSpec { select: Part::plain("weighted-sample"), ..spec }) {
            Ok(_) => {}
            Err(PolicyError::Refused { policy: "weighted-sample", reason }) => {
                assert!(reason.contains(score.spec.id), "{reason}");
                refused.push(score.spec.id);
            }
            Err(error) => panic!("{}: {error}", score.spec.id),
        }
    }
    assert_eq!(refused, ["key-diff", "key-norm", "r-kv"]);
}
