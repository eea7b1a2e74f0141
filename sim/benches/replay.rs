//! What a replay costs: one eviction setting, the next ones of a sweep, and the naive twin, in one interleaved run.
//!
//! `cargo bench -p kvlab-sim`, or `cargo bench -p kvlab-sim -- TRACE [POLICY …]` for whole studies of a recorded trace. Prints the least time of many interleaved rounds and ratios of them, so that other work on
//! the machine disturbs little; asserts nothing about time.

use kvlab_sim::policy::compose::{Knobs, Stack};
use kvlab_sim::policy::{RawParams, registry};
use kvlab_sim::replay::{EvictionCell, Settings, replay_layer};
use kvlab_sim::run::{RunOptions, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::trace::{LayerTensors, Trace, TraceSource};
use kvlab_sim::types::{LayerIdx, ModelShape};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const SETTINGS: Settings =
    Settings { output_error_every: 8, next_token_every: 0, bytes_per_scalar: 2, block_tokens: 16 };
const ROUNDS: usize = 60;

/// Decode steps from one output error to the next in studies of a trace.
const STUDY_ERROR_EVERY: u32 = 32;

const STUDY_ROUNDS: usize = 12;

fn stack(id: &str, capacity: u32) -> Stack {
    let knobs = Knobs { capacity, recent: 16, sinks: 4, period: 16, window: 16 };
    let entry = registry::composition(id).expect("the id is registered");
    entry.stack(&knobs, &RawParams::default()).expect("the amounts fit")
}

/// Attention-mass recall of a sinks-and-recency cache in f64, straight from the definition.
fn naive(shape: &ModelShape, tensors: &LayerTensors, prompt: usize, len: usize, capacity: usize) -> f64 {
    let mut total = 0.0;
    for q_head in 0..usize::from(shape.q_heads) {
        let kv = q_head / usize::from(shape.group());
        let mut resident: Vec<usize> = (0..prompt).collect();
        for t in prompt..len {
            resident.push(t);
            let logit = |i: usize| -> f64 {
                (0..usize::from(shape.head_dim))
                    .map(|c| f64::from(tensors.q[[q_head, t, c]]) * f64::from(tensors.k[[kv, i, c]]))
                    .sum::<f64>()
                    / f64::from(shape.head_dim).sqrt()
            };
            let all: Vec<f64> = (0..=t).map(logit).collect();
            let largest = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = all.iter().map(|x| (x - largest).exp()).collect();
            total += resident.iter().map(|&i| weights[i]).sum::<f64>() / weights.iter().sum::<f64>();
            if resident.len() > capacity && resident.len().is_multiple_of(16) {
                let newest = resident.split_off(resident.len() - (capacity - 4));
                resident.truncate(4);
                resident.extend(newest);
            }
        }
    }
    total
}

fn least(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Processor seconds of this process so far, where the system tells them.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // User and system time, in hundredths.
    Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / 100.0)
}

/// Wall and processor seconds of some rounds.
#[derive(Default)]
struct Times {
    walls: Vec<f64>,
    cpu: f64,
}

impl Times {
    fn add(&mut self, work: impl FnOnce()) {
        let (since, before) = (Instant::now(), cpu_seconds());
        work();
        self.walls.push(since.elapsed().as_secs_f64());
        self.cpu += before.zip(cpu_seconds()).map_or(f64::NAN, |(before, after)| after - before);
    }

    /// Least wall and mean processor time, in milliseconds.
    fn millis(&self) -> (f64, f64) {
        #[expect(clippy::cast_precision_loss, reason = "rounds are few")]
        let rounds = self.walls.len() as f64;
        (least(&self.walls) * 1e3, self.cpu * 1e3 / rounds)
    }
}

/// Milliseconds of a further one in each round, where a machine that others use is as fast for both: lower quartile, median, upper quartile.
fn by_rounds(one: &[f64], many: &[f64], further: f64) -> [f64; 3] {
    let mut rounds: Vec<f64> = one.iter().zip(many).map(|(one, many)| (many - one) * 1e3 / further).collect();
    rounds.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| rounds.get(rounds.len() * quarter / 4).copied().unwrap_or(f64::NAN))
}

/// Periods of the studies of a trace, and how many budgets each has. 64 is VaSE's.
const PERIODS: [(u32, u32); 4] = [(64, 5), (32, 11), (16, 21), (8, 41)];

/// Whole studies of a trace: reading, replay, engine and rows. Budgets are multiples of the period from twice the period, at least 32, on.
#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn studies(path: &str, policies: &[String]) {
    let trace = Trace::open(Path::new(path)).expect("the trace opens");
    let all = ["full", "streaming-llm", "snapkv", "vase-attnv", "vase-dkv"].map(str::to_owned);
    let policies = if policies.is_empty() { &all[..] } else { policies };
    println!(
        "studies of {path}, {} sequences; recent buffer = window = period; output error at every \
         {STUDY_ERROR_EVERY}th step; least wall and mean CPU time of {STUDY_ROUNDS} interleaved rounds, ms",
        trace.sequences().len()
    );
    println!(
        "{:14} {:>6} {:>6} {:>7} {:>17} {:>17} {:>19} {:>24}",
        "policy",
        "period",
        "cells",
        "threads",
        "one: wall, CPU",
        "all: wall, CPU",
        "a further one",
        "by rounds: median, half"
    );
    for policy in policies {
        for (period, count) in PERIODS {
            for threads in [1, 2] {
                let run = |count: u32| {
                    let first = (32 / period).max(2);
                    let budgets: Vec<String> =
                        (first..first + count).map(|n| (n * period).to_string()).collect();
                    let text = format!(
                        "id: bench\nwhy: what does it cost?\neviction: {{budgets: [{}], recent: {period}, period: {period}, \
                         window: {period}, output_error_every: {STUDY_ERROR_EVERY}, policies: [{{use: {policy}}}]}}",
                        budgets.join(", ")
                    );
                    let scenario = Scenario::parse(&text, "bench").expect("a scenario");
                    let options = RunOptions { threads, command: String::new(), progress: &|_, _| {} };
                    black_box(study(&scenario, &trace, source_info(&trace, "", ""), &options).expect("runs"));
                };
                let (mut one, mut many) = (Times::default(), Times::default());
                for _ in 0..STUDY_ROUNDS {
                    one.add(|| run(1));
                    many.add(|| run(count));
                }
                let rounds = by_rounds(&one.walls, &many.walls, f64::from(count - 1));
                let (one, many) = (one.millis(), many.millis());
                let further = |one: f64, many: f64| (many - one) / f64::from(count - 1);
                println!(
                    "{policy:14} {period:6} {count:6} {threads:7} {:8.1} {:8.1} {:8.1} {:8.1} {:9.2} {:9.2} {:9.2} [{:.2}, {:.2}]",
                    one.0,
                    one.1,
                    many.0,
                    many.1,
                    further(one.0, many.0),
                    further(one.1, many.1),
                    rounds[1],
                    rounds[0],
                    rounds[2]
                );
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [path, policies @ ..] = given.as_slice() {
        studies(path, policies);
        return;
    }
    // A layer of SmolLM2-135M: 400 prompt tokens, 128 decoded.
    let (prompt, len) = (400, 528);
    let shape = ModelShape { layers: 1, q_heads: 9, kv_heads: 3, head_dim: 64, hidden: 576, vocab: 49_152 };
    let spec = SynthSpec { shape, lengths: vec![SynthLength { prompt_len: prompt, len }], seed: 1 };
    let trace = Synthetic::build("sinks-and-hitters", spec).expect("the shape is valid");
    let tensors = trace.layer(trace.sequences()[0].seq, LayerIdx::new(0)).expect("generated");
    let time = |stacks: &[Stack]| {
        let cells: Vec<EvictionCell<'_>> =
            stacks.iter().map(|stack| EvictionCell { stack, seed: 0 }).collect();
        let meta = &trace.sequences()[0];
        let since = Instant::now();
        black_box(replay_layer(&shape, meta, LayerIdx::new(0), &tensors, &cells, SETTINGS).expect("replays"));
        since.elapsed().as_secs_f64()
    };
    let budgets: Vec<u32> = (4..=23).map(|n| n * 16).collect();
    println!(
        "one layer of SmolLM2's shape, 400 + 128 tokens, least time of {ROUNDS} interleaved rounds, one thread"
    );
    println!("{:14} {:>12} {:>16} {:>22}", "policy", "1 cell, ms", "20 cells, ms", "ms per further cell");
    for id in ["streaming-llm", "snapkv", "vase-attnv", "vase-dkv"] {
        let one = [stack(id, 128)];
        let many: Vec<Stack> = budgets.iter().map(|&budget| stack(id, budget)).collect();
        let (mut single, mut batch) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            single.push(time(&one));
            batch.push(time(&many));
        }
        let (single, batch) = (least(&single) * 1e3, least(&batch) * 1e3);
        println!("{id:14} {single:12.3} {batch:16.3} {:22.3}", (batch - single) / 19.0);
    }
    let one = [stack("streaming-llm", 128)];
    let (mut fast, mut slow) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        fast.push(time(&one));
        let since = Instant::now();
        black_box(naive(&shape, &tensors, prompt as usize, len as usize, 128));
        slow.push(since.elapsed().as_secs_f64());
    }
    let (fast, slow) = (least(&fast) * 1e3, least(&slow) * 1e3);
    println!("naive twin of streaming-llm (recall only): {slow:.3} ms, {:.1} times ours", slow / fast);
}
