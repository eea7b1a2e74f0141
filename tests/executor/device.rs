//! Keys and values that stay where sessions run: the same bits, and what crosses does not grow with them.
//!
//! The CPU provider is told to treat its memory as a device's, so that this runs on any machine; on one with a GPU, so it does there.

use kvlab_executor::closed_loop::{LiveCell, LiveRun, Prefix};
use kvlab_executor::{
    CacheMemory, Crossed, DecodeError, Decoder, Flow, KvCache, Lanes, LoadOptions, Model, Pass,
    SlidingWindow, Taps, TinySpec,
};
use kvlab_sim::policy::compose::Knobs;
use kvlab_sim::policy::{RawParams, registry};
use kvlab_sim::types::SeqIdx;

use super::support::{chunk, load_options};

pub(crate) fn in_memory(spec: TinySpec, cache: CacheMemory, options: LoadOptions) -> Model {
    Model::tiny(spec, &LoadOptions { cache, ..options }).unwrap()
}

fn both(spec: TinySpec) -> [Model; 2] {
    [CacheMemory::Host, CacheMemory::Device].map(|cache| in_memory(spec, cache, load_options()))
}

fn specs() -> [TinySpec; 4] {
    let plain = TinySpec::default();
    [
        plain,
        TinySpec { seed: 2, q_heads: 6, layers: 2, qkv_bias: true, ..plain },
        TinySpec { seed: 4, qk_norm: true, ..plain },
        TinySpec { seed: 5, sliding_window: Some(SlidingWindow { tokens: 5, first_layer: 1 }), ..plain },
    ]
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + 11) % 61).collect()
}

/// All numbers that were seen, by name, in order.
#[derive(Default)]
pub(crate) struct Seen(pub(crate) Vec<(String, Vec<f32>)>);

impl Seen {
    fn add(&mut self, name: &str, numbers: impl IntoIterator<Item = f32>) {
        self.0.push((name.to_owned(), numbers.into_iter().collect()));
    }

    fn pass(&mut self, name: &str, decoder: &mut Decoder<'_>, pass: &Pass) {
        self.add(&format!("{name}: logits"), decoder.logits(pass).unwrap());
        let taps = [&pass.queries, &pass.keys, &pass.values];
        taps.into_iter().flatten().for_each(|tap| self.add(&format!("{name}: taps"), tap.iter().copied()));
        self.add(&format!("{name}: hidden"), pass.hidden.iter().flatten().copied());
        self.add(&format!("{name}: attention"), pass.attention.iter().flatten().flatten().copied());
    }

    /// Every resident row of a cache.
    fn cache(&mut self, name: &str, cache: &KvCache) {
        for (at, layer) in cache.layers().iter().enumerate() {
            for head in 0..layer.kv_heads() {
                let width = 8;
                for (slot, pos) in layer.positions(head).iter().enumerate() {
                    let Some(pos) = pos else { continue };
                    let rows = [layer.keys(head).unwrap(), layer.values(head).unwrap()];
                    let row = rows.into_iter().flat_map(|rows| &rows[slot * width..(slot + 1) * width]);
                    self.add(
                        &format!("{name}: row of layer {at}, head {head}, position {pos}"),
                        row.copied(),
                    );
                }
            }
        }
    }

    fn assert_bits_of(&self, other: &Self) {
        assert_eq!(self.0.len(), other.0.len());
        for ((name, own), (other_name, other)) in self.0.iter().zip(&other.0) {
            assert_eq!(name, other_name);
            let same = own.iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && own.len() == other.len(), "{name}");
        }
    }
}

/// About two thirds, one third, nothing: by layer and head.
fn kept(layer: usize, head: usize, pos: u32) -> bool {
    match (layer + head) % 3 {
        0 => pos % 3 != 1,
        1 => pos.is_multiple_of(4),
        _ => pos > 1000,
    }
}

fn sets(decoder: &Decoder<'_>, layer: usize, keeps: impl Fn(usize, u32) -> bool) -> Vec<Vec<u32>> {
    let cache = &decoder.cache().layers()[layer];
    let of_head = |head| cache.resident(head).filter(|pos| keeps(head, *pos)).collect();
    (0..cache.kv_heads()).map(of_head).collect()
}

/// All that can happen to a sequence. `looks` says whether the host reads the cache on the way, or only in the end.
pub(crate) fn lived(model: &mut Model, looks: bool, taps: Taps) -> Seen {
    let (mut seen, tokens) = (Seen::default(), tokens(61));
    let mut decoder = model.decoder().unwrap();
    let look = |seen: &mut Seen, decoder: &Decoder<'_>, name: &str| {
        if looks {
            seen.cache(name, decoder.cache());
        }
    };
    let feed = |decoder: &mut Decoder<'_>, seen: &mut Seen, begin: usize, end: usize, size: usize| {
        for part in tokens[begin..end].chunks(size) {
            let pass = decoder.forward(part, taps).unwrap();
            seen.pass(&format!("tokens from {begin}, {size} at once"), decoder, &pass);
        }
    };
    feed(&mut decoder, &mut seen, 0, 14, 7);
    look(&mut seen, &decoder, "after the prompt");
    feed(&mut decoder, &mut seen, 14, 20, 1);
    let fork = decoder.cache().clone();
    for layer in 0..decoder.config().layers {
        let kept = sets(&decoder, layer, |head, pos| kept(layer, head, pos));
        decoder.retain(layer, &kept).unwrap();
    }
    look(&mut seen, &decoder, "after an uneven eviction");
    // Steps, a chunk, steps: over slots that are padding.
    feed(&mut decoder, &mut seen, 20, 23, 1);
    feed(&mut decoder, &mut seen, 23, 28, 5);
    feed(&mut decoder, &mut seen, 28, 31, 1);
    for layer in 0..decoder.config().layers {
        let hidden = sets(&decoder, layer, |_, pos| pos % 5 != 2);
        decoder.mask(layer, &hidden).unwrap();
    }
    feed(&mut decoder, &mut seen, 31, 33, 1);
    decoder
        .rewrite(0, &mut |head, pos, key, value| {
            if (head + pos as usize).is_multiple_of(2) {
                key.iter_mut().chain(value).for_each(|number| *number *= 0.5);
            }
        })
        .unwrap();
    decoder.set_next_position(100).unwrap();
    feed(&mut decoder, &mut seen, 33, 36, 1);
    let nothing = vec![Vec::new(); decoder.config().kv_heads];
    decoder.retain(1, &nothing).unwrap();
    feed(&mut decoder, &mut seen, 36, 40, 2);
    seen.cache("in the end", decoder.cache());
    // The fork knows nothing of all that. Its passes stop early, by a gate and by themselves.
    decoder.swap_cache(fork);
    let mut gate = |done: kvlab_executor::LayerDone<'_>| {
        seen.add("at a gate", done.hidden.iter().copied());
        Ok(if done.layer == 1 { Flow::Stop } else { Flow::Continue })
    };
    let pass = decoder.forward_gated(&tokens[40..43], taps, &mut gate).unwrap();
    seen.pass("gated", &mut decoder, &pass);
    let pass = decoder.forward_until(&tokens[43..45], 0, taps).unwrap();
    seen.pass("until the first layer", &mut decoder, &pass);
    feed(&mut decoder, &mut seen, 45, 48, 1);
    seen.cache("of the fork", decoder.cache());
    seen
}

#[test]
fn all_that_happens_to_a_sequence_gives_the_same_bits_on_a_device() {
    let everything = Taps { attention: true, ..Taps::STATES };
    for spec in specs() {
        let [mut host, mut device] = both(spec);
        for taps in [Taps::NONE, everything] {
            for looks in [false, true] {
                let found = lived(&mut device, looks, taps);
                found.assert_bits_of(&lived(&mut host, looks, taps));
            }
        }
    }
}

/// Positions that `f32` does not hold take the bias of the host.
#[test]
fn positions_beyond_the_whole_numbers_of_f32_are_seen_as_on_the_host() {
    let spec = specs()[3];
    let seen = both(spec).map(|mut model| {
        let mut seen = Seen::default();
        let mut decoder = model.decoder().unwrap();
        decoder.set_next_position((1 << 24) - 4).unwrap();
        for token in tokens(12) {
            let pass = decoder.forward(&[token], Taps::NONE).unwrap();
            seen.pass("far", &mut decoder, &pass);
        }
        seen
    });
    seen[1].assert_bits_of(&seen[0]);
}

/// Lanes joined, behind a prefix, and after one of them ended.
#[test]
fn lanes_give_the_same_bits_on_a_device() {
    let seen = both(TinySpec::default()).map(|mut model| {
        let mut seen = Seen::default();
        let mut decoder = model.decoder().unwrap();
        let mut caches = vec![decoder.cache().clone()];
        for length in [5, 9, 1] {
            decoder.swap_cache(caches[0].clone());
            decoder.forward(&tokens(length), Taps::NONE).unwrap();
            caches.push(decoder.cache().clone());
        }
        let behind = Lanes::behind(caches[2].clone(), 3);
        for mut lanes in [Lanes::joined(&caches).unwrap(), behind] {
            for step in 0..6 {
                if step == 3 {
                    lanes.end(&[1]).unwrap();
                }
                let going = [0, 1, 2].into_iter().filter(|lane| *lane != 1 || step < 3);
                let fed: Vec<(usize, u32)> = going.map(|lane| (lane, step + 7)).collect();
                let pass = decoder.forward_lanes(&mut lanes, &fed, Taps::STATES).unwrap();
                seen.pass(&format!("step {step}"), &mut decoder, &pass);
            }
        }
        seen
    });
    seen[1].assert_bits_of(&seen[0]);
}

/// Policies in the loop look at the cache, evict from it, attend to parts of it and change it.
#[test]
fn policies_in_the_loop_do_the_same_on_a_device() {
    const KNOBS: Knobs = Knobs { capacity: 24, recent: 8, sinks: 2, period: 8, window: 8 };
    let mut evictions = 0;
    let ids = [
        "full",
        "streaming-llm",
        "streaming-llm, turned",
        "random",
        "snapkv",
        "h2o",
        "tova",
        "adakv",
        "vase-attnv",
        "criticalkv",
        "quest",
        "oracle-top-k",
        "kv-int8",
        "kv-mixed",
    ];
    for id in ids {
        let runs = both(TinySpec::default()).map(|mut model| {
            let (id, params) = match id {
                "streaming-llm, turned" => (
                    "streaming-llm",
                    RawParams::from_params(&serde_json::json!({ "rerotate": true })).unwrap(),
                ),
                id => (id, RawParams::default()),
            };
            let stack = registry::composition(id).unwrap().stack(&KNOBS, &params).unwrap();
            let prefix = Prefix::for_stacks(&mut model, &tokens(24), chunk(16), [&stack]).unwrap();
            let mut run =
                LiveRun::fork(&mut model, &prefix, LiveCell::new(&stack, 3), SeqIdx::new(0)).unwrap();
            let mut seen = Seen::default();
            for token in tokens(40) {
                seen.add(&format!("{id}: logits"), run.step(token).unwrap());
            }
            seen.cache(id, run.decoder().cache());
            (seen, run.finish())
        });
        let [(host, on_host), (device, on_device)] = runs;
        device.assert_bits_of(&host);
        assert_eq!(on_device.evictions, on_host.evictions, "{id}");
        evictions += on_host.eviction_count();
    }
    assert!(evictions > 100, "{evictions}");
}

/// What a single decode step takes and gives, after so many tokens and what `happens` to them.
pub(crate) fn at_a_step(model: &mut Model, before: usize, happens: impl Fn(&mut Decoder<'_>)) -> Crossed {
    let prompt: Vec<u32> = tokens(61).into_iter().cycle().take(before).collect();
    let mut decoder = model.decoder().unwrap();
    decoder.prefill(&prompt, chunk(64), Taps::NONE, |_, _| Ok::<_, DecodeError>(())).unwrap();
    happens(&mut decoder);
    // The first step after a change may bring positions along.
    decoder.forward(&[3], Taps::NONE).unwrap();
    let (cache, begin) = (decoder.cache().clone(), decoder.crossed());
    decoder.forward(&[4], Taps::NONE).unwrap();
    let crossed = decoder.crossed().since(begin);
    drop(cache);
    crossed
}

#[test]
fn what_crosses_at_a_decode_step_does_not_grow_with_the_cache() {
    let uneven = |decoder: &mut Decoder<'_>| {
        for layer in 0..decoder.config().layers {
            let kept = sets(decoder, layer, |head, pos| !(pos as usize + head).is_multiple_of(head + 2));
            decoder.retain(layer, &kept).unwrap();
        }
    };
    for spec in specs() {
        let [mut host, mut device] = both(spec);
        for (name, happens) in [("whole", None), ("uneven", Some(uneven))] {
            let step = |model: &mut Model, before: usize| {
                at_a_step(model, before, |decoder| happens.iter().for_each(|happens| happens(decoder)))
            };
            let [short, long] = [20, 300].map(|before| step(&mut device, before));
            assert_eq!(short, long, "{name}");
            let [short, long] = [20, 300].map(|before| step(&mut host, before));
            assert!(long.bytes() > 5 * short.bytes(), "{name}: {short:?}, {long:?}");
        }
    }
    // Derived for the plain model: 3 layers of 2 KV heads of 8 channels, hidden states of 32. To the device: the embedding, cosines and sines, what is
    // added to scores (one number). To the host: new keys and values of each layer, a probe each but for the last, the last hidden state.
    let spec = TinySpec::default();
    let [_, mut device] = both(spec);
    let crossed = at_a_step(&mut device, 50, |_| {});
    assert_eq!(crossed.to_device_bytes, 4 * (32 + 2 * 8 + 1));
    assert_eq!(crossed.to_host_bytes, 4 * (3 * 2 * 2 * 8 + 2 + 32));
}

/// The same for lanes behind a prefix of any length.
#[test]
fn what_crosses_at_a_step_of_lanes_does_not_grow_with_the_cache() {
    let step = |model: &mut Model, before: usize| {
        let prompt: Vec<u32> = tokens(61).into_iter().cycle().take(before).collect();
        let mut decoder = model.decoder().unwrap();
        decoder.forward(&prompt, Taps::NONE).unwrap();
        let mut lanes = Lanes::behind(decoder.cache().clone(), 3);
        let fed: Vec<(usize, u32)> = (0..3).map(|lane| (lane, 5)).collect();
        decoder.forward_lanes(&mut lanes, &fed, Taps::NONE).unwrap();
        let begin = decoder.crossed();
        decoder.forward_lanes(&mut lanes, &fed, Taps::NONE).unwrap();
        decoder.crossed().since(begin)
    };
    let [mut host, mut device] = both(TinySpec::default());
    let [short, long] = [20, 300].map(|before| step(&mut device, before));
    assert_eq!(short, long);
    let [short, long] = [20, 300].map(|before| step(&mut host, before));
    assert!(long.bytes() > 5 * short.bytes(), "{short:?}, {long:?}");
}

/// A look from the host brings rows once; from then on only new ones come.
#[test]
fn a_copy_on_the_host_follows_without_another_look() {
    let mut model = in_memory(TinySpec::default(), CacheMemory::Device, load_options());
    let mut decoder = model.decoder().unwrap();
    decoder.forward(&tokens(40), Taps::NONE).unwrap();
    let look = |decoder: &Decoder<'_>| {
        let before = decoder.crossed();
        let layer = &decoder.cache().layers()[1];
        (layer.keys(0).unwrap().len(), decoder.crossed().since(before).to_host_bytes)
    };
    assert_eq!(look(&decoder), (40 * 8, 4 * 2 * 40 * 8), "keys of both heads come, no values");
    decoder.forward(&[5], Taps::NONE).unwrap();
    assert_eq!(look(&decoder), (41 * 8, 0));
    decoder.retain(1, &[vec![0, 7, 40], vec![3]]).unwrap();
    assert_eq!(look(&decoder), (3 * 8, 0));
}
