//! `kvlab demo`: set-up, record, replay, sweep, plot, report, in one go.

use super::above_0;
use super::items::ItemArgs;
use super::record_branches::BranchArgs;
use super::runtime::{CHAIN, RuntimeArgs};
use super::{folder, plot, record, report, study};
use crate::exit::{CliError, Done};
use crate::output::{self, news};
use crate::progress::Bars;
use kvlab_executor::closed_loop::{ExecPlan, Mode, exec};
use kvlab_executor::workload::chain::{DEFAULT_LEVEL, LEVELS};
use kvlab_executor::{ExecutorError, ItemSet};
use kvlab_sim::results::Results;
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::{Leftover, Trace};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

const SCENARIO: &str = include_str!("../../scenarios/demo.yaml");

/// Do the main job once, from nothing: get a runtime, record, replay, sweep, run policies in the loop, draw, report.
///
/// The first time, ONNX Runtime is installed into kvlab's cache (about 30 MB). The default model ships inside the program:
/// a tiny reasoner whose answers can be checked, so the report has executed accuracies beside the replay's decisions and
/// proxies. `--model smollm2` fetches SmolLM2-135M-Instruct (about 100 MB) and leaves the executed part out. A recording
/// that was interrupted goes on; one that is there already with the same settings is used again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for everything that is written
    #[arg(long, default_value = "kvlab-out", value_name = "DIR")]
    out: PathBuf,
    /// Seed of the generated problems, and first seed of the stochastic policies
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=study::MOST_SEED - 2))]
    seed: u64,
    /// Threads of the model and of the replay [default: all cores]
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>)]
    threads: Option<NonZeroUsize>,
    /// `chain` (inside the program), `smollm2`, a GGUF file, a Hugging Face folder, or an exported ONNX decoder
    #[arg(long, default_value = CHAIN, value_name = "MODEL")]
    model: String,
    /// A few short problems: well under a minute after set-up
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let tables = args.out.join("results");
    folder::check(&tables)?;
    let bars = Bars::default();
    let set = items(args)?;
    let trace = trace(args, &set, &bars)?;
    let scenario = Scenario::parse(&scenario_text(args, SCENARIO), "the demo's scenario")?;
    let threads = args.threads.map_or(0, NonZeroUsize::get);
    let mut results = study::run(&scenario, &trace, threads, study::command_line(), &bars)?;
    if args.model == CHAIN {
        let executed = executed(args, &set, &bars)?;
        results.cells.append(&executed.cells)?;
        results.series.append(&executed.series)?;
    }
    study::write(&results, &tables, study::TableArgs::CSV)?;
    let page = args.out.join("report.html");
    bars.piece("figures and report", |_| -> Result<(), CliError> {
        plot::tell(&kvlab_plots::render_all(
            &results,
            &args.out.join("figures"),
            kvlab_plots::Pictures::Svg,
        )?);
        report::write(kvlab_plots::render_report(&results).as_bytes(), &page)
    })?;
    let outcome = study::outcome(&results);
    news(&format!(
        "trace    {}\ntables   {}\nfigures  {}",
        args.out.join(trace_name(args)).display(),
        tables.display(),
        args.out.join("figures").display()
    ));
    output::print(&format!("open {}\n", page.display()))?;
    Ok(outcome)
}

/// The problems of the demo: those that the model is made for.
fn items(args: &Args) -> Result<ItemSet, CliError> {
    if args.model == CHAIN {
        let (level, count) = if args.quick { (LEVELS[0], 6) } else { (LEVELS[DEFAULT_LEVEL], 16) };
        return Ok(ItemSet::chain(level, count, args.seed));
    }
    let mut set = ItemSet::gsm8k_sample().map_err(ExecutorError::from)?;
    set.truncate(if args.quick { 2 } else { 5 });
    Ok(set)
}

fn new_tokens(args: &Args, set: &ItemSet) -> u32 {
    if args.quick && args.model != CHAIN { 72 } else { set.usual_new_tokens }
}

/// The same policies in the loop of the model, one seed.
fn executed(args: &Args, set: &ItemSet, bars: &Bars) -> Result<Results, CliError> {
    let seeds = format!("seeds: [{}]", args.seed);
    let text = SCENARIO.replace("seeds: [0, 1, 2]", &seeds);
    let scenario = Scenario::parse(&scenario_text(args, &text), "the demo's scenario")?;
    let mut model = args.runtime.load(&args.model, args.threads, bars)?;
    let plan = ExecPlan {
        scenario: &scenario,
        mode: Mode::Free,
        max_new_tokens: new_tokens(args, set),
        chunk: NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN),
        command: study::command_line(),
    };
    Ok(exec(&mut model, set, &plan, bars)?)
}

/// A quick recording does not stand in the way of a full one.
fn trace_name(args: &Args) -> &'static str {
    if args.quick { "trace-quick" } else { "trace" }
}

/// The trace in the output folder: as it is when it was recorded with these settings, else recorded now.
fn trace(args: &Args, set: &ItemSet, bars: &Bars) -> Result<Trace, CliError> {
    let tokens = new_tokens(args, set);
    let out = args.out.join(trace_name(args));
    if out.exists() {
        let trace = Trace::open(&out)?;
        let manifest = trace.manifest();
        let ids = set.items.iter().map(|item| item.item.as_str());
        let same = manifest.decoding.max_new_tokens == tokens
            && manifest.workload.name == set.name
            && manifest.sequences.iter().map(|sequence| sequence.item.as_str()).eq(ids)
            && was_made_with(&args.model, &manifest.model.name, manifest.model.source_file.as_deref());
        if same {
            news(&format!("using the trace in {} again", out.display()));
            return Ok(trace);
        }
        return Err(CliError::Exists {
            path: out,
            remedy: "it was recorded with other settings: choose another --out, or remove it".to_owned(),
        });
    }
    let record_args = record::Args {
        out: out.clone(),
        model: args.model.clone(),
        items: ItemArgs { seed: Some(args.seed), ..ItemArgs::default() },
        max_new_tokens: Some(tokens),
        hidden: false,
        lens: record::LensArg::Both,
        prompt_lens: None,
        dtype: record::StoreDtype::F32,
        weights: Vec::new(),
        max_bytes: None,
        times: false,
        threads: args.threads,
        branching: BranchArgs::default(),
        force: false,
        runtime: args.runtime.clone(),
    };
    std::fs::create_dir_all(&args.out).map_err(|source| CliError::Io { path: args.out.clone(), source })?;
    let mut model = args.runtime.load(&args.model, args.threads, bars)?;
    record::into_trace(&mut model, set, &record_args, Leftover::Resume, bars)?;
    Ok(Trace::open(&out)?)
}

/// Whether a trace whose model is called `name` and came from `source_file` is one of `model`, as far as names tell.
fn was_made_with(model: &str, name: &str, source_file: Option<&str>) -> bool {
    let wanted =
        Path::new(model).file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let found = format!("{name} {}", source_file.unwrap_or_default()).to_lowercase();
    !wanted.is_empty() && found.contains(&wanted)
}

/// The demo's scenario in `text`; `--quick` has smaller budgets, `--seed` moves the seeds.
fn scenario_text(args: &Args, text: &str) -> String {
    let seeds = format!("seeds: [{}, {}, {}]", args.seed, args.seed + 1, args.seed + 2);
    let text = text.replace("seeds: [0, 1, 2]", &seeds);
    let short = if args.model == CHAIN { "budgets: [32, 48, 64]" } else { "budgets: [48, 64, 96]" };
    if args.quick { text.replace("budgets: [96, 128, 160, 192]", short) } else { text }
}
