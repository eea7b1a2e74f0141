//! What all thresholds at once cost: a million joint settings over 1,000 problems of 8 branches and 30 layers, and the naive twin.
//!
//! `cargo bench -p kvlab-sim --bench steps`; with `-- DIR` the facts are written to `DIR` too, for the NumPy twin
//! `tools/bench/steps_numpy.py DIR`. Prints wall times of single runs; asserts equal counts, nothing about time.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use kvlab_sim::policy::compose::Part;
use kvlab_sim::steps::{Axis, Counts, Grid, Setting, StepTable};
use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};
use kvlab_sim::trace::{Outcome, Prefix, TraceSource};
use kvlab_sim::trees::{TreeFacts, TreeModel, TreeParts, TreeStack, full_pipeline, replay_problem};
use kvlab_sim::types::ModelShape;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

const LAYERS: u16 = 30;
const VOCAB: u32 = 49_152;
const MODEL: TreeModel = TreeModel { layers: LAYERS, vocab: VOCAB };
/// Values an axis of the grid: 16⁵ is 1,048,576.
const PER_AXIS: u32 = 16;

fn part(kind: &str, params: &serde_json::Value) -> Part {
    Part::with(kind, params).expect("parameters are a map")
}

/// The published pipeline with its rules and exit, at a setting.
fn stack(setting: &Setting) -> TreeStack {
    TreeStack::build(&TreeParts {
        share: part("asks", &serde_json::json!({ "tau": setting.tau })),
        verify: part("cgee", &serde_json::json!({ "tau_conf": setting.tau_conf, "margin": setting.margin })),
        exit: part("entropy", &serde_json::json!({ "theta": setting.theta, "epsilon": setting.epsilon })),
        ..TreeParts::default()
    })
    .expect("the parts are registered")
}

fn at(low: f64, high: f64, share: f64) -> f64 {
    low + (high - low) * share
}

/// A setting from five shares of the ranges of its axes.
fn setting(shares: [f64; 5]) -> Setting {
    Setting {
        tau: at(0.5, 1.0, shares[0]),
        tau_conf: at(0.5, 0.95, shares[1]),
        margin: at(0.0, 0.2, shares[2]),
        theta: at(0.5, 9.0, shares[3]),
        epsilon: at(0.05, 3.0, shares[4]),
    }
}

fn grid() -> Grid {
    let axis = |value: fn(&Setting) -> f64| {
        (0..PER_AXIS).map(|i| value(&setting([f64::from(i) / f64::from(PER_AXIS); 5]))).collect()
    };
    Grid {
        tau: axis(|s| s.tau),
        tau_conf: axis(|s| s.tau_conf),
        margin: axis(|s| s.margin),
        theta: axis(|s| s.theta),
        epsilon: axis(|s| s.epsilon),
    }
}

/// Settings without any repeated value (a Weyl sequence in five dimensions).
fn scattered(count: u32) -> Vec<Setting> {
    let steps = [0.819_172_513_4, 0.671_043_606_7, 0.549_700_477_9, 0.450_299_522_1, 0.368_868_6];
    (1..=count).map(|i| setting(steps.map(|step| (f64::from(i) * step).fract()))).collect()
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let result = work();
    let seconds = begin.elapsed().as_secs_f64();
    println!("{what:<64} {seconds:>9.3} s");
    (result, seconds)
}

/// One setting by replaying every problem.
fn naive(trees: &[TreeFacts], setting: &Setting) -> Counts {
    let stack = stack(setting);
    let mut counts = Counts::default();
    for facts in trees {
        let decision = replay_problem(&stack, facts, MODEL, 0, &[]).expect("the facts are complete");
        let full = full_pipeline(stack.winner.as_ref(), facts).expect("the facts are complete");
        let (here, there) = (decision.choice.correct == Some(true), full.correct == Some(true));
        counts.shared += decision.branches.iter().filter(|b| b.sharing.prefix == Prefix::Root).count() as u64;
        counts.skipped += u64::from(decision.skipped);
        for run in decision.branches.iter().filter_map(|branch| branch.layers_run) {
            counts.verified += 1;
            counts.exited += u64::from(run < LAYERS);
            counts.layers_run += u64::from(run);
        }
        counts.correct += u64::from(here);
        counts.agreeing += u64::from(decision.choice.answer == full.answer);
        counts.harmed += u64::from(there && !here);
        counts.helped += u64::from(here && !there);
    }
    counts
}

/// Writes the facts as raw little-endian arrays: `[problem, branch]`, then `[.., prefix]` (own, root), then `[.., layer]`.
fn export(trees: &[TreeFacts], stack: &TreeStack, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let (mut sigma, mut confidence, mut entropy, mut yes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut correct, mut full_correct) = (Vec::new(), Vec::new());
    let asks = stack.share.as_asks().expect("the stack shares by similarity");
    for facts in trees {
        for &branch in &facts.leaves {
            let value =
                asks.sigma(&facts.problem.branches[branch].similarity).expect("similarities are there");
            sigma.extend(value.to_le_bytes());
            for prefix in Prefix::ALL {
                let outcome: &Outcome = facts.outcome(branch, prefix).expect("both outcomes are there");
                confidence.extend(f64::from(outcome.confidences.mean_top1_prob).to_le_bytes());
                correct.push(u8::from(outcome.correct == Some(true)));
                for layer in outcome.verdict.iter().flat_map(|verdict| &verdict.layers) {
                    entropy.extend(layer.entropy_nats.to_le_bytes());
                    yes.extend(layer.p_yes.to_le_bytes());
                }
            }
        }
        let full = full_pipeline(stack.winner.as_ref(), facts).expect("the facts are complete");
        full_correct.push(u8::from(full.correct == Some(true)));
    }
    for (name, bytes) in [
        ("sigma.f64", sigma),
        ("confidence.f64", confidence),
        ("correct.u8", correct),
        ("entropy.f32", entropy),
        ("p_yes.f32", yes),
        ("full_correct.u8", full_correct),
    ] {
        std::fs::File::create(folder.join(name))?.write_all(&bytes)?;
    }
    Ok(())
}

fn main() {
    let threads: usize = std::env::var("KVLAB_BENCH_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start");
    let folder = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    pool.install(|| run(folder.as_deref().map(Path::new), threads));
}

fn run(folder: Option<&Path>, threads: usize) {
    let shape = ModelShape { layers: LAYERS, q_heads: 1, kv_heads: 1, head_dim: 2, hidden: 2, vocab: VOCAB };
    let params = BranchParams { problems: 1000, sigma_noise: 0.05, ..BranchParams::default() };
    let source = SyntheticBranches::build(shape, 1, params).expect("the parameters are in range");
    let trees: Vec<TreeFacts> = (0..source.problems())
        .map(|at| TreeFacts::new(at, source.problem(at).expect("a generated problem")))
        .collect();
    let base = Setting { tau: 0.82, tau_conf: 0.7, margin: 0.06, theta: 4.0, epsilon: 1.0 };
    let built = stack(&base);
    if let Some(folder) = folder {
        export(&trees, &built, folder).expect("the folder can be written");
        println!("facts written to {}", folder.display());
    }
    println!("{} problems x 8 branches x {LAYERS} layers, {threads} threads", trees.len());
    let (table, _) = timed("build the step table", || {
        StepTable::build(&trees, &built, MODEL).expect("the facts are complete")
    });
    let grid = grid();
    let settings: Vec<Setting> = grid.settings().collect();
    let (on_grid, grid_seconds) =
        timed(&format!("{} settings on a grid", settings.len()), || table.grid(&grid));
    let (one_by_one, _) = timed("the same settings one by one", || table.joint(&settings));
    assert!(on_grid == one_by_one, "both ways agree");
    let anywhere = scattered(1_000_000);
    let (_, anywhere_seconds) =
        timed(&format!("{} settings without a repeated value", anywhere.len()), || table.joint(&anywhere));
    let (steps, _) = timed("exact step functions of all five thresholds", || {
        Axis::ALL.map(|axis| table.along(axis, &base).len())
    });
    println!("steps: {steps:?}");
    let picked: Vec<usize> = (0..settings.len()).step_by(settings.len() / 20).collect();
    let (counts, naive_seconds) =
        timed(&format!("naive twin, {} settings, one thread", picked.len()), || {
            picked.iter().map(|&at| naive(&trees, &settings[at])).collect::<Vec<_>>()
        });
    assert!(picked.iter().zip(&counts).all(|(&at, counts)| on_grid[at] == *counts), "both twins agree");
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let per_setting = naive_seconds / picked.len() as f64;
    println!("naive twin on one thread / grid: {:.0} times", per_setting * 1_048_576.0 / grid_seconds);
    println!("naive twin on one thread / scattered: {:.0} times", per_setting * 1e6 / anywhere_seconds);
    let best = on_grid.iter().map(|counts| counts.correct).max().unwrap_or(0);
    let sum: u64 = on_grid.iter().map(|counts| counts.correct).sum();
    println!(
        "best accuracy on the grid: {best} of {}; sum of right answers over the grid: {sum}",
        table.gradable()
    );
}
