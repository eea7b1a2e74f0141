//! What a block cache costs: LRU over ids, and every policy over a tree. `cargo bench -p kvlab-sim --bench pool`.
//!
//! `-- --write FILE` also writes the ids as records of libCacheSim's `oracleGeneral` format (little-endian: time `u32`, id `u64`, size `u32`, next access
//! `i64`), so that another simulator can be run on the same requests.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and stops at a failure")]
#![expect(clippy::cast_precision_loss, reason = "rates are rounded anyway")]

use kvlab_sim::policy::{RawParams, registry};
use kvlab_sim::pool::synth::{generator, zipf_ids};
use kvlab_sim::pool::{BlockStream, Limits, replay};
use std::io::Write;
use std::time::{Duration, Instant};

const REQUESTS: u32 = 10_000_000;
const OBJECTS: u32 = 1_000_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ids: Vec<u64> = zipf_ids(REQUESTS, OBJECTS, 1.0, 0).collect();
    if let Some(at) = args.iter().position(|arg| arg == "--write") {
        write(&ids, &args[at + 1]);
    }
    println!("{REQUESTS} requests, {OBJECTS} objects, Zipf exponent 1.0; best of 5 rounds");
    let (stream, interned) = best(|| BlockStream::flat("zipf", true, 16, ids.iter().copied()).unwrap());
    println!("ids to indices, once for all cells: {:.1} M requests/s", rate(interned));
    for capacity_blocks in [1_000, 10_000, 100_000] {
        let limits = Limits { capacity_blocks, in_flight: 1 };
        for id in ["lru", "fifo", "lfu"] {
            let policy =
                (registry::find(registry::POOLS, "pool", id).unwrap().build)(&RawParams::default()).unwrap();
            let (counts, took) = best(|| replay(&stream, policy.as_ref(), limits));
            let misses = counts.asked_blocks - counts.found_blocks;
            let from_ids = rate(took + interned);
            println!(
                "{id} {capacity_blocks}: {:.1} M requests/s ({from_ids:.1} with ids to indices), {misses} misses, miss ratio {:.4}",
                rate(took),
                misses as f64 / counts.asked_blocks as f64
            );
        }
    }
    let tree = generator("mcts-trees").unwrap().build(serde_json::json!({ "problems": 400 }), 0).unwrap();
    let limits = Limits { capacity_blocks: u64::from(tree.distinct()) / 50, in_flight: 1 };
    println!(
        "{} requests of trees, {} blocks asked for, {} of {} cached",
        tree.len(),
        tree.blocks_asked(),
        limits.capacity_blocks,
        tree.distinct()
    );
    for entry in registry::POOLS {
        let policy = (entry.build)(&RawParams::default()).unwrap();
        let (counts, took) = best(|| replay(&tree, policy.as_ref(), limits));
        let blocks = counts.asked_blocks as f64 / took.as_secs_f64() / 1e6;
        println!("{}: {blocks:.1} M blocks/s, {} found", entry.spec.id, counts.found_blocks);
    }
}

fn rate(took: Duration) -> f64 {
    f64::from(REQUESTS) / took.as_secs_f64() / 1e6
}

fn best<T>(run: impl Fn() -> T) -> (T, Duration) {
    let round = || {
        let start = Instant::now();
        let result = run();
        (result, start.elapsed())
    };
    (0..5).map(|_| round()).min_by_key(|(_, took)| *took).unwrap()
}

fn write(ids: &[u64], path: &str) {
    let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    for (at, id) in (0_u32..).zip(ids) {
        out.write_all(&at.to_le_bytes()).unwrap();
        out.write_all(&id.to_le_bytes()).unwrap();
        out.write_all(&1_u32.to_le_bytes()).unwrap();
        out.write_all(&(-2_i64).to_le_bytes()).unwrap();
    }
    out.flush().unwrap();
}
