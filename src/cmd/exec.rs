//! `kvlab exec`: a scenario's policies in the loop of the model.

use super::check;
use super::live::{LiveArgs, Work};
use super::study;
use crate::exit::{CliError, Done};
use crate::output;
use crate::progress::Bars;
use kvlab_executor::branches::exec_trees;
use kvlab_executor::closed_loop::{ExecPlan, Mode, exec_within};
use kvlab_executor::{ExecutorError, ItemSet, Journal, Model};
use kvlab_sim::fidelity::{Prediction, waves};
use kvlab_sim::results::{self, Results};
use kvlab_sim::scenario::{EvictionPlan, Scenario};
use kvlab_sim::table::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Run a model with the policies of a scenario in the loop, and write executed results.
///
/// Token eviction (`eviction`): `free` lets the model answer under each policy and grades the answers; `forced` feeds the tokens of its full-cache run and
/// measures how far each next-token distribution moves. Decoding is greedy, batch 1. One run a problem and cell: this takes
/// long where a replay takes seconds. Each row is compared with the full cache on the same problems, whether or not the
/// scenario lists it.
///
/// Every finished run of `eviction` is kept in OUT/runs.journal until the tables are written: the same command again, after an interruption or with more
/// minutes, makes what is missing, and the tables are the same. `kvlab status OUT` says how far it is.
///
/// Stacks over branch trees (`trees`): branches are decoded behind the prefix that the gate gives them, verification is skipped or stops at
/// the layer that the rule says, deeper layers do not run, and a winner is chosen. Each row is compared with the full pipeline on the same problems.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kvlab exec scenarios/smoke/tiny.yaml --count 8 --out executed\n  \
kvlab exec scenarios/smoke/tiny.yaml --model smollm2 --problems questions.jsonl --limit 8 --out executed")]
pub(crate) struct Args {
    #[command(flatten)]
    live: LiveArgs,
    /// For `eviction`: what is fed after the prompt
    #[arg(long, value_enum, default_value_t)]
    mode: Feed,
    /// Stop after so many minutes: cells that did not run on every problem are skipped rows, and the same command with more minutes goes on. With --predicted the cells whose
    /// predicted intervals reach the best one's run first, else cells run in the order of the scenario
    #[arg(long, value_name = "N", value_parser = minutes)]
    budget_minutes: Option<f64>,
    /// With --budget-minutes: results of `kvlab sweep --predict` for the same scenario
    #[arg(long, value_name = "DIR", requires = "budget_minutes")]
    predicted: Option<PathBuf>,
    /// Compare the cells with `expect` of the scenario; the exit code is 5 when they are not as expected
    #[arg(long)]
    check: bool,
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

/// The same of branch trees.
const SHOWN_OF_TREES: &[&str] = &[
    "policy",
    "seed",
    "tau",
    "tau_conf",
    "theta",
    "status",
    "problems",
    "accuracy",
    "accuracy_lo",
    "accuracy_hi",
    "accuracy_vs_full",
    "accuracy_vs_full_lo",
    "accuracy_vs_full_hi",
    "harm_rate",
    "share_rate",
    "reused_token_rate",
    "verify_skip_rate",
    "verify_exit_rate",
    "verify_work_rate",
    "lint",
    "error",
];

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let bars = Bars::default();
    let scenario = Scenario::load(&args.live.scenario)?;
    if args.check {
        check::refuse_without_claims(&scenario, &args.live.scenario)?;
    }
    let mode = match args.mode {
        Feed::Free => Mode::Free,
        Feed::Forced => Mode::Forced,
    };
    let work = args.live.work(&scenario, mode)?;
    if matches!(work, Work::Pool(..)) {
        let reason = "block caches are run by `kvlab fidelity`".to_owned();
        return Err(CliError::Invalid { path: args.live.scenario.clone(), reason });
    }
    if matches!(work, Work::Trees(..)) && (args.mode == Feed::Forced || args.budget_minutes.is_some()) {
        let reason = "--mode forced and --budget-minutes are for `eviction` sections; stacks over branch trees run whole";
        return Err(CliError::Invalid { path: args.live.scenario.clone(), reason: reason.to_owned() });
    }
    if args.mode == Feed::Forced {
        args.live.refuse_grader("--mode forced")?;
    }
    let mut journal = match &work {
        Work::Eviction(..) => args.live.journal()?,
        Work::Trees(..) | Work::Pool(..) => Journal::default(),
    };
    let mut model = args.live.load(&bars)?;
    let (results, shown) = match &work {
        Work::Trees(set, exec) | Work::Pool(set, exec) => {
            (exec_trees(&mut model, set, exec, &bars)?, SHOWN_OF_TREES)
        }
        Work::Eviction(items, plan) => {
            (evicting(args, &mut model, (items, plan), &mut journal, &bars)?, SHOWN)
        }
    };
    study::write(&results, &args.live.out, args.live.export)?;
    args.live.close(journal)?;
    output::table(&results.cells, shown, args.live.format)?;
    let done = study::outcome(&results);
    Ok(if args.check { check::against(&scenario, &results, done) } else { done })
}

/// Runs eviction policies, within the time that is given.
fn evicting(
    args: &Args,
    model: &mut Model,
    (items, plan): (&ItemSet, &ExecPlan<'_>),
    journal: &mut Journal,
    bars: &Bars,
) -> Result<Results, CliError> {
    let vocab = model.shape().map_err(ExecutorError::from)?.vocab;
    let cells = plan.scenario.plan(vocab).eviction;
    let Some(minutes) = args.budget_minutes else {
        let all = [(0..cells.len()).collect()];
        return Ok(exec_within(model, items, plan, &all, &|| false, journal, bars)?);
    };
    let waves = waves(&predictions(args.predicted.as_deref(), &cells)?, WAVE);
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    Ok(exec_within(model, items, plan, &waves, &|| Instant::now() >= end, journal, bars)?)
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
