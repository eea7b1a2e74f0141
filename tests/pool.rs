//! The block cache: against a naive twin, against the RKSC authors' class, and against its bound.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod naive;

use kvlab_sim::policy::pool::{BlockFacts, Pool};
use kvlab_sim::policy::{RawParams, registry};
use kvlab_sim::pool::{
    BlockStream, Counts, Limits, PoolEvent, StreamBuilder, replay, replay_events, replay_with, synth,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn policy(id: &str, params: &Value) -> Box<dyn Pool> {
    let raw = RawParams::from_params(params).unwrap();
    (registry::find(registry::POOLS, "pool", id).unwrap().build)(&raw).unwrap()
}

fn all_policies() -> Vec<Box<dyn Pool>> {
    let mut policies: Vec<Box<dyn Pool>> =
        registry::POOLS.iter().map(|entry| policy(entry.spec.id, &json!({}))).collect();
    policies.push(policy("rsbcm", &json!({ "form": "as-coded" })));
    policies.push(policy("rsbcm", &json!({ "kappa": 0, "shared": "mean" })));
    policies
}

fn limits(capacity_blocks: u64, in_flight: u32) -> Limits {
    Limits { capacity_blocks, in_flight }
}

/// Requests as paths in a tree: each takes a first part of an earlier path and goes on with new or old blocks.
fn any_stream() -> impl Strategy<Value = BlockStream> {
    let step =
        (any::<prop::sample::Index>(), 0..6_usize, 0..4_usize, 1..5_u32, 0..4_u8, 0..5_u32, any::<bool>());
    prop::collection::vec(step, 1..40).prop_map(|steps| {
        let mut builder = StreamBuilder::new("tree", true, 4);
        let mut paths: Vec<Vec<u64>> = vec![Vec::new()];
        let mut fresh = 0;
        for (from, shared, more, depth, score, tail, has_tail_id) in steps {
            let base = &paths[from.index(paths.len())];
            let mut path: Vec<u64> = base.iter().copied().take(shared).collect();
            for _ in 0..more {
                path.push(fresh);
                fresh += 1;
            }
            if path.is_empty() {
                path.push(fresh);
                fresh += 1;
            }
            paths.push(path.clone());
            let tail = tail.min(3);
            let tokens = u32::try_from(path.len()).unwrap() * 4 + tail;
            if tail > 0 && has_tail_id {
                path.push(1000 + u64::from(tail));
            }
            let attention = vec![f32::from(score + 1) / 4.0; path.len()];
            builder.push(tokens, &path, Some(f32::from(score) / 4.0), Some(depth), &attention).unwrap();
        }
        builder.finish().unwrap()
    })
}

fn any_flat_stream() -> impl Strategy<Value = BlockStream> {
    prop::collection::vec(0..12_u64, 1..80).prop_map(|ids| BlockStream::flat("flat", true, 16, ids).unwrap())
}

fn with_log(stream: &BlockStream, policy: &dyn Pool, limits: Limits) -> (Counts, Vec<(u64, u32)>) {
    let mut log = Vec::new();
    let counts = replay_with(stream, policy, limits, |request, block| log.push((request, block)));
    (counts, log)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn every_policy_does_what_a_scan_of_all_blocks_does(
        stream in prop_oneof![any_stream(), any_flat_stream()], capacity in 0..14_u64, in_flight in 1..4_u32,
    ) {
        for policy in all_policies() {
            let limits = limits(capacity, in_flight);
            let found = with_log(&stream, policy.as_ref(), limits);
            let expected = naive::replay(&stream, policy.as_ref(), limits);
            prop_assert_eq!(found, expected, "{} {}", policy.spec().id, policy.params());
        }
    }

    #[test]
    fn tokens_asked_for_are_hits_misses_and_recomputed_tokens(
        stream in any_stream(), capacity in 0..14_u64, in_flight in 1..4_u32,
    ) {
        let asked: u64 = (0..stream.len()).map(|at| u64::from(stream.request(at).0.tokens)).sum();
        let mut first = None;
        for policy in all_policies() {
            let counts = replay(&stream, policy.as_ref(), limits(capacity, in_flight));
            prop_assert_eq!(counts.asked_tokens, asked);
            prop_assert_eq!(counts.hit_tokens + counts.missed_tokens + counts.recomputed_tokens, asked);
            prop_assert!(counts.peak_blocks <= capacity);
            prop_assert_eq!(counts.stored_blocks - counts.evicted_blocks <= capacity, true);
            // What nobody computed before is the same whatever is evicted.
            prop_assert_eq!(*first.get_or_insert(counts.missed_tokens), counts.missed_tokens);
        }
    }

    /// A cache that does nothing but what the events say holds what the counts say, and never more than it may.
    #[test]
    fn events_add_up_to_the_counts(
        stream in prop_oneof![any_stream(), any_flat_stream()], capacity in 0..14_u64, in_flight in 1..4_u32,
    ) {
        for policy in all_policies() {
            let limits = limits(capacity, in_flight);
            let (mut held, mut peak, mut hits, mut log) = (BTreeSet::new(), 0, 0, Vec::new());
            let counts = replay_events(&stream, policy.as_ref(), limits, |event| match event {
                PoolEvent::Served { request, usable } => {
                    let (_, blocks) = stream.request(usize::try_from(request).unwrap() - 1);
                    let there = blocks.iter().take_while(|block| held.contains(*block)).count();
                    assert!(usable <= there, "a block is of use that is not there");
                    hits += usable as u64 * u64::from(stream.block_tokens());
                }
                PoolEvent::Evicted { request, block } => {
                    assert!(held.remove(&block), "a block goes that is not there");
                    log.push((request, block));
                }
                PoolEvent::Stored { request, at, block } => {
                    assert_eq!(stream.request(usize::try_from(request).unwrap() - 1).1[at], block);
                    assert!(held.insert(block), "a block is stored twice");
                    peak = peak.max(held.len() as u64);
                }
            });
            prop_assert_eq!(hits, counts.hit_tokens);
            prop_assert_eq!(peak, counts.peak_blocks);
            prop_assert_eq!(held.len() as u64, counts.stored_blocks - counts.evicted_blocks);
            prop_assert_eq!((counts, log), with_log(&stream, policy.as_ref(), limits));
        }
    }

    #[test]
    fn nobody_finds_more_blocks_than_belady(
        stream in prop_oneof![any_stream(), any_flat_stream()], capacity in 1..14_u64, in_flight in 1..4_u32,
    ) {
        let limits = limits(capacity, in_flight);
        let bound = replay(&stream, policy("belady", &json!({})).as_ref(), limits).found_blocks;
        for policy in all_policies() {
            let found = replay(&stream, policy.as_ref(), limits).found_blocks;
            prop_assert!(found <= bound, "{}: {found} of at most {bound}", policy.spec().id);
        }
    }

    #[test]
    fn a_cache_for_everything_computes_nothing_twice(stream in any_stream()) {
        for policy in all_policies() {
            let counts = replay(&stream, policy.as_ref(), limits(u64::from(stream.distinct()), 1));
            prop_assert_eq!((counts.evicted_blocks, counts.unstored_blocks), (0, 0));
            prop_assert_eq!(counts.peak_blocks, u64::from(stream.distinct()));
        }
    }
}

/// Belady's bound is found by trying every choice on small flat streams.
#[test]
fn belady_is_the_best_of_all_choices() {
    for seed in 0..12 {
        let zipf = json!({ "requests": 14, "objects": 6, "exponent": 0.5 });
        let stream = synth::generator("zipf").unwrap().build(zipf, seed).unwrap();
        let blocks: Vec<u32> = (0..stream.len()).map(|at| stream.request(at).1[0]).collect();
        for capacity in 1..4 {
            let found =
                replay(&stream, policy("belady", &json!({})).as_ref(), limits(capacity, 1)).found_blocks;
            assert_eq!(
                found,
                naive::most_found(&blocks, &mut Vec::new(), usize::try_from(capacity).unwrap())
            );
        }
    }
}

/// The notebook's class, on records instead of blocks: smallest importance / (depth + 1) first, ties to the oldest.
#[test]
fn as_coded_evicts_in_the_order_of_the_notebook() {
    let text = include_str!("golden/rksc/rsbcm.json");
    let golden: Value = serde_json::from_str(text).unwrap();
    let rsbcm = policy("rsbcm", &json!({ "form": "as-coded" }));
    let mut events = 0;
    for sequence in golden["sequences"].as_array().unwrap() {
        let most = usize::try_from(sequence["max_blocks"].as_u64().unwrap()).unwrap();
        let mut pool: Vec<(u64, u64, BlockFacts)> = Vec::new();
        for event in sequence["events"].as_array().unwrap() {
            let mut evicted = Vec::new();
            let branch = event["branch_id"].as_u64().unwrap();
            if event["op"] == "allocate" {
                let id = event["block_id"].as_u64().unwrap();
                #[expect(clippy::cast_possible_truncation, reason = "as the notebook's numbers are typed")]
                let score = event["importance"].as_f64().unwrap() as f32;
                let depth = u32::try_from(event["tree_depth"].as_u64().unwrap()).unwrap();
                let facts = BlockFacts { depth, created: id, score_max: score, ..BlockFacts::default() };
                pool.push((id, branch, facts));
                while pool.len() > most {
                    let key = |(_, _, facts): &(u64, u64, BlockFacts)| rsbcm.rank(facts);
                    let least = (0..pool.len())
                        .min_by(|&a, &b| {
                            let (a, b) = (key(&pool[a]), key(&pool[b]));
                            a.worth.total_cmp(&b.worth).then(a.then.cmp(&b.then))
                        })
                        .unwrap();
                    evicted.push(pool.remove(least).0);
                }
            } else {
                evicted.extend(pool.iter().filter(|record| record.1 == branch).map(|record| record.0));
                pool.retain(|record| record.1 != branch);
            }
            let left: Vec<u64> = pool.iter().map(|record| record.0).collect();
            assert_eq!(json!(evicted), event["evicted"], "event {events}");
            assert_eq!(json!(left), event["pool_after"], "event {events}");
            events += 1;
        }
    }
    assert_eq!(events, 50);
}

/// Golden vector: equal in tokens 0..31, different at 35, blocks of 16: two blocks are found, the third is another one. A prompt of
/// exactly 32 cached tokens finds one block, because one token must be computed.
#[test]
fn a_block_is_found_when_everything_before_it_is_equal() {
    use kvlab_sim::trace::BlockIds;
    use kvlab_sim::types::TokenId;
    let mut ids = BlockIds::default();
    let tokens: Vec<TokenId> = (0..48).map(TokenId::new).collect();
    let mut other = tokens.clone();
    other[35] = TokenId::new(99);
    let mut builder = StreamBuilder::new("pair", true, 16);
    for prompt in [&tokens[..], &other[..], &tokens[..32]] {
        let len = u32::try_from(prompt.len()).unwrap();
        builder.push(len, &ids.of(prompt, 16), None, None, &[]).unwrap();
    }
    let stream = builder.finish().unwrap();
    assert_eq!([stream.request(0).1, stream.request(1).1], [&[0, 1, 2], &[0, 1, 3]]);
    let counts = replay(&stream, policy("lru", &json!({})).as_ref(), limits(100, 1));
    // First prompt: nothing. Second: 2 blocks. Third: 2 blocks are there, 1 is of use.
    assert_eq!((counts.hit_tokens, counts.found_blocks), (32 + 16, 4));
    assert_eq!((counts.missed_tokens, counts.recomputed_tokens), (48 + 16, 16));
}

/// H20: prompts that have nothing in common have no hits, however often they are pushed out and computed again.
#[test]
fn h20_what_is_computed_again_is_no_hit() {
    let mut builder = StreamBuilder::new("nothing in common", true, 16);
    for round in 0..2 {
        for request in 0..100_u64 {
            let path: Vec<u64> = (0..5).map(|block| request * 5 + block).collect();
            builder.push(81, &path, None, None, &[]).unwrap();
            let _: u64 = round;
        }
    }
    let stream = builder.finish().unwrap();
    for policy in all_policies().iter().filter(|policy| ["lru", "fifo"].contains(&policy.spec().id)) {
        let counts = replay(&stream, policy.as_ref(), limits(7, 1));
        let asked = 200 * 81;
        // The 81st token has no id: nobody can say that it was there before.
        let expected = (0, 100 * 81 + 100, 100 * 80, asked);
        let found = (counts.hit_tokens, counts.missed_tokens, counts.recomputed_tokens, counts.asked_tokens);
        assert_eq!(found, expected, "{}", policy.spec().id);
    }
}

#[test]
fn an_id_behind_another_block_is_refused_with_the_place() {
    let mut builder = StreamBuilder::new("contradiction", true, 16);
    builder.push(48, &[1, 2, 3], None, None, &[]).unwrap();
    let error = builder.push(48, &[1, 3, 2], None, None, &[]).unwrap_err().to_string();
    assert!(error.contains("request 1, block 1: id 3"), "{error}");
}

/// On generated trees depth alone loses to LRU never by much, and the formula cannot beat the bound: a smoke test of the streams.
#[test]
fn generated_trees_have_depth_scores_and_revisits() {
    for id in ["beam-trees", "mcts-trees"] {
        let stream = synth::generator(id).unwrap().build(json!({ "problems": 6 }), 1).unwrap();
        let depths = (0..stream.distinct()).map(|block| stream.place(block).1).max().unwrap();
        assert!(depths >= 3, "{id}: {depths}");
        assert!((0..stream.len()).any(|at| stream.request(at).0.score < 0.3));
        let all =
            replay(&stream, policy("lru", &json!({})).as_ref(), limits(u64::from(stream.distinct()), 1));
        assert_eq!(all.recomputed_tokens, 0, "one token behind the last block: every block can be used");
        let tight = limits(u64::from(stream.distinct()) / 20, 1);
        let lru = replay(&stream, policy("lru", &json!({})).as_ref(), tight);
        let omega = replay(&stream, policy("rsbcm", &json!({})).as_ref(), tight);
        assert!(lru.recomputed_tokens > 0 && omega != lru, "{id}: the limit is felt, and policies differ");
    }
}

#[test]
fn unknown_generators_and_parameters_are_refused_with_what_is_known() {
    let error = synth::generator("zpif").unwrap_err().to_string();
    assert!(error.contains("zpif") && error.contains("beam-trees, mcts-trees, zipf"), "{error}");
    let error = synth::generator("zipf").unwrap().build(json!({ "object": 3 }), 0).unwrap_err().to_string();
    assert!(error.contains("object") && error.contains("objects"), "{error}");
    let error = synth::generator("zipf").unwrap().build(json!({ "objects": 0 }), 0).unwrap_err().to_string();
    assert!(error.contains("objects is 0"), "{error}");
}

fn kvlab(folder: &std::path::Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_kvlab"))
        .current_dir(folder)
        .env("ORT_DYLIB_PATH", "/nonexistent/libonnxruntime.so")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Mooncake lines through `trace import` and `replay --pool`: numerators add up to the denominator, and mistakes are named.
#[test]
fn requests_are_replayed_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let line = |at: u64, tokens: u32, ids: &[u64]| {
        json!({ "timestamp": at, "input_length": tokens, "output_length": 1, "hash_ids": ids }).to_string()
            + "\n"
    };
    let lines = line(0, 40, &[1, 2, 3]) + &line(5, 40, &[1, 2, 3]) + &line(9, 33, &[1, 4, 5]);
    std::fs::write(folder.path().join("lines.jsonl"), lines).unwrap();
    let (code, _, error) =
        kvlab(folder.path(), &["trace", "import", "lines.jsonl", "--block-size", "16", "--out", "requests"]);
    assert_eq!(code, Some(0), "{error}");
    let replay = ["replay", "requests", "--pool", "lru,belady", "--capacity", "2,1.0", "--format", "csv"];
    let (code, table, error) = kvlab(folder.path(), &replay);
    assert_eq!(code, Some(0), "{error}");
    let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = rows.next().unwrap();
    let at = |name: &str| names.iter().position(|known| *known == name).unwrap();
    let mut seen = 0;
    for row in rows {
        let number = |name: &str| row[at(name)].parse::<u32>().unwrap();
        let parts = ["pool_hit_rate_num", "pool_miss_rate_num", "pool_recompute_rate_num"].map(number);
        assert_eq!(parts.iter().sum::<u32>(), 113, "{row:?}");
        assert_eq!(number("pool_hit_rate_den"), 113);
        // Request 2 finds both full blocks of 16; request 3 finds the first. The 8 tokens behind are computed again.
        assert_eq!(parts, [48, 57, 8], "{row:?}");
        seen += 1;
    }
    assert_eq!(seen, 4);
    for (args, expected) in [
        (vec!["replay", "requests", "--pool", "lfru"], "did you mean `lfu`"),
        (vec!["replay", "requests", "--pool", "lru", "--capacity", "1.5"], "pool.capacities is `1.5`"),
        (
            vec!["replay", "requests", "--pool", "lru", "--block-tokens", "32"],
            "blocks of 16 tokens, and 32 are asked for",
        ),
    ] {
        let (code, _, error) = kvlab(folder.path(), &args);
        assert!(code == Some(3) && error.contains(expected), "{code:?} {error}");
    }
    // A block has no bytes when nobody knows the model.
    let (code, _, error) =
        kvlab(folder.path(), &["replay", "requests", "--pool", "lru", "--capacity", "1GiB,2"]);
    assert!(code == Some(4) && error.contains("bytes mean nothing"), "{code:?} {error}");
}

#[test]
fn a_generated_stream_needs_no_trace_and_threads_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "id: zipf\nwhy: w\nseeds: [0, 1]\npool:\n  stream: {kind: zipf, params: {requests: 3000, objects: 200}}\n  \
capacities: [10%, 50]\n  policies: [{use: lru}, {use: lfu}, {use: belady}]\n";
    std::fs::write(folder.path().join("zipf.yaml"), scenario).unwrap();
    let run = |threads: &str| {
        let (code, table, error) =
            kvlab(folder.path(), &["sweep", "zipf.yaml", "--threads", threads, "--format", "csv"]);
        assert_eq!(code, Some(0), "{error}");
        table
    };
    let one = run("1");
    assert_eq!(one.lines().count(), 1 + 12);
    assert_eq!(one, run("3"));
    let eviction = "id: e\nwhy: w\neviction: {budgets: 16, policies: [{use: full}]}\n";
    std::fs::write(folder.path().join("e.yaml"), eviction).unwrap();
    let (code, _, error) = kvlab(folder.path(), &["sweep", "e.yaml"]);
    assert!(code == Some(2) && error.contains("--trace"), "{code:?} {error}");
}
