//! `kvlab exec`: a scenario's policies in the loop of the model.

use super::check;
use super::items::ItemArgs;
use super::runtime::{self, CHAIN, RuntimeArgs};
use super::study;
use crate::exit::{CliError, Done};
use crate::output::{self, Format};
use crate::progress::Bars;
use kvlab_executor::ExecutorError;
use kvlab_executor::closed_loop::{ExecPlan, Mode, exec, exec_within};
use kvlab_sim::fidelity::{Prediction, waves};
use kvlab_sim::results;
use kvlab_sim::scenario::{EvictionPlan, Scenario};
use kvlab_sim::table::Value;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Run a model with the eviction policies of a scenario in the loop, and write executed results.
///
/// `free` lets the model answer under each policy and grades the answers; `forced` feeds the tokens of its full-cache run and
/// measures how far each next-token distribution moves. Decoding is greedy, batch 1. One run a problem and cell: this takes
/// long where a replay takes seconds. Each row is compared with the full cache on the same problems, whether or not the
/// scenario lists it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: kvlab exec scenarios/smoke/tiny.yaml --problems questions.jsonl --limit 8 --out executed"
)]
pub(crate) struct Args {
    /// Scenario file; its `eviction` section is executed
    scenario: PathBuf,
    /// `chain` (inside the program), `smollm2`, a GGUF file, a Hugging Face folder, or an exported ONNX decoder
    #[arg(long, default_value = CHAIN, value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    items: ItemArgs,
    /// Seed of generated problems; those of the policies are in the scenario
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Most tokens generated for a problem [default: enough for most of these problems]
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<u32>,
    /// What is fed after the prompt
    #[arg(long, value_enum, default_value_t)]
    mode: Feed,
    /// Stop after so many minutes: cells that did not run on every problem are skipped rows. With --predicted the cells whose
    /// predicted intervals reach the best one's run first, else cells run in the order of the scenario
    #[arg(long, value_name = "N", value_parser = minutes)]
    budget_minutes: Option<f64>,
    /// With --budget-minutes: results of `kvlab sweep --predict` for the same scenario
    #[arg(long, value_name = "DIR", requires = "budget_minutes")]
    predicted: Option<PathBuf>,
    /// Folder for the result tables
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Compare the cells with `expect` of the scenario; the exit code is 5 when they are not as expected
    #[arg(long)]
    check: bool,
    /// Also write cells.csv and series.csv
    #[arg(long)]
    csv: bool,
    /// How the cells are printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Threads of the model [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// What is fed after the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Feed {
    /// What the model chooses under the policy.
    #[default]
    Free,
    /// What the model chose with its full cache.
    Forced,
}

/// Columns that a person wants to see first.
const SHOWN: &[&str] = &[
    "policy",
    "budget_tokens",
    "seed",
    "status",
    "sequences",
    "accuracy",
    "accuracy_lo",
    "accuracy_hi",
    "accuracy_vs_full",
    "accuracy_vs_full_lo",
    "accuracy_vs_full_hi",
    "generated_tokens",
    "truncated_rate",
    "next_token_kl",
    "next_token_kl_lo",
    "next_token_kl_hi",
    "top1_agreement",
    "evictions",
    "mean_keep_ratio",
    "peak_kv_bytes",
    "lint",
    "error",
];

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let bars = Bars::default();
    let scenario = Scenario::load(&args.scenario)?;
    if args.check {
        check::refuse_without_claims(&scenario, &args.scenario)?;
    }
    let items = args.items.load(args.seed, &args.model)?;
    let plan = ExecPlan {
        scenario: &scenario,
        mode: match args.mode {
            Feed::Free => Mode::Free,
            Feed::Forced => Mode::Forced,
        },
        max_new_tokens: args.max_new_tokens.unwrap_or(items.usual_new_tokens),
        chunk: NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN),
        command: study::command_line(),
    };
    plan.study().map_err(ExecutorError::from)?;
    let mut model = args.runtime.load(&args.model, args.threads, &bars)?;
    runtime::tell(&model);
    let results = match args.budget_minutes {
        None => exec(&mut model, &items, &plan, &bars)?,
        Some(minutes) => {
            let cells = scenario.plan(model.shape().map_err(ExecutorError::from)?.vocab).eviction;
            let waves = waves(&predictions(args.predicted.as_deref(), &cells)?, WAVE);
            let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
            exec_within(&mut model, &items, &plan, &waves, &|| Instant::now() >= end, &bars)?
        }
    };
    study::write(&results, &args.out, args.csv)?;
    output::table(&results.cells, SHOWN, args.format)?;
    let done = study::outcome(&results);
    Ok(if args.check { check::against(&scenario, &results, done) } else { done })
}

/// Cells that run together under a limit of time: their prompts are prefilled once.
const WAVE: usize = 8;

/// A positive number of minutes that a clock can count.
fn minutes(given: &str) -> Result<f64, String> {
    match given.parse() {
        Ok(minutes) if minutes > 0.0 && minutes <= 1e6 => Ok(minutes),
        _ => Err("expected a number of minutes above 0, at most a million".to_owned()),
    }
}

/// What earlier results predict for each cell; nothing for those that they do not have.
fn predictions(folder: Option<&Path>, cells: &[EvictionPlan]) -> Result<Vec<Option<Prediction>>, CliError> {
    let Some(folder) = folder else { return Ok(vec![None; cells.len()]) };
    let table = results::read(folder)?.cells;
    let real = |name: &str, row: usize| match table.value(name, row) {
        Value::Real(value) => Some(value),
        _ => None,
    };
    let of = |cell: &EvictionPlan| {
        let int = |value: Option<i64>| value.map_or(Value::Absent, Value::Int);
        let row = (0..table.rows()).find(|&row| {
            table.value("policy", row) == Value::Text(cell.label.clone())
                && table.value("budget_tokens", row) == int(cell.budget.map(i64::from))
                && table.value("seed", row) == int(cell.seed.and_then(|seed| i64::try_from(seed).ok()))
                && real("predicted_accuracy", row).is_some()
        })?;
        Some(Prediction {
            value: real("predicted_accuracy", row)?,
            low: real("predicted_accuracy_lo", row)?,
            high: real("predicted_accuracy_hi", row)?,
        })
    };
    let found: Vec<Option<Prediction>> = cells.iter().map(of).collect();
    if found.iter().all(Option::is_none) {
        let reason =
            "no `predicted_accuracy` for a cell of this scenario; `kvlab sweep --predict` makes them"
                .to_owned();
        return Err(CliError::Invalid { path: folder.to_owned(), reason });
    }
    Ok(found)
}
