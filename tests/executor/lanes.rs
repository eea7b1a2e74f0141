//! Several sequences in one pass: the numbers of each are its own.

use super::support::{branch_plan, chunk, embedded, tiny, worst};
use kvlab_executor::branches::{TreeSet, record_branches};
use kvlab_executor::workload::chain::LEVELS;
use kvlab_executor::{DecodeError, Decoder, KvCache, Lanes, Pass, Quiet, SlidingWindow, Taps, TinySpec};
use kvlab_sim::trace::{Leftover, Prefix, Trace, TraceSource, verify};
use std::num::NonZeroUsize;

/// Rounding of sums over longer lists, in numbers of order 10.
const TOLERANCE: f64 = 2e-5;

fn tokens(count: u32, salt: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + 11 + salt * 7) % 61).collect()
}

/// Hidden states of a row, `[layer][hidden]`, and its values, `[layer][kv_head][head_dim]`, in one list each.
fn row(pass: &Pass, row: usize) -> (Vec<f32>, Vec<f32>) {
    let hidden = pass.hidden.as_ref().unwrap().index_axis(ndarray::Axis(1), row);
    let values = pass.values.as_ref().unwrap().index_axis(ndarray::Axis(2), row);
    (hidden.iter().copied().collect(), values.iter().copied().collect())
}

fn greedy(logits: &[f32]) -> u32 {
    let best = logits
        .iter()
        .enumerate()
        .fold((0, f32::MIN), |best, (at, value)| if *value > best.1 { (at, *value) } else { best });
    u32::try_from(best.0).unwrap()
}

/// Decodes `steps` tokens after a prompt by itself: rows of hidden states and values, logits, and tokens.
fn alone(decoder: &mut Decoder<'_>, first: Vec<f32>, steps: usize) -> Vec<(u32, Vec<f32>, Vec<f32>)> {
    let mut logits = first;
    (0..steps)
        .map(|_| {
            let token = greedy(&logits);
            let pass = decoder.forward(&[token], Taps::STATES).unwrap();
            logits = decoder.last_logits(&pass).unwrap();
            let (hidden, values) = row(&pass, 0);
            (token, hidden, values)
        })
        .collect()
}

fn prefilled(decoder: &mut Decoder<'_>, prompt: &[u32]) -> (KvCache, Vec<f32>) {
    let pass = decoder.forward(prompt, Taps::NONE).unwrap();
    let logits = decoder.last_logits(&pass).unwrap();
    (decoder.cache().clone(), logits)
}

/// H08 (optimum#877): a sequence by itself, and beside longer and shorter ones. There is no padding, so positions are those of the sequence, and states,
/// values and tokens are the same.
#[test]
fn h08_a_sequence_beside_uneven_others_is_what_it_is_alone() {
    let window = Some(SlidingWindow { tokens: 64, first_layer: 1 });
    for spec in
        [TinySpec::default(), TinySpec { qk_norm: true, sliding_window: window, ..TinySpec::default() }]
    {
        let mut model = tiny(spec);
        let prompts = [tokens(5, 0), tokens(23, 1), tokens(1, 2), tokens(10, 3)];
        let (mut expected, mut caches, mut logits) = (Vec::new(), Vec::new(), Vec::new());
        for prompt in &prompts {
            let mut decoder = model.decoder().unwrap();
            let (cache, first) = prefilled(&mut decoder, prompt);
            caches.push(cache);
            logits.push(first.clone());
            expected.push(alone(&mut decoder, first, 6));
        }
        let mut lanes = Lanes::joined(&caches).unwrap();
        let mut decoder = model.decoder().unwrap();
        // Lane 1 ends after three steps: the others go on without its keys.
        let by_step: Vec<Vec<_>> =
            (0..6).map(|step| expected.iter().map(|lane: &Vec<_>| lane[step].clone()).collect()).collect();
        for (step, expected) in by_step.iter().enumerate() {
            let going: Vec<usize> = (0..4).filter(|lane| *lane != 1 || step < 3).collect();
            if step == 3 {
                lanes.end(&[1]).unwrap();
            }
            let fed: Vec<(usize, u32)> = going.iter().map(|lane| (*lane, greedy(&logits[*lane]))).collect();
            let pass = decoder.forward_lanes(&mut lanes, &fed, Taps::STATES).unwrap();
            let all = decoder.logits(&pass).unwrap();
            let vocab = decoder.config().vocab;
            for (at, (lane, token)) in fed.iter().enumerate() {
                let (expected_token, hidden, values): &(u32, Vec<f32>, Vec<f32>) = &expected[*lane];
                assert_eq!(token, expected_token, "lane {lane}, step {step}");
                assert_eq!(pass.positions[at] as usize, prompts[*lane].len() + step);
                let (own_hidden, own_values) = row(&pass, at);
                assert!(
                    worst(&own_hidden, hidden) < TOLERANCE,
                    "lane {lane}, step {step}: {}",
                    worst(&own_hidden, hidden)
                );
                assert!(worst(&own_values, values) < TOLERANCE, "lane {lane}, step {step}");
                logits[*lane] = all[at * vocab..(at + 1) * vocab].to_vec();
            }
        }
    }
}

/// Suffixes of several lengths behind one prefix, fed in one pass, are those behind a copy of it.
#[test]
fn lanes_behind_a_prefix_are_forks_of_it() {
    let mut model = tiny(TinySpec::default());
    let prefix = tokens(12, 5);
    let suffixes = [tokens(3, 1), tokens(7, 2), tokens(1, 3)];
    let mut decoder = model.decoder().unwrap();
    let (cache, _) = prefilled(&mut decoder, &prefix);
    let mut expected = Vec::new();
    for suffix in &suffixes {
        decoder.swap_cache(cache.clone());
        let pass = decoder.forward(suffix, Taps::STATES).unwrap();
        expected.push((decoder.logits(&pass).unwrap(), pass));
    }
    let mut lanes = Lanes::behind(cache, 3);
    let fed: Vec<(usize, u32)> = suffixes
        .iter()
        .enumerate()
        .flat_map(|(lane, suffix)| suffix.iter().map(move |token| (lane, *token)))
        .collect();
    let pass = decoder.forward_lanes(&mut lanes, &fed, Taps::STATES).unwrap();
    let logits = decoder.logits(&pass).unwrap();
    let vocab = decoder.config().vocab;
    let mut at = 0;
    for (logits_alone, alone) in &expected {
        for own in 0..alone.tokens.len() {
            assert_eq!(pass.positions[at], alone.positions[own]);
            let here = &logits[at * vocab..(at + 1) * vocab];
            assert!(worst(here, &logits_alone[own * vocab..(own + 1) * vocab]) < 10.0 * TOLERANCE);
            assert!(worst(&row(&pass, at).0, &row(alone, own).0) < TOLERANCE);
            at += 1;
        }
    }
    let error = decoder.forward_lanes(&mut lanes, &[], Taps::NONE).unwrap_err();
    assert!(matches!(error, DecodeError::NoTokens));
    let error = decoder.forward_lanes(&mut lanes, &[(0, 3), (1, 5000)], Taps::NONE).unwrap_err();
    assert!(matches!(error, DecodeError::UnknownToken { token: 5000, .. }));
}

/// Branches that are decoded together write what they write one by one, and the facts of their steps agree to rounding; the batch is written down, and the
/// recording is the same again.
#[test]
fn branches_decoded_together_write_what_they_write_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded(folder.path());
    let set = TreeSet::chain(LEVELS[0], 2, 7, 6, false);
    let mut record = |name: &str, batch: usize, size: usize| {
        let target = folder.path().join(name);
        let plan = kvlab_executor::branches::BranchPlan {
            batch: NonZeroUsize::new(batch).unwrap(),
            chunk: chunk(size),
            ..branch_plan(&set)
        };
        record_branches(&mut model, &set.items, &plan, &target, Leftover::Refuse, &Quiet).unwrap();
        verify(&target).unwrap();
        Trace::open(&target).unwrap()
    };
    let one = record("one", 1, 64);
    assert_eq!(one.manifest().decoding.batch, None);
    // In one pass, in two of unequal size, and with suffixes that are fed in pieces.
    for (name, batch, size) in [("six", 6, 64), ("four", 4, 64), ("pieces", 6, 5)] {
        let together = record(name, batch, size);
        assert_eq!(together.manifest().decoding.batch, Some(u32::try_from(batch).unwrap()));
        let (mut steps, mut largest) = (0, 0.0_f32);
        for at in 0..one.problems() {
            let (a, b) = (one.problem(at).unwrap(), together.problem(at).unwrap());
            for (a, b) in a.branches[1..].iter().zip(&b.branches[1..]) {
                for prefix in [Prefix::Own, Prefix::Root] {
                    let (a, b) = (a.outcome(prefix).unwrap(), b.outcome(prefix).unwrap());
                    assert_eq!(
                        (&a.answer, &a.finish_reason, a.generated),
                        (&b.answer, &b.finish_reason, b.generated)
                    );
                    for (a, b) in a.steps.iter().zip(&b.steps) {
                        assert_eq!(a.token, b.token);
                        largest =
                            largest.max((a.entropy_nats - b.entropy_nats).abs()).max((a.prob - b.prob).abs());
                        steps += 1;
                    }
                }
            }
        }
        assert!(steps > 200 && largest < 1e-3, "{steps} steps, {largest}");
    }
    let again = record("again", 6, 64);
    let before = Trace::open(&folder.path().join("six")).unwrap();
    assert_eq!(again.digest(), before.digest());
}
