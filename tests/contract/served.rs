//! Cells whose queries read something else than every resident token as it was made, against slow twins: `attend`, `store`,
//! re-rotation; and the errors after the output matrix.

use super::{outcomes, positions};
use crate::support::{naive, synth};
use kvlab_sim::contract::{self, Options, PlainHead};
use kvlab_sim::policy::attend::gate_file::Gates;
use kvlab_sim::policy::attend::seer_gate::{self, GateWeights, SeerGate};
use kvlab_sim::policy::compose::{Knobs, Part, Places, Stack, StackSpec};
use kvlab_sim::policy::{HeadData, PolicyError, RawParams, registry};
use kvlab_sim::replay::{
    EvictionCell, HeadModel, LayerModel, LayerOutcome, RecordedHead, Settings, replay_cells,
};
use kvlab_sim::rope::Rope;
use kvlab_sim::trace::{KeyState, RopeInfo, TraceSource};
use kvlab_sim::types::{KvHead, LayerIdx, Pos};
use ndarray::Array3;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};

const KNOBS: Knobs = Knobs { capacity: 16, recent: 4, sinks: 2, period: 4, window: 4 };

fn part(kind: &str, params: serde_json::Value) -> Part {
    Part::with(kind, &params).unwrap()
}

fn keeping(attend: Part, store: Part) -> Stack {
    let spec = StackSpec::keeping_all("all", KNOBS).unwrap();
    Stack::checked(StackSpec { attend, store, ..spec }).unwrap()
}

fn replay(
    trace: &dyn TraceSource,
    model: &LayerModel<'_>,
    stack: &Stack,
    settings: Settings,
) -> Result<LayerOutcome, PolicyError> {
    let (layer, meta) = (LayerIdx::new(0), &trace.sequences()[0]);
    let tensors = trace.layer(meta.seq, layer).unwrap();
    let cells = [EvictionCell { stack, seed: 0 }];
    replay_cells(trace.shape(), meta, layer, &tensors, model, &cells, settings).unwrap().remove(0)
}

/// The heads of the first layer of the first sequence.
fn heads(trace: &dyn TraceSource) -> Vec<PlainHead> {
    let (layer, meta) = (LayerIdx::new(0), &trace.sequences()[0]);
    let tensors = trace.layer(meta.seq, layer).unwrap();
    let of = |head| {
        PlainHead::of(&RecordedHead::new(&tensors, trace.shape(), layer, head, meta.len).unwrap(), meta.len)
    };
    trace.shape().kv_head_ids().map(of).collect()
}

const EVERY_STEP: Settings =
    Settings { output_error_every: 1, next_token_every: 0, bytes_per_scalar: 2, block_tokens: 16 };

fn relative(found: &[f64], expected: &[f64]) -> f64 {
    let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
    let apart: Vec<f64> = found.iter().zip(expected).map(|(f, e)| f - e).collect();
    if square(expected) > 0.0 { (square(&apart) / square(expected)).sqrt() } else { 0.0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Quest: pages by their bounds, exact attention over the tokens in them, written down once more in f64.
    #[test]
    fn quest_replays_as_its_naive_twin(spec in synth::tiny_spec(), page in 1usize..6, pages in 1usize..4) {
        let trace = synth::build(spec);
        let params = serde_json::json!({ "tokens": page * pages, "page": page, "least_pages": 1, "dense_layers": 0 });
        let stack = keeping(part("quest", params), Part::plain("exact"));
        let found = replay(&trace, &LayerModel::default(), &stack, EVERY_STEP).unwrap();
        let meta = &trace.sequences()[0];
        let (mut recall, mut error, mut attended) = (Vec::new(), 0.0, 0);
        for t in meta.prompt_len as usize..meta.len as usize {
            let mut step = 0.0;
            for head in heads(&trace) {
                for member in 0..head.queries.len() {
                    let chosen = naive::quest(&head, member, t, page, pages);
                    let full = &naive::attention(&head, t)[member];
                    step += chosen.iter().map(|&i| full[i]).sum::<f64>();
                    let all: Vec<usize> = (0..=t).collect();
                    let [part, whole] = [&chosen, &all].map(|slots| naive::output(&head, &head.keys, &head.values, member, t, slots));
                    error += relative(&part, &whole);
                    attended += chosen.len() as u64;
                }
            }
            recall.push(step);
        }
        prop_assert_eq!(found.recall.len(), recall.len());
        for (f, e) in found.recall.iter().zip(&recall) {
            prop_assert!((f - e).abs() < 1e-4, "recall {} against {}", f, e);
        }
        prop_assert!((found.error_sum - error).abs() < 1e-3 * (1.0 + error), "{} against {}", found.error_sum, error);
        let reading = found.reading.unwrap();
        prop_assert_eq!(reading.attended, attended);
        // Memory is the full cache and two keys a page; channels count two bytes.
        let (heads, width) = (u64::from(trace.shape().kv_heads), u64::from(trace.shape().head_dim));
        let held: Vec<u64> = (u64::from(meta.prompt_len)..=u64::from(meta.len))
            .map(|n| heads * width * 16 * 2 * (n + n.div_ceil(page as u64)))
            .collect();
        prop_assert_eq!(reading.held_bits, held);
    }

    /// Integers: what a query reads is the rounded past and its own token as it was made; an eviction of the oldest goes
    /// with it.
    #[test]
    fn stored_integers_replay_as_their_naive_twin(spec in synth::tiny_spec(), bits in prop_oneof![Just(2u8), Just(4), Just(8)], group in 1usize..6, evicts in any::<bool>()) {
        let trace = synth::build(spec);
        let spec = if evicts {
            StackSpec::periodic("oldest out", KNOBS, Part::plain("recency")).unwrap()
        } else {
            StackSpec::keeping_all("all", KNOBS).unwrap()
        };
        let store = part("per-token-int", serde_json::json!({ "bits": bits, "group": group }));
        let stack = Stack::checked(StackSpec { store, ..spec }).unwrap();
        let found = replay(&trace, &LayerModel::default(), &stack, EVERY_STEP).unwrap();
        let meta = &trace.sequences()[0];
        let (mut error, mut key_error, mut value_error, mut tokens) = (0.0, 0.0, 0.0, 0u64);
        for head in heads(&trace) {
            let round = |rows: &[Vec<f32>]| -> Vec<Vec<f32>> {
                rows.iter().map(|row| naive::rounded(row, bits, group)).collect()
            };
            let (keys, values) = (round(&head.keys), round(&head.values));
            let mut resident: Vec<usize> = (0..meta.prompt_len as usize).collect();
            for t in meta.prompt_len as usize..meta.len as usize {
                resident.push(t);
                let (mut seen_keys, mut seen_values) = (keys.clone(), values.clone());
                seen_keys[t].clone_from(&head.keys[t]);
                seen_values[t].clone_from(&head.values[t]);
                let all: Vec<usize> = (0..=t).collect();
                for member in 0..head.queries.len() {
                    let kept = naive::output(&head, &seen_keys, &seen_values, member, t, &resident);
                    error += relative(&kept, &naive::output(&head, &head.keys, &head.values, member, t, &all));
                }
                if evicts && resident.len() > 16 && resident.len().is_multiple_of(4) {
                    let newest = resident.split_off(resident.len() - 14);
                    resident.retain(|i| *i < 2);
                    resident.extend(newest.into_iter().filter(|i| *i >= 2));
                }
            }
            let lost = |rounded: &[f32], made: &[f32]| {
                let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
                relative(&wide(rounded), &wide(made))
            };
            for &i in &resident {
                key_error += lost(&keys[i], &head.keys[i]);
                value_error += lost(&values[i], &head.values[i]);
                tokens += 1;
            }
        }
        prop_assert!((found.error_sum - error).abs() < 2e-3 * (1.0 + error), "{} against {}", found.error_sum, error);
        let reading = found.reading.unwrap();
        prop_assert_eq!(reading.stored_tokens, tokens);
        prop_assert!((reading.key_error_sum - key_error).abs() < 1e-4 * (1.0 + key_error));
        prop_assert!((reading.value_error_sum - value_error).abs() < 1e-4 * (1.0 + value_error));
        // A vector takes its bits, and two half floats a group of channels.
        let width = u64::from(trace.shape().head_dim);
        let vector = u64::from(bits) * width + width.div_ceil(group as u64) * 32;
        let last = *reading.held_bits.last().unwrap();
        let before_eviction = if evicts { last >= 2 * vector * tokens } else { last == 2 * vector * tokens };
        prop_assert!(before_eviction, "{} bits of {} tokens of {}", last, tokens, 2 * vector);
    }

    /// The error after the output matrix sums what the heads write before it takes a norm, and cells do not feel one another.
    #[test]
    fn projected_errors_agree_with_their_naive_twin(spec in synth::tiny_spec(), seed in any::<u64>()) {
        let trace = synth::build(spec);
        let shape = *trace.shape();
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f32::from(u16::try_from(state >> 48).unwrap()) / 32_768.0 - 1.0
        };
        let dims = (7, usize::from(shape.q_heads), usize::from(shape.head_dim));
        let w_o = Array3::from_shape_simple_fn(dims, &mut draw);
        let model = LayerModel { rope: None, w_o: Some(w_o.clone()) };
        let stacks: Vec<Stack> = ["full", "streaming-llm", "random", "h2o", "kv-int4"]
            .iter()
            .map(|id| registry::composition(id).unwrap().stack(&KNOBS, &RawParams::default()).unwrap())
            .collect();
        let (layer, meta) = (LayerIdx::new(0), &trace.sequences()[0]);
        let tensors = trace.layer(meta.seq, layer).unwrap();
        let settings = Settings { output_error_every: 2, next_token_every: 4, bytes_per_scalar: 2, block_tokens: 16 };
        let run = |cells: &[EvictionCell<'_>]| -> Vec<LayerOutcome> {
            let outcomes = replay_cells(&shape, meta, layer, &tensors, &model, cells, settings).unwrap();
            outcomes.into_iter().map(Result::unwrap).collect()
        };
        let cells: Vec<EvictionCell<'_>> = stacks.iter().map(|stack| EvictionCell { stack, seed: 1 }).collect();
        let together = run(&cells);
        for (cell, found) in cells.iter().zip(&together) {
            prop_assert_eq!(&run(&[*cell])[0], found, "alone and in company");
        }
        prop_assert!(together[0].projected.iter().all(|sample| sample.error.abs() < 1e-300), "the full cache changes nothing");
        // The oldest go: what each sampled step writes, in f64.
        let heads = heads(&trace);
        let mut resident: Vec<usize> = (0..meta.prompt_len as usize).collect();
        let mut expected = Vec::new();
        for t in meta.prompt_len as usize..meta.len as usize {
            resident.push(t);
            let step = t - meta.prompt_len as usize;
            if step.is_multiple_of(2) {
                let all: Vec<usize> = (0..=t).collect();
                let (mut apart, mut whole) = (vec![0.0; 7], vec![0.0; 7]);
                for (kv, head) in heads.iter().enumerate() {
                    for member in 0..head.queries.len() {
                        let [kept, full] = [&resident, &all].map(|slots| naive::output(head, &head.keys, &head.values, member, t, slots));
                        let q = kv * head.queries.len() + member;
                        for row in 0..7 {
                            for c in 0..kept.len() {
                                apart[row] += f64::from(w_o[[row, q, c]]) * (kept[c] - full[c]);
                                whole[row] += f64::from(w_o[[row, q, c]]) * full[c];
                            }
                        }
                    }
                }
                let zero = vec![0.0; 7];
                let size = relative(&zero, &whole);
                let plus: Vec<f64> = apart.iter().zip(&whole).map(|(a, w)| a + w).collect();
                expected.push((step, if size > 0.0 { relative(&plus, &whole) } else { 0.0 }, apart));
            }
            if resident.len() > 16 && resident.len().is_multiple_of(4) {
                let newest = resident.split_off(resident.len() - 14);
                resident.retain(|i| *i < 2);
                resident.extend(newest.into_iter().filter(|i| *i >= 2));
            }
        }
        prop_assert_eq!(together[1].projected.len(), expected.len());
        for (found, (step, error, apart)) in together[1].projected.iter().zip(&expected) {
            prop_assert_eq!(found.step as usize, *step);
            prop_assert!((found.error - error).abs() < 1e-3 * (1.0 + error), "step {}: {} against {}", step, found.error, error);
            prop_assert!(found.delta.is_empty() || step.is_multiple_of(4));
            for (f, e) in found.delta.iter().zip(apart) {
                prop_assert!((f64::from(*f) - e).abs() < 1e-4 * (1.0 + e.abs()), "step {}: {} against {}", step, f, e);
            }
        }
    }
}

/// Everything registered keeps the laws of its family, and every law is looked at.
#[test]
fn attend_and_store_policies_keep_their_laws() {
    let reports = contract::check_selections(Options { seed: 1, cases: 40 }).unwrap();
    // All but the gate, which has no weights.
    assert_eq!(reports.len(), registry::ATTENDS.len() - 1 + registry::STORES.len());
    let mut laws = std::collections::BTreeSet::new();
    for report in reports {
        assert!(report.is_clean(), "{report}");
        laws.extend(report.checked.iter().map(|(law, _)| *law));
    }
    assert_eq!(laws.into_iter().collect::<Vec<_>>(), ["A1", "A2", "P12", "P13", "P15", "P4", "S1", "S2"]);
}

/// The true attention is the best choice of so many tokens, so no selection of as many recalls more.
#[test]
fn the_oracles_bound_quest_at_equal_attended_tokens() {
    let trace = synth::fixed();
    let total = |attend: Part| -> (f64, u64) {
        let stack = keeping(attend, Part::plain("exact"));
        let all = outcomes(&trace, &stack, 0, 0);
        let recall = all.iter().flat_map(|outcome| &outcome.recall).sum();
        (recall, all.iter().map(|outcome| outcome.reading.as_ref().unwrap().attended).sum())
    };
    let params = |block: &str| {
        let mut params = serde_json::json!({ "tokens": 12, "granularity": "query-head" });
        params[block] = 4.into();
        params
    };
    let mut quest = params("page");
    (quest["dense_layers"], quest["least_pages"]) = (0.into(), 1.into());
    let (quest, quest_tokens) = total(part("quest", quest));
    let (block, block_tokens) = total(part("oracle-block", params("block")));
    let (token, token_tokens) =
        total(part("oracle-top-k", serde_json::json!({ "tokens": 12, "granularity": "query-head" })));
    assert!(quest < block && block < token, "{quest} {block} {token}");
    assert!(quest_tokens <= token_tokens && block_tokens <= token_tokens);
}

/// A value that was stored in integers because wider ones were there stays so when they are gone.
#[test]
fn what_was_stored_in_integers_does_not_come_back() {
    let values: Vec<Vec<f32>> = [9.0f32, 8.0, 1.3, 1.7].iter().map(|x| vec![-x, 0.3 * x, *x]).collect();
    let head = PlainHead {
        queries: vec![values.clone()],
        keys: values.clone(),
        values: values.clone(),
        ..PlainHead::default()
    };
    let store = part("mixed", serde_json::json!({ "value_tokens": 2, "bits": 2 }));
    let stack = keeping(Part::plain("full"), store);
    let mut state = stack.start(kvlab_sim::types::SeqIdx::new(0), LayerIdx::new(0), KvHead::new(0), 3);
    let changed = stack.hold(&head, &mut state).unwrap();
    assert_eq!(changed.len(), 3, "every token is stored in something else than it was made in");
    assert_ne!(state.held(2).value, state.held(0).value, "two of three values stay in half floats");
    state.store(Pos::new(3));
    let changed = stack.hold(&head, &mut state).unwrap();
    assert_eq!(changed.iter().map(|(pos, _)| pos.get()).collect::<Vec<_>>(), [3], "the new token only");
    assert_eq!(state.held(3), state.held(2));
}

/// Where kept tokens are neighbours, distances do not change and re-rotation changes nothing; with sinks it does.
#[test]
fn re_rotation_matters_where_distances_change() {
    let trace = synth::fixed();
    let info = RopeInfo {
        style: "rotate-half".to_owned(),
        theta: 10_000.0,
        scaling: None,
        keys: KeyState::PostRope,
        inv_freq: Some(vec![1.0, 0.3, 0.09, 0.02]),
        attention_scaling: None,
    };
    let rope = Rope::new(&info).unwrap();
    let model = LayerModel { rope: Some(&rope), w_o: None };
    let error = |sinks: u32, places: Places| {
        let knobs = Knobs { sinks, ..KNOBS };
        let spec = StackSpec::periodic("window", knobs, Part::plain("recency")).unwrap();
        let stack = Stack::checked(StackSpec { places, ..spec }).unwrap();
        let outcome = replay(&trace, &model, &stack, EVERY_STEP).unwrap();
        (outcome.error_sum, outcome.evictions, outcome.recall)
    };
    let (plain, turned) = (error(0, Places::Original), error(0, Places::Cache));
    assert!((plain.0 - turned.0).abs() < 1e-3 * plain.0, "{} against {}", plain.0, turned.0);
    assert_eq!((&plain.1, &plain.2.len()), (&turned.1, &turned.2.len()), "kept sets are the same");
    let (plain, turned) = (error(2, Places::Original), error(2, Places::Cache));
    assert!((plain.0 - turned.0).abs() > 1e-2 * plain.0, "{} against {}", plain.0, turned.0);
    assert_eq!(plain.1, turned.1);
}

/// What does not go together is refused by name, with the reason.
#[test]
fn combinations_that_cannot_work_are_refused_by_name() {
    let built = |score: &str, change: &dyn Fn(StackSpec) -> StackSpec| {
        Stack::checked(change(StackSpec::periodic("x", KNOBS, Part::plain(score)).unwrap()))
            .err()
            .map(|error| error.to_string())
    };
    let quest = |spec: StackSpec| StackSpec { attend: Part::plain("quest"), ..spec };
    let turned = |spec: StackSpec| StackSpec { places: Places::Cache, ..spec };
    let both = |spec: StackSpec| turned(quest(spec));
    let uneven = |spec: StackSpec| turned(StackSpec { budget: Part::plain("pyramid"), ..spec });
    for (found, words) in [
        (built("accumulated-attention", &quest), ["accumulated-attention", "some of them only"]),
        (built("window-mass", &turned), ["rerotate", "window-mass"]),
        (built("recency", &both), ["rerotate", "quest"]),
        (built("recency", &uneven), ["rerotate", "pyramid"]),
    ] {
        let found = found.unwrap();
        assert!(words.iter().all(|word| found.contains(word)), "{found}");
    }
    assert_eq!(built("window-mass", &quest), None, "a selection over what an eviction left");
    let gate = registry::composition("seer-gate").unwrap().stack(&KNOBS, &RawParams::default());
    assert!(gate.unwrap_err().to_string().contains("trained gate"));
}

const INV_FREQ: [f64; 4] = [1.0, 0.3, 0.09, 0.02];

fn rope() -> Rope {
    let info = RopeInfo {
        style: "rotate-half".to_owned(),
        theta: 10_000.0,
        scaling: None,
        keys: KeyState::PostRope,
        inv_freq: Some(INV_FREQ.to_vec()),
        attention_scaling: None,
    };
    Rope::new(&info).unwrap()
}

/// Numbers that look drawn, in [-1, 1).
fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + salt * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// A gate from a file, with norms: blocks by the definition written down once more in f64, recall over the tokens in them.
#[test]
fn a_gate_from_a_file_replays_as_its_naive_twin() {
    let trace = synth::fixed();
    let (heads, group, dim, width) = (2, 2, 8, 5);
    let tensors = [
        ("attngate_linear_q.weight", vec![heads, group, dim, width], numbers(heads * group * dim * width, 1)),
        ("attngate_linear_k.weight", vec![heads, 3 * dim, width], numbers(heads * 3 * dim * width, 2)),
        ("attngate_qnorm.weight", vec![width], numbers(width, 3)),
        ("attngate_knorm.weight", vec![width], numbers(width, 4)),
    ];
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, x)| x.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
        (format!("model.layers.0.self_attn.attn_gate.{name}"), view)
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), safetensors::serialize(views, None).unwrap()).unwrap();

    let (block, blocks) = (4, 3);
    let params = serde_json::json!({ "tokens": block * blocks, "block": block, "weights": file.path() });
    let entry = registry::composition("seer-gate").unwrap();
    let stack = entry.stack(&KNOBS, &RawParams::from_params(&params).unwrap()).unwrap();
    let told = stack.params().to_string();
    assert!(told.contains("sha256") && !told.contains(&*file.path().to_string_lossy()), "{told}");
    let rope = rope();
    let found = replay(&trace, &LayerModel { rope: Some(&rope), w_o: None }, &stack, EVERY_STEP).unwrap();

    let unrotated = |x: &[f32], pos: usize| -> Vec<f64> {
        let half = dim / 2;
        let turn = |i: usize| (INV_FREQ[i % half] * pos as f64).sin_cos();
        (0..dim)
            .map(|i| {
                let (sin, cos) = turn(i);
                let other = f64::from(x[(i + half) % dim]);
                f64::from(x[i]) * cos + if i < half { other * sin } else { -other * sin }
            })
            .collect()
    };
    let projected = |x: &[f64], matrix: &[f32]| -> Vec<f64> {
        (0..width)
            .map(|g| x.iter().enumerate().map(|(c, x)| x * f64::from(matrix[c * width + g])).sum())
            .collect()
    };
    let normed = |x: Vec<f64>, weights: &[f32]| -> Vec<f64> {
        let rms = (x.iter().map(|x| x * x).sum::<f64>() / width as f64 + 1e-6).sqrt();
        x.iter().zip(weights).map(|(x, w)| x / rms * f64::from(*w)).collect()
    };
    let meta = &trace.sequences()[0];
    let mut attended = 0;
    for (step, t) in (meta.prompt_len as usize..meta.len as usize).enumerate() {
        let mut expected = 0.0;
        for (h, head) in self::heads(&trace).iter().enumerate() {
            let mut query = vec![0.0; width];
            for m in 0..group {
                let matrix = &tensors[0].2[(h * group + m) * dim * width..][..dim * width];
                let one = projected(&unrotated(&head.queries[m][t], t), matrix);
                query.iter_mut().zip(one).for_each(|(sum, x)| *sum += x);
            }
            let query = normed(query, &tensors[2].2);
            let all: Vec<usize> = (0..=t).collect();
            let mut scored: Vec<(f64, &[usize])> = all
                .chunks(block)
                .map(|tokens| {
                    let keys: Vec<Vec<f64>> = tokens.iter().map(|&i| unrotated(&head.keys[i], i)).collect();
                    let over = |join: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
                        (0..dim).map(|c| keys.iter().map(|key| key[c]).reduce(join).unwrap()).collect()
                    };
                    let mean = over(&|a, b| a + b).into_iter().map(|x| x / keys.len() as f64);
                    let pooled: Vec<f64> =
                        over(&f64::max).into_iter().chain(over(&f64::min)).chain(mean).collect();
                    let matrix = &tensors[1].2[h * 3 * dim * width..][..3 * dim * width];
                    let key = normed(projected(&pooled, matrix), &tensors[3].2);
                    (query.iter().zip(&key).map(|(q, k)| q * k).sum(), tokens)
                })
                .collect();
            let (_, last) = scored.pop().unwrap();
            scored.sort_by(|a, b| b.0.total_cmp(&a.0));
            let chosen: Vec<usize> =
                scored.iter().take(blocks).flat_map(|(_, tokens)| *tokens).chain(last).copied().collect();
            attended += (chosen.len() * group) as u64;
            for full in naive::attention(head, t) {
                expected += chosen.iter().map(|&i| full[i]).sum::<f64>();
            }
        }
        assert!(
            (found.recall[step] - expected).abs() < 1e-4,
            "step {step}: {} {expected}",
            found.recall[step]
        );
    }
    assert_eq!(found.reading.unwrap().attended, attended);
}

/// A gate that does not fit the model says what both are.
#[test]
fn a_gate_of_another_model_is_refused_with_the_numbers() {
    let trace = synth::fixed();
    let rope = rope();
    let model = LayerModel { rope: Some(&rope), w_o: None };
    let gate = |members: usize, heads: usize| {
        let one = GateWeights {
            query: vec![vec![0.5; 2 * 8]; members],
            key: vec![0.5; 2 * 24],
            gate_dim: 2,
            ..GateWeights::default()
        };
        let params = seer_gate::Params { tokens: Some(8), block: 4, weights: None };
        let gates = Gates::of_layers(vec![vec![one; heads]]);
        let stack = Stack::checked(StackSpec::keeping_all("gate", KNOBS).unwrap()).unwrap();
        stack.attending(Box::new(SeerGate::new(params, gates).unwrap())).unwrap()
    };
    let refused = |stack: &Stack| replay(&trace, &model, stack, EVERY_STEP).unwrap_err().to_string();
    let found = refused(&gate(3, 2));
    assert!(found.contains("3 query heads") && found.contains("2 of 8"), "{found}");
    let found = refused(&gate(2, 1));
    assert!(found.contains("KV head 1") && found.contains("1 layers of 1"), "{found}");
}

/// With weights from code, the gate runs: one that looks at the mean key as the query does chooses the blocks it prefers.
#[test]
fn a_gate_with_weights_replays() {
    let trace = synth::fixed();
    let rope = rope();
    let identity: Vec<f32> = (0..64).map(|i| if i / 8 == i % 8 { 1.0 } else { 0.0 }).collect();
    let key: Vec<f32> = (0..8 * 24).map(|i| if i % 24 == 16 + i / 24 { 1.0 } else { 0.0 }).collect();
    let gate = GateWeights { query: vec![identity; 2], key, gate_dim: 8, ..GateWeights::default() };
    let params = seer_gate::Params { tokens: Some(8), block: 4, weights: None };
    let weights = Gates::of_layers(vec![vec![gate; 2]]);
    let stack = Stack::checked(StackSpec::keeping_all("gate", KNOBS).unwrap())
        .unwrap()
        .attending(Box::new(SeerGate::new(params, weights).unwrap()))
        .unwrap();
    let model = LayerModel { rope: Some(&rope), w_o: None };
    let outcome = replay(&trace, &model, &stack, EVERY_STEP).unwrap();
    let reading = outcome.reading.unwrap();
    // Two blocks and the last one, 9 to 12 tokens for each of four query heads at 58 steps.
    let steps = u64::from(70u32 - 12);
    assert!((9 * 4 * steps..=12 * 4 * steps).contains(&reading.attended), "{}", reading.attended);
    assert!(outcome.recall.iter().all(|recall| *recall > 0.0 && *recall < 4.0 + 1e-6));
    let failure = replay(&trace, &LayerModel::default(), &stack, EVERY_STEP).unwrap_err().to_string();
    assert!(failure.contains("rotary"), "{failure}");
}

/// A head that knows nothing of the model has no errors after the output matrix.
#[test]
fn without_an_output_matrix_nothing_is_projected() {
    let trace = synth::fixed();
    let stack = registry::composition("streaming-llm").unwrap().stack(&KNOBS, &RawParams::default()).unwrap();
    assert!(outcomes(&trace, &stack, 0, 1).iter().all(|outcome| outcome.projected.is_empty()));
    let tensors = trace.layer(trace.sequences()[0].seq, LayerIdx::new(0)).unwrap();
    let len = trace.sequences()[0].len;
    let head = RecordedHead::new(&tensors, trace.shape(), LayerIdx::new(0), KvHead::new(0), len).unwrap();
    let known = HeadModel { rope: None, output_weights: vec![vec![0.5; 3 * 8]; 2] };
    assert_eq!(head.with_model(known).output_weights(1).map(<[f32]>::len), Some(24));
    assert_eq!(positions(3).len(), 3);
}
