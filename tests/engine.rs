//! The event engine. Here: how tests run it; in the modules: what they claim.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod forks;
mod memory;
mod order;

use kvlab_sim::engine::{Checking, Eviction, Request, Settings, Summary, UnitCost, Workload, run};
use kvlab_sim::ledger::Kept;
use kvlab_sim::observe::{EventLog, Fanout, LogDigest, Memory, MemoryReport};
use kvlab_sim::types::{ModelShape, Nanos, Pos, ReqId};
use proptest::prelude::*;
use serde_json::Value;

const SHAPE: ModelShape =
    ModelShape { layers: 2, q_heads: 4, kv_heads: 2, head_dim: 8, hidden: 16, vocab: 32 };
const STREAMS: usize = 4;
/// Bytes of one entry: a key and a value of 8 channels, 2 bytes each.
const ENTRY: u64 = 32;

fn workload(requests: Vec<Request>) -> Workload {
    Workload { requests, shape: SHAPE, block_tokens: 4, bytes_per_scalar: 2, capacity_blocks: None }
}

fn request(req: u32, prompt_len: u32, len: u32) -> Request {
    let (evictions, forks) = (Vec::new(), Vec::new());
    Request { req: ReqId::new(req), prompt_len, len, arrival: Nanos::ZERO, evictions, forks }
}

/// An eviction that keeps the last `count` positions seen in every layer and KV head.
fn keep_last(seen: u32, count: u32) -> Eviction {
    let list: Vec<Pos> = (seen - count..seen).map(Pos::new).collect();
    Eviction { seen, kept: Kept::Positions(vec![list; STREAMS]) }
}

/// Evictions to `budget` whenever more are stored and their number is a multiple of `period`.
fn periodic(prompt_len: u32, len: u32, budget: u32, period: u32) -> Vec<Eviction> {
    let mut stored = prompt_len;
    let mut evictions = Vec::new();
    for seen in prompt_len + 1..=len {
        stored += 1;
        if stored > budget && stored.is_multiple_of(period) {
            evictions.push(keep_last(seen, budget));
            stored = budget;
        }
    }
    evictions
}

struct Outcome {
    summary: Summary,
    memory: MemoryReport,
    digest: String,
    log: Vec<u8>,
}

impl Outcome {
    fn lines(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.log).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn records(&self, what: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["what"] == what).collect()
    }
}

fn checked() -> Settings {
    Settings { checking: Checking::EachEvent, ..Settings::default() }
}

fn outcome(workload: &Workload, settings: &Settings) -> Outcome {
    let (mut digest, mut log, mut memory) =
        (LogDigest::new(), EventLog::new(Vec::new()), Memory::new(workload));
    let mut observers = Fanout::new(vec![&mut digest, &mut log, &mut memory]);
    let summary = run(workload, settings, &UnitCost::default(), &mut observers).unwrap();
    Outcome { summary, memory: memory.report(), digest: digest.finish(), log: log.finish().unwrap() }
}

fn any_workload() -> impl Strategy<Value = Workload> {
    let plan = (1..12u32, 0..30u32, 4..9u32, 1..5u32, 0..4u64);
    prop::collection::vec(plan, 0..6).prop_map(|plans| {
        let build =
            |(req, (prompt_len, decode, budget, period, arrival)): (usize, (u32, u32, u32, u32, u64))| {
                Request {
                    evictions: periodic(prompt_len, prompt_len + decode, budget, period),
                    arrival: Nanos::new(700 * arrival),
                    ..request(u32::try_from(req).unwrap(), prompt_len, prompt_len + decode)
                }
            };
        workload(plans.into_iter().enumerate().map(build).collect())
    })
}
