//! `kvlab demo`: set-up, record, replay, sweep, plot, report, in one go.

use super::runtime::{RuntimeArgs, SMOLLM2};
use super::{plot, record, report, study};
use crate::exit::{CliError, Done};
use crate::output::{self, news};
use crate::progress::Bars;
use kvlab_executor::ExecutorError;
use kvlab_executor::problems::{GSM8K_SAMPLE, parse_problems};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::{Leftover, Trace};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

const SCENARIO: &str = include_str!("../../scenarios/demo.yaml");
/// Problems and new tokens of the demo, and of `--quick`.
const FULL: (usize, u32) = (5, 160);
const QUICK: (usize, u32) = (2, 72);

/// Do the main job once, from nothing: get a runtime and a model, record, replay, sweep, draw, report.
///
/// The first time, ONNX Runtime and SmolLM2-135M-Instruct are installed into kvlab's cache (about 130 MB). A recording
/// that was interrupted goes on; one that is there already with the same settings is used again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for everything that is written
    #[arg(long, default_value = "kvlab-out", value_name = "DIR")]
    out: PathBuf,
    /// Seed written into the trace, and first seed of the stochastic policies
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads of the model and of the replay [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// `smollm2`, a GGUF file, or a Hugging Face folder
    #[arg(long, default_value = SMOLLM2, value_name = "MODEL")]
    model: String,
    /// Two problems and short answers: under a minute after set-up
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let bars = Bars::default();
    let trace = trace(args, &bars)?;
    let scenario = Scenario::parse(&scenario_text(args), "the demo's scenario")?;
    let threads = args.threads.map_or(0, NonZeroUsize::get);
    let results = study::run(&scenario, &trace, threads, study::command_line(), &bars)?;
    let folder = args.out.join("results");
    study::write(&results, &folder, true)?;
    let page = args.out.join("report.html");
    bars.piece("figures and report", |_| -> Result<(), CliError> {
        plot::tell(&kvlab_plots::render_all(&results, &args.out.join("figures"))?);
        report::write(&kvlab_plots::render_report(&results), &page)
    })?;
    let outcome = study::outcome(&results);
    news(&format!(
        "trace    {}\ntables   {}\nfigures  {}",
        args.out.join(trace_name(args)).display(),
        folder.display(),
        args.out.join("figures").display()
    ));
    output::print(&format!("open {}\n", page.display()))?;
    Ok(outcome)
}

/// A quick recording does not stand in the way of a full one.
fn trace_name(args: &Args) -> &'static str {
    if args.quick { "trace-quick" } else { "trace" }
}

/// The trace in the output folder: as it is when it was recorded with these settings, else recorded now. The seed is no
/// such setting: greedy decoding draws nothing.
fn trace(args: &Args, bars: &Bars) -> Result<Trace, CliError> {
    let (count, tokens) = if args.quick { QUICK } else { FULL };
    let mut problems =
        parse_problems(GSM8K_SAMPLE, Path::new("the built-in GSM8K sample")).map_err(ExecutorError::from)?;
    problems.truncate(count);
    let ids: Vec<&str> = problems.iter().map(|problem| problem.id.as_str()).collect();
    let out = args.out.join(trace_name(args));
    if out.exists() {
        let trace = Trace::open(&out)?;
        let manifest = trace.manifest();
        let same = manifest.decoding.max_new_tokens == tokens
            && manifest.workload.name == "gsm8k-sample"
            && manifest.sequences.iter().map(|sequence| sequence.item.as_str()).eq(ids)
            && was_made_with(&args.model, manifest.model.source_file.as_deref());
        if same {
            news(&format!("using the trace in {} again", out.display()));
            return Ok(trace);
        }
        return Err(CliError::Exists {
            path: out,
            remedy: "it was recorded with other settings: choose another --out, or remove it",
        });
    }
    let record_args = record::Args {
        out: out.clone(),
        model: args.model.clone(),
        problems: None,
        limit: NonZeroUsize::new(count),
        max_new_tokens: tokens,
        hidden: false,
        prompt_lens: None,
        dtype: record::StoreDtype::F32,
        threads: args.threads,
        seed: args.seed,
        force: false,
        runtime: args.runtime.clone(),
    };
    std::fs::create_dir_all(&args.out).map_err(|source| CliError::Io { path: args.out.clone(), source })?;
    let mut model = args.runtime.load(&args.model, args.threads, bars)?;
    record::into_trace(&mut model, &problems, &record_args, Leftover::Resume, bars)?;
    Ok(Trace::open(&out)?)
}

/// Whether a trace whose model came from `source_file` is one of `model`, as far as names tell.
fn was_made_with(model: &str, source_file: Option<&str>) -> bool {
    let name = Path::new(model).file_name().map(|name| name.to_string_lossy().to_lowercase());
    match (name, source_file) {
        (Some(name), Some(file)) => file.to_lowercase().contains(name.as_str()),
        _ => false,
    }
}

/// The demo's scenario; `--quick` has smaller budgets, `--seed` moves the seeds.
fn scenario_text(args: &Args) -> String {
    let seeds = format!("seeds: [{}, {}, {}]", args.seed, args.seed + 1, args.seed + 2);
    let text = SCENARIO.replace("seeds: [0, 1, 2]", &seeds);
    if args.quick { text.replace("budgets: [64, 96, 128, 192]", "budgets: [48, 64, 96]") } else { text }
}
