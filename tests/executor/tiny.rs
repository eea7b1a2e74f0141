//! The small random model: the executor against the naive pass, and against itself.

use kvlab_executor::{
    DecodeError, Decoder, Flow, LensOptions, Model, Pass, RawLens, SlidingWindow, Taps, TinySpec,
    reference::{ReferencePass, forward_tiny},
};

use super::support::{chunk, tiny, worst};

/// f32 against f64 over three layers of width 32 with numbers of order 10.
const TOLERANCE: f64 = 1e-4;

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + 11) % 61).collect()
}

fn narrow(rows: &[Vec<f64>]) -> Vec<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "compared with f32")]
    rows.iter().flatten().map(|value| *value as f32).collect()
}

/// All states and logits of a pass against the naive ones at the last positions.
fn check(decoder: &mut Decoder<'_>, pass: &Pass, expected: &ReferencePass) {
    let begin = expected.logits.len() - pass.tokens.len();
    let width = decoder.config().head_dim;
    let layers = pass.layers_run;
    for layer in 0..layers {
        let own = pass.hidden.as_ref().unwrap().index_axis(ndarray::Axis(0), layer).to_owned();
        let error = worst(own.as_slice().unwrap(), &narrow(&expected.hidden[layer][begin..]));
        assert!(error < TOLERANCE, "hidden of layer {layer}: {error}");
        let taps = [
            (&pass.queries, &expected.queries),
            (&pass.keys, &expected.keys),
            (&pass.values, &expected.values),
        ];
        for (own, expected) in taps {
            let own = own.as_ref().unwrap().index_axis(ndarray::Axis(0), layer).to_owned();
            for ((head, row, column), value) in own.indexed_iter() {
                let other = expected[layer][begin + row][head * width + column];
                assert!(
                    (f64::from(*value) - other).abs() < TOLERANCE,
                    "layer {layer}, head {head}, row {row}"
                );
            }
        }
    }
    if layers == expected.hidden.len() {
        let error = worst(&decoder.logits(pass).unwrap(), &narrow(&expected.logits[begin..]));
        assert!(error < TOLERANCE, "logits: {error}");
    }
}

fn specs() -> [TinySpec; 5] {
    let plain = TinySpec::default();
    [
        plain,
        TinySpec { seed: 2, q_heads: 6, layers: 2, ..plain },
        TinySpec { seed: 3, qkv_bias: true, ..plain },
        TinySpec { seed: 4, qk_norm: true, ..plain },
        TinySpec { seed: 5, sliding_window: Some(SlidingWindow { tokens: 5, first_layer: 1 }), ..plain },
    ]
}

#[test]
fn agrees_with_the_naive_pass_for_every_family_trait() {
    for spec in specs() {
        let mut model = tiny(spec);
        let mut decoder = model.decoder().unwrap();
        let tokens = tokens(23);
        let pass = decoder.forward(&tokens, Taps::STATES).unwrap();
        let expected = forward_tiny(spec, &tokens, &|_, _, _, _| true).unwrap();
        check(&mut decoder, &pass, &expected);
    }
}

#[test]
fn chunks_and_steps_are_one_long_prefill() {
    let mut model = tiny(TinySpec::default());
    let tokens = tokens(30);
    let expected = forward_tiny(TinySpec::default(), &tokens, &|_, _, _, _| true).unwrap();
    for size in [1, 7, 30] {
        let mut decoder = model.decoder().unwrap();
        let ignore = |_: &mut Decoder<'_>, _: &Pass| Ok::<_, DecodeError>(());
        let pass = decoder.prefill(&tokens, chunk(size), Taps::STATES, ignore).unwrap();
        assert_eq!(*pass.positions.last().unwrap(), 29);
        assert_eq!(decoder.next_position(), 30);
        check(&mut decoder, &pass, &expected);
    }
    let mut decoder = model.decoder().unwrap();
    decoder.forward(&tokens[..25], Taps::NONE).unwrap();
    for token in &tokens[25..29] {
        decoder.forward(&[*token], Taps::NONE).unwrap();
    }
    let pass = decoder.forward(&tokens[29..], Taps::STATES).unwrap();
    check(&mut decoder, &pass, &expected);
}

/// Keeps a different set in every layer and head: about two thirds, one third, nothing.
fn kept(layer: usize, head: usize, pos: u32) -> bool {
    match (layer + head) % 3 {
        0 => pos % 3 != 1,
        1 => (pos as usize + layer).is_multiple_of(3),
        _ => false,
    }
}

fn evict(decoder: &mut Decoder<'_>, how: impl Fn(&mut Decoder<'_>, usize, &[Vec<u32>])) {
    let (layers, heads, end) = (decoder.config().layers, decoder.config().kv_heads, decoder.next_position());
    for layer in 0..layers {
        let sets: Vec<Vec<u32>> =
            (0..heads).map(|head| (0..end).filter(|pos| kept(layer, head, *pos)).collect()).collect();
        how(decoder, layer, &sets);
    }
}

#[test]
fn ragged_removal_is_masking_and_keeps_positions() {
    for spec in specs() {
        let tokens = tokens(40);
        let visible = |layer, head, query: usize, key: usize| {
            query < 28 || key >= 28 || kept(layer, head, u32::try_from(key).unwrap())
        };
        let expected = forward_tiny(spec, &tokens, &visible).unwrap();
        let mut model = tiny(spec);
        for physical in [true, false] {
            let mut decoder = model.decoder().unwrap();
            decoder.forward(&tokens[..28], Taps::NONE).unwrap();
            evict(&mut decoder, |decoder, layer, sets| {
                let done = if physical { decoder.retain(layer, sets) } else { decoder.mask(layer, sets) };
                done.unwrap();
            });
            assert_eq!(decoder.next_position(), 28);
            let slots = decoder.cache().layers()[0].slots();
            assert_eq!(slots, if physical { 19 } else { 28 }, "two thirds of 28 in the longest head");
            // A chunk, then single steps.
            decoder.forward(&tokens[28..33], Taps::NONE).unwrap();
            for token in &tokens[33..39] {
                decoder.forward(&[*token], Taps::NONE).unwrap();
            }
            let pass = decoder.forward(&tokens[39..], Taps::STATES).unwrap();
            assert_eq!(pass.positions, [39]);
            check(&mut decoder, &pass, &expected);
        }
    }
}

#[test]
fn removal_again_after_removal_and_to_nothing() {
    let spec = TinySpec::default();
    let tokens = tokens(20);
    // After 10 tokens only even positions stay, after 15 only multiples of 4 and 11; after 18 nothing.
    let first = |key: usize| key.is_multiple_of(2);
    let second = |key: usize| (key.is_multiple_of(4) && key < 10) || key == 11;
    let visible = |_, _, query: usize, key: usize| {
        (query < 10 || key >= 10 || first(key))
            && (query < 15 || key >= 15 || second(key))
            && (query < 18 || key >= 18)
    };
    let expected = forward_tiny(spec, &tokens, &visible).unwrap();
    let mut model = tiny(spec);
    let mut decoder = model.decoder().unwrap();
    let keep = |decoder: &mut Decoder<'_>, set: Vec<u32>| {
        for layer in 0..3 {
            decoder.retain(layer, &[set.clone(), set.clone()]).unwrap();
        }
    };
    decoder.forward(&tokens[..10], Taps::NONE).unwrap();
    keep(&mut decoder, vec![0, 2, 4, 6, 8]);
    decoder.forward(&tokens[10..15], Taps::NONE).unwrap();
    keep(&mut decoder, vec![11, 0, 4, 8]);
    let resident: Vec<u32> = decoder.cache().layers()[1].resident(1).collect();
    assert_eq!(resident, [0, 4, 8, 11]);
    decoder.forward(&tokens[15..18], Taps::NONE).unwrap();
    keep(&mut decoder, vec![]);
    assert_eq!(decoder.cache().layers()[2].slots(), 0);
    let pass = decoder.forward(&tokens[18..], Taps::STATES).unwrap();
    check(&mut decoder, &pass, &expected);
}

#[test]
fn what_cannot_be_kept_is_an_error_and_changes_nothing() {
    let mut model = tiny(TinySpec::default());
    let mut decoder = model.decoder().unwrap();
    decoder.forward(&tokens(5), Taps::NONE).unwrap();
    let mut refused = |layer, sets: &[Vec<u32>]| decoder.retain(layer, sets).unwrap_err().to_string();
    assert!(refused(0, &[vec![0, 5], vec![0]]).contains("position 5 in layer 0, head 0: it is not resident"));
    assert!(refused(1, &[vec![0], vec![3, 3]]).contains("position 3 in layer 1, head 1: it is named twice"));
    assert!(refused(2, &[vec![0]]).contains("1 heads, it has 2"));
    assert!(refused(3, &[vec![0], vec![0]]).contains("layer 3: the model has 3"));
    assert_eq!(decoder.cache().layers()[0].slots(), 5);
    assert!(matches!(decoder.forward(&[], Taps::NONE), Err(DecodeError::NoTokens)));
    assert!(matches!(
        decoder.forward(&[61], Taps::NONE),
        Err(DecodeError::UnknownToken { token: 61, vocab: 61 })
    ));
    assert!(matches!(
        decoder.forward_until(&[1], 3, Taps::NONE),
        Err(DecodeError::NoSuchLayer { layer: 3, .. })
    ));
    assert!(matches!(
        decoder.set_next_position(4),
        Err(DecodeError::PositionTaken { asked: 4, resident: 4 })
    ));
    assert_eq!(decoder.next_position(), 5);
}

/// Attention depends on distances only: without eviction, a sequence that begins at 200 behaves as one that begins at 0.
#[test]
fn next_position_after_eviction_is_the_original_one() {
    let spec = TinySpec::default();
    let mut model = tiny(spec);
    let tokens = tokens(61);
    let mut shifted = model.decoder().unwrap();
    shifted.set_next_position(200).unwrap();
    let pass = shifted.forward(&tokens[40..], Taps::NONE).unwrap();
    assert_eq!(pass.positions[0], 200);
    let far = shifted.last_logits(&pass).unwrap();
    let mut plain = model.decoder().unwrap();
    let pass = plain.forward(&tokens[40..], Taps::NONE).unwrap();
    let near = plain.last_logits(&pass).unwrap();
    // Angles of 200 radians are rounded to f32 in the table: 200 * 2^-24 = 1.2e-5 each.
    assert!(worst(&far, &near) < 1e-3);
}

#[test]
fn exit_runs_no_deeper_layer_and_sees_what_the_full_run_sees_there() {
    let spec = TinySpec { layers: 4, ..TinySpec::default() };
    let mut model = tiny(spec);
    let tokens = tokens(12);
    let options = LensOptions { top: 3, raw: RawLens::Included };
    let mut decoder = model.decoder().unwrap();
    let full = decoder.forward(&tokens, Taps::STATES).unwrap();
    let all = decoder.lens(&full, &[11], options).unwrap();
    let mut decoder = model.decoder().unwrap();
    let early = decoder.forward_until(&tokens, 1, Taps::STATES).unwrap();
    assert_eq!((early.layers_run, early.hidden.as_ref().unwrap().dim()), (2, (2, 12, 32)));
    assert_eq!(decoder.lens(&early, &[11], options).unwrap(), all[..2]);
    let slots: Vec<usize> = decoder.cache().layers().iter().map(|layer| layer.slots()).collect();
    assert_eq!(slots, [12, 12, 0, 0]);
    // The next token goes all the way, and deeper layers see only it.
    let next = decoder.forward(&[5], Taps::STATES).unwrap();
    let longer: Vec<u32> = tokens.iter().copied().chain([5]).collect();
    let visible = |layer: usize, _, query: usize, key: usize| layer < 2 || query < 12 || key >= 12;
    let expected = forward_tiny(spec, &longer, &visible).unwrap();
    assert_eq!(next.positions, [12]);
    check(&mut decoder, &next, &expected);
}

#[test]
fn a_gate_sees_every_layer_and_may_stop() {
    let mut model = tiny(TinySpec::default());
    let mut decoder = model.decoder().unwrap();
    let mut seen = Vec::new();
    let mut gate = |done: kvlab_executor::LayerDone<'_>| {
        let facts = done.head.lens(done.hidden, LensOptions::default())?;
        seen.push((done.layer, facts[0].normed.entropy_nats));
        Ok(if done.layer == 1 { Flow::Stop } else { Flow::Continue })
    };
    let pass = decoder.forward_gated(&[7], Taps { hidden: true, ..Taps::NONE }, &mut gate).unwrap();
    assert_eq!(pass.layers_run, 2);
    let lens = decoder.lens(&pass, &[0], LensOptions::default()).unwrap();
    let expected: Vec<_> =
        lens.iter().enumerate().map(|(layer, rows)| (layer, rows[0].normed.entropy_nats)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn attention_rows_are_distributions_over_what_is_visible() {
    let mut model = tiny(TinySpec::default());
    let mut decoder = model.decoder().unwrap();
    decoder.forward(&tokens(9), Taps::NONE).unwrap();
    decoder.retain(1, &[vec![0, 3, 8], vec![2]]).unwrap();
    let pass = decoder.forward(&[4, 5], Taps { attention: true, ..Taps::NONE }).unwrap();
    let attention = pass.attention.unwrap();
    assert_eq!(attention[0].dim(), (4, 2, 11));
    assert_eq!(attention[1].dim(), (4, 2, 5));
    for row in attention.iter().flat_map(|layer| layer.rows()) {
        assert!((row.sum() - 1.0).abs() < 1e-6);
    }
    // Head 2 belongs to the second key-value head, whose slots 1 and 2 are padding; query 0 does not see key 1.
    let first: Vec<bool> =
        attention[1].slice(ndarray::s![2, 0, ..]).iter().map(|share| *share > 0.0).collect();
    assert_eq!(first, [true, false, false, true, false]);
}

#[test]
fn a_fork_does_not_touch_its_parent() {
    let mut model = tiny(TinySpec::default());
    let mut decoder = model.decoder().unwrap();
    decoder.forward(&tokens(6), Taps::NONE).unwrap();
    let parent = decoder.cache().clone();
    let child = decoder.forward(&[3, 4], Taps::NONE).unwrap();
    let child_logits = decoder.last_logits(&child).unwrap();
    decoder.retain(0, &[vec![7], vec![7]]).unwrap();
    decoder.swap_cache(parent);
    assert_eq!((decoder.next_position(), decoder.cache().layers()[0].slots()), (6, 6));
    let again = decoder.forward(&[3, 4], Taps::NONE).unwrap();
    assert_eq!(decoder.last_logits(&again).unwrap(), child_logits);
}

#[test]
fn head_without_norm_is_what_the_raw_lens_says() {
    let spec = TinySpec::default();
    let mut model: Model = tiny(spec);
    let mut decoder = model.decoder().unwrap();
    let pass = decoder.forward(&tokens(4), Taps { hidden: true, ..Taps::NONE }).unwrap();
    let both = decoder.lens(&pass, &[0, 3], LensOptions { top: 2, raw: RawLens::Included }).unwrap();
    let normed_only = decoder.lens(&pass, &[0, 3], LensOptions { top: 2, raw: RawLens::Skipped }).unwrap();
    assert_eq!((both.len(), both[0].len()), (3, 2));
    for (both, single) in both.iter().flatten().zip(normed_only.iter().flatten()) {
        assert_eq!(both.normed, single.normed);
        assert!(single.raw.is_none() && both.raw.as_ref().unwrap().top.is_empty());
        assert!((both.raw.as_ref().unwrap().entropy_nats - both.normed.entropy_nats).abs() > 1e-6);
    }
    let logits = decoder.last_logits(&pass).unwrap();
    let last = &both[2][1].normed;
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    assert!((last.top[0].logit - largest).abs() < 1e-5);
}
