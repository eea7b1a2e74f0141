//! Stores, selections and re-rotation in the loop of the model: what they do to the cache and to attention is what they say.

use super::{KNOBS, NEW, composition, prefix, prompt, recorded, seq};
use crate::executor::support::{chunk, tiny};
use kvlab_executor::closed_loop::{Limits, LiveCell, LiveRun, Prefix, force, generate};
use kvlab_executor::{Model, Taps, TinySpec};
use kvlab_sim::contract::PlainHead;
use kvlab_sim::policy::attend::{Attend, AttendView, Attended};
use kvlab_sim::policy::compose::{Knobs, Part, Places, Stack, StackSpec};
use kvlab_sim::policy::{PolicyError, PolicySpec, RawParams, registry};
use kvlab_sim::trace::TraceSource;
use kvlab_sim::types::{KvHead, LayerIdx, Pos};

/// The first token, and the newest ones.
#[derive(Debug)]
struct Ends(usize);

impl Attend for Ends {
    fn spec(&self) -> &'static PolicySpec {
        registry::ATTENDS.iter().find(|entry| entry.spec.id == "oracle-top-k").unwrap().spec
    }

    fn attend(&self, view: &AttendView<'_>) -> Result<Attended, PolicyError> {
        let resident = view.resident.len();
        let slots: Vec<usize> =
            std::iter::once(0).chain(resident.saturating_sub(self.0).max(1)..resident).collect();
        Ok(Attended::Slots(vec![slots; view.data.group()]))
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}

fn run<'m, 'a>(model: &'m mut Model, prefix: &Prefix, stack: &'a Stack) -> LiveRun<'m, 'a> {
    LiveRun::fork(model, prefix, LiveCell::new(stack, 0), seq(0)).unwrap()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    let apart = found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max);
    assert!(found.len() == expected.len() && apart <= tolerance, "{what}: {apart} apart");
}

/// Attending to some tokens is what hiding all others from that step gives, in every layer.
#[test]
fn a_selection_in_the_loop_is_a_mask() {
    let mut model = tiny(TinySpec::default());
    let prefix = prefix(&mut model, &prompt(0));
    let all = Stack::checked(StackSpec::keeping_all("ends", KNOBS).unwrap()).unwrap();
    let ends = all.attending(Box::new(Ends(5))).unwrap();
    let found = run(&mut model, &prefix, &ends).step(7).unwrap();
    let full = composition("full", &KNOBS);
    let whole = run(&mut model, &prefix, &full).step(7).unwrap();
    let mut decoder = model.decoder().unwrap();
    decoder
        .prefill(&prompt(0), chunk(16), Taps::NONE, |_, _| Ok::<_, kvlab_executor::DecodeError>(()))
        .unwrap();
    // The token itself is the newest of five.
    let kept: Vec<u32> = [0, 20, 21, 22, 23].to_vec();
    for layer in 0..decoder.config().layers {
        decoder.mask(layer, &[kept.clone(), kept.clone()]).unwrap();
    }
    let pass = decoder.forward(&[7], Taps::NONE).unwrap();
    let expected = decoder.last_logits(&pass).unwrap();
    assert_close(&found, &expected, 1e-5, "a selection and a mask");
    let apart = found.iter().zip(&whole).map(|(f, w)| (f - w).abs()).fold(0.0, f32::max);
    assert!(apart > 1e-3, "what is left out matters: {apart}");
}

/// A selection of everything is the full cache, bit for bit, and counts what it reads.
#[test]
fn a_selection_of_everything_is_the_full_cache() {
    let mut model = tiny(TinySpec::default());
    let prefix = prefix(&mut model, &prompt(4));
    let limits = Limits { max_new_tokens: 12, stops: &[] };
    let mut of = |stack: &Stack| {
        let mut logits = Vec::new();
        let run = run(&mut model, &prefix, stack);
        let run = generate(run, &prefix, limits, |row| logits.push(row)).unwrap();
        (run.tokens, logits, run.footprint)
    };
    let roomy = Knobs { capacity: 256, ..KNOBS };
    let full = of(&composition("full", &roomy));
    let quest = of(&composition("quest", &roomy));
    assert_eq!((&full.0, &full.1), (&quest.0, &quest.1));
    // 25 to 36 tokens a step, four query heads, three layers; 24 bytes of a key and a value of eight channels... twice.
    let tokens: u64 = (25..=36).sum();
    assert_eq!(full.2.attended, tokens * 12);
    assert_eq!(quest.2.attended, full.2.attended);
    assert_eq!(full.2.read_bits, tokens * 3 * 2 * 2 * 8 * 16);
    assert!(quest.2.read_bits > full.2.read_bits, "pages have bounds, which are read too");
    // Quest looks at everything in the first two layers, then at three pages of sixteen at least: everything again.
    let small = of(&composition("quest", &Knobs { capacity: 16, ..KNOBS }));
    assert_eq!(small.2.attended, full.2.attended);
}

/// In the first layer, what the cache holds under a store is what is read back of the recorded vectors, bit for bit; the
/// replay stores the same.
#[test]
fn the_cache_holds_what_is_read_back_of_the_recorded_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = tiny(TinySpec::default());
    let trace = recorded(&mut model, &folder.path().join("trace"));
    let meta = &trace.sequences()[0];
    let all: Vec<u32> = trace.tokens(meta.seq).unwrap().iter().map(|token| token.get()).collect();
    let (before, after) = all.split_at(meta.prompt_len as usize);
    for id in ["kv-int8", "kv-int4", "kv-int2", "kv-mixed"] {
        let stack = composition(id, &KNOBS);
        let prefix = Prefix::for_stacks(&mut model, before, chunk(16), [&stack]).unwrap();
        let mut run = run(&mut model, &prefix, &stack);
        after.iter().for_each(|token| drop(run.step(*token).unwrap()));
        let tensors = trace.layer(meta.seq, LayerIdx::new(0)).unwrap();
        let layer = &run.decoder().cache().layers()[0];
        let mut changed = 0;
        for kv_head in 0..2 {
            // What is held, worked out from the recorded vectors alone.
            let recorded = kvlab_sim::replay::RecordedHead::new(
                &tensors,
                trace.shape(),
                LayerIdx::new(0),
                KvHead::new(u16::try_from(kv_head).unwrap()),
                meta.len,
            )
            .unwrap();
            let mut held = PlainHead::of(&recorded, meta.len);
            let mut state = stack.start(meta.seq, LayerIdx::new(0), KvHead::new(0), meta.prompt_len);
            for pos in meta.prompt_len..=meta.len {
                for (pos, stored) in stack.hold(&held, &mut state).unwrap() {
                    held.keys[pos.idx()] = stored.key.read_back(&held.keys[pos.idx()]);
                    held.values[pos.idx()] = stored.value.read_back(&held.values[pos.idx()]);
                }
                state.store(Pos::new(pos));
            }
            let (keys, values) = (layer.keys(kv_head).unwrap(), layer.values(kv_head).unwrap());
            for pos in 0..meta.len as usize {
                let width = trace.shape().head_dim as usize;
                let row = |rows: &[f32]| rows[pos * width..(pos + 1) * width].to_vec();
                assert_eq!(row(keys), held.keys[pos], "{id}: key of head {kv_head} at {pos}");
                assert_eq!(row(values), held.values[pos], "{id}: value of head {kv_head} at {pos}");
                let own = tensors.k.slice(ndarray::s![kv_head, pos, ..]).to_vec();
                changed += usize::from(row(keys) != own);
            }
        }
        assert!(changed > 100, "{id}: {changed} keys changed");
    }
}

/// Fewer bits, less like the full cache: the executed distance follows what is lost.
#[test]
fn fewer_bits_are_further_from_the_full_cache() {
    let mut model = tiny(TinySpec::default());
    let prefix = prefix(&mut model, &prompt(2));
    let full = composition("full", &KNOBS);
    let mut logits = Vec::new();
    let limits = Limits { max_new_tokens: NEW, stops: &[] };
    let reference = run(&mut model, &prefix, &full);
    let tokens = generate(reference, &prefix, limits, |row| logits.push(row)).unwrap().tokens;
    let mut kl = |id: &str| -> (f64, u64) {
        let stack = composition(id, &KNOBS);
        let live = run(&mut model, &prefix, &stack);
        let forced = force(live, &tokens, &logits).unwrap();
        (forced.divergences.iter().sum(), forced.footprint.peak_stored_bits)
    };
    let [full, eight, four, two] = ["full", "kv-int8", "kv-int4", "kv-int2"].map(&mut kl);
    assert!(
        full.0 < 1e-300 && 0.0 < eight.0 && eight.0 < four.0 && four.0 < two.0,
        "{eight:?} {four:?} {two:?}"
    );
    // 68 tokens, three layers, two KV heads, a key and a value of eight channels in one group.
    let bits = |a_channel: u64, a_group: u64| 68 * 6 * 2 * (8 * a_channel + a_group);
    assert_eq!([full.1, eight.1, four.1, two.1], [bits(16, 0), bits(8, 32), bits(4, 32), bits(2, 32)]);
}

/// H15, and what re-rotation is: where the tokens that stay are neighbours, attention depends on distances alone, so keys at
/// their original positions and keys turned to their places in the cache give the same logits; and positions go on.
#[test]
fn h15_neighbours_attend_alike_wherever_they_are_rotated() {
    let mut model = tiny(TinySpec::default());
    let tokens: Vec<u32> = (0..300).map(|i| (i * 37 + 11) % 61).collect();
    let streaming = |sinks: u32, places: Places| {
        let knobs = Knobs { capacity: 96, recent: 32, sinks, period: 4, window: 1 };
        let spec = StackSpec::periodic("window", knobs, Part::plain("recency")).unwrap();
        Stack::checked(StackSpec { places, ..spec }).unwrap()
    };
    let stacks: Vec<Stack> =
        [(0, Places::Original), (0, Places::Cache), (4, Places::Original), (4, Places::Cache)]
            .map(|(sinks, places)| streaming(sinks, places))
            .into();
    let prefix = Prefix::for_stacks(&mut model, &tokens, chunk(64), &stacks).unwrap();
    let mut logits = Vec::new();
    for stack in &stacks {
        let mut live = run(&mut model, &prefix, stack);
        // The eviction is after the fourth token; the fifth attends to what is left.
        let rows: Vec<Vec<f32>> = [3, 1, 4, 1, 5, 9].iter().map(|token| live.step(*token).unwrap()).collect();
        assert_eq!(live.decoder().next_position(), 306, "positions go on as if nothing had left");
        let first: Vec<u32> = live.decoder().cache().layers()[0].resident(0).collect();
        assert_eq!(first.len(), 98);
        assert_eq!(*first.last().unwrap(), 305, "original positions are kept");
        assert_eq!(live.finish().eviction_count(), 1);
        logits.push(rows);
    }
    for (step, (plain, turned)) in logits[0].iter().zip(&logits[1]).enumerate() {
        let tolerance = if step < 4 { 0.0 } else { 2e-3 };
        assert_close(plain, turned, tolerance, &format!("step {step}"));
    }
    let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart(&logits[2][4], &logits[3][4]) > 1e-2, "with sinks the distances change");
}

/// What cannot be done in the loop is refused by name.
#[test]
fn a_gate_without_weights_never_reaches_the_loop() {
    let error = registry::composition("seer-gate").unwrap().stack(&KNOBS, &RawParams::default()).unwrap_err();
    assert!(matches!(error, PolicyError::Refused { policy: "seer-gate", .. }), "{error}");
}

/// H12: a prompt longer than the budget, in one chunk and in many. Nothing leaves during prefill, so the kept sets and the peak are
/// the same; the peak is the prompt and what is stored until the first due step.
#[test]
fn h12_a_prompt_longer_than_the_budget_is_cut_alike_in_any_chunks() {
    let mut model = tiny(TinySpec::default());
    let tokens: Vec<u32> = (0..101).map(|i| (i * 37 + 11) % 61).collect();
    let after: Vec<u32> = (0..20).map(|i| (i * 7 + 5) % 61).collect();
    for (id, most) in
        [("streaming-llm", 104), ("snapkv", 104), ("vase-attnv", 104), ("h2o", 101), ("snapkv-prefill", 101)]
    {
        let stack = composition(id, &KNOBS);
        let of_chunks = [101, 50, 13].map(|count| {
            let prefix = Prefix::for_stacks(&mut model, &tokens, chunk(count), [&stack]).unwrap();
            let live = run(&mut model, &prefix, &stack);
            force(live, &after, &[]).unwrap().footprint
        });
        // Three layers of two KV heads.
        assert_eq!(of_chunks[0].peak_entries, most * 6, "{id}: the peak");
        let first = &of_chunks[0].evictions[0][0];
        assert!(first.heads.iter().all(|set| set.count == 24), "{id}: {first:?}");
        let whole = of_chunks[0].clone();
        for footprint in &of_chunks {
            assert_eq!(*footprint, whole, "{id}: chunks make no difference");
        }
    }
}
