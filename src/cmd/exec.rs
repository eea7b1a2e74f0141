//! `kvlab exec`: a scenario's policies in the loop of the model.

use super::items::ItemArgs;
use super::runtime::{self, CHAIN, RuntimeArgs};
use super::study;
use crate::exit::{CliError, Done};
use crate::output::{self, Format};
use crate::progress::Bars;
use kvlab_executor::ExecutorError;
use kvlab_executor::closed_loop::{ExecPlan, Mode, exec};
use kvlab_sim::scenario::Scenario;
use std::num::NonZeroUsize;
use std::path::PathBuf;

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
    /// Folder for the result tables
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
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
    let results = exec(&mut model, &items, &plan, &bars)?;
    study::write(&results, &args.out, args.csv)?;
    output::table(&results.cells, SHOWN, args.format)?;
    Ok(study::outcome(&results))
}
