//! `kvlab fidelity`: what the replay says of a scenario's policies against what running them gives.

use super::items::ItemArgs;
use super::runtime::{self, CHAIN, RuntimeArgs};
use super::study;
use crate::exit::{CliError, Done};
use crate::output::{self, Format, news};
use crate::progress::Bars;
use kvlab_executor::ExecutorError;
use kvlab_executor::closed_loop::{ExecPlan, Mode};
use kvlab_executor::fidelity::{Fidelity, FidelityPlan, fidelity};
use kvlab_sim::scenario::Scenario;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Check the simulator against the model: replay every policy over its own run, and ask how well estimates rank and predict.
///
/// Each policy of the scenario's `eviction` section runs in the loop of the model on every problem. First, identity: the run is
/// recorded as it lives and the policy is replayed over that recording; every kept set must come out the same, and the first that does not is
/// printed with its place and the gap between scores (exit code 5). Second, the estimates: the open-loop replay over the full cache's run
/// against what the run under the policy lost (next-token KL, agreement of the most probable token, accuracy of free answers), as
/// Kendall's tau_b with intervals over problems and over policies, and as a rising curve whose error is measured on policies left out.
/// The curve is kept in OUT/predictor.json: `kvlab sweep --predict` reads it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kvlab fidelity scenarios/fidelity/chain.yaml --count 12 --out fidelity")]
pub(crate) struct Args {
    /// Scenario file; its `eviction` section is run and replayed
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
    /// Feed the full cache's tokens only, and let no policy answer freely: half of the time, and no accuracy
    #[arg(long)]
    forced_only: bool,
    /// Folder for the result tables and the prediction
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Also write the tables as CSV
    #[arg(long)]
    csv: bool,
    /// How the rank correlations are printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Threads of the model [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// Columns of `fidelity` that a person wants to see first.
const SHOWN: &[&str] = &[
    "outcome",
    "estimate",
    "budget_tokens",
    "tau_b",
    "tau_b_problem_lo",
    "tau_b_problem_hi",
    "tau_b_policy_lo",
    "tau_b_policy_hi",
    "cells",
    "policies",
    "problems",
    "leave_policy_out",
    "mean_alone",
    "chosen",
];

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let bars = Bars::default();
    let scenario = Scenario::load(&args.scenario)?;
    let items = args.items.load(args.seed, &args.model)?;
    let exec = ExecPlan {
        scenario: &scenario,
        mode: Mode::Forced,
        max_new_tokens: args.max_new_tokens.unwrap_or(items.usual_new_tokens),
        chunk: NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN),
        command: study::command_line(),
    };
    exec.study().map_err(ExecutorError::from)?;
    let mut model = args.runtime.load(&args.model, args.threads, &bars)?;
    runtime::tell(&model);
    let plan = FidelityPlan { exec, with_answers: !args.forced_only };
    let found = fidelity(&mut model, &items, &plan, &bars)?;
    study::write(&found.results, &args.out, args.csv)?;
    write_predictor(&found, &args.out)?;
    if let Some(table) = found.results.more("fidelity") {
        output::table(table, SHOWN, args.format)?;
    }
    Ok(told(&found))
}

fn write_predictor(found: &Fidelity, out: &Path) -> Result<(), CliError> {
    let path = out.join("predictor.json");
    let Some(predictor) = &found.predictor else {
        news("no prediction: it needs three policies with an outcome each");
        return match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(CliError::Io { path, source })
            }
            _ => Ok(()),
        };
    };
    let text = predictor
        .to_json()
        .map_err(|error| CliError::Invalid { path: path.clone(), reason: error.to_string() })?;
    kvlab_sim::table::write_together(out, &[("predictor.json".to_owned(), text.into_bytes())], &[])
        .map_err(|(path, source)| CliError::Io { path, source })?;
    news(&format!(
        "{} from {}: mean error on a policy left out {:.3}, by the mean of the others {:.3}; {} cells, {} problems",
        predictor.outcome,
        predictor.proxy,
        predictor.leave_policy_out,
        predictor.mean_alone,
        predictor.rows.len(),
        predictor.problems
    ));
    let mut residuals: Vec<(&str, f64)> = Vec::new();
    for row in &predictor.rows {
        if let Some(residual) = row.residual {
            match residuals.iter_mut().find(|(policy, _)| *policy == row.policy) {
                Some((_, most)) if most.abs() < residual.abs() => *most = residual,
                Some(_) => {}
                None => residuals.push((&row.policy, residual)),
            }
        }
    }
    residuals.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    for (policy, residual) in residuals.iter().take(4) {
        let word = if *residual > 0.0 { "flatters" } else { "undersells" };
        news(&format!("{} {word} {policy} by up to {:.3}", predictor.proxy, residual.abs()));
    }
    Ok(())
}

/// Says how many decisions are reproduced, and the first that is not.
fn told(found: &Fidelity) -> Done {
    let (mut sets, mut equal, mut flipped, mut missing) = (0, 0, 0, 0);
    let mut is_exact = true;
    for cell in &found.cells {
        let Some(identity) = &cell.identity else {
            missing += 1;
            let why = cell.failure.as_deref().unwrap_or("it did not finish");
            news(&format!("not run: {}: {why}", cell.policy));
            continue;
        };
        sets += identity.sets;
        equal += identity.equal;
        flipped += identity.flipped_sets;
        if let Some(first) = &identity.first {
            news(&format!("not reproduced: {}: {first}", cell.policy));
        }
        is_exact &= identity.is_exact();
    }
    news(&format!(
        "identity: {equal} of {sets} kept sets of live runs reproduced over {} cells; {flipped} of {sets} would change if every input moved by one unit in the last place",
        found.cells.len() - missing
    ));
    match (is_exact, missing) {
        (false, _) => Done::CheckFailed,
        (true, 0) => Done::All,
        (true, _) => Done::Partly,
    }
}
