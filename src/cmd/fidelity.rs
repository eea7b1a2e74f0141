//! `kvlab fidelity`: what the replay says of a scenario's policies against what running them gives.

use super::live::{LiveArgs, Work};
use super::study;
use crate::exit::{CliError, Done};
use crate::output::{self, news};
use crate::progress::Bars;
use kvlab_executor::Journal;
use kvlab_executor::closed_loop::Mode;
use kvlab_executor::fidelity::{
    CellFidelity, Fidelity, FidelityPlan, PoolCellFidelity, PoolFidelity, TreeCellFidelity, TreeFidelity,
    fidelity_kept, pool_fidelity, tree_fidelity,
};
use kvlab_sim::scenario::Scenario;
use std::path::Path;

/// Check the simulator against the model: replay every policy over its own run, and ask how well estimates rank and predict.
///
/// Each policy of the scenario's `eviction` section runs in the loop of the model on every problem. First, identity: the run is
/// recorded as it lives and the policy is replayed over that recording; every kept set must come out the same, and the first that does not is
/// printed with its place and the gap between scores (exit code 5). Second, the estimates: the open-loop replay over the full cache's run
/// against what the run under the policy lost (next-token KL, agreement of the most probable token, accuracy of free answers), as
/// Kendall's tau_b with intervals over problems and over policies, and as a rising curve whose error is measured on policies left out.
/// The curve is kept in OUT/predictor.json: `kvlab sweep --predict` reads it.
///
/// What was found for a policy on a problem is kept in OUT/runs.journal until the tables are written: the same command again, after an
/// interruption, makes what is missing, and the tables are the same. `kvlab status OUT` says how far it is.
///
/// Each stack of the scenario's `trees` section solves every problem live (shared prefixes, skipped verifications, layers that do not run), and is
/// replayed over the recording of the same problems: what branches share and write, how many layers verify them, whether verification is
/// skipped, who wins and with which answer must all come out the same (exit code 5).
///
/// A `pool` section over a trace: the prompts of branch trees are served from blocks of keys and values that are really kept, found by their tokens and taken away
/// by the policy; what is found, stored and taken away must be what the replay says, and the logits those of a prompt computed whole.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kvlab fidelity scenarios/fidelity/chain.yaml --count 12 --out fidelity")]
pub(crate) struct Args {
    #[command(flatten)]
    live: LiveArgs,
    /// For `eviction`: feed the full cache's tokens only, and let no policy answer freely: half of the time, and no accuracy
    #[arg(long)]
    forced_only: bool,
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

/// The same of branch trees.
const SHOWN_OF_TREES: &[&str] = &[
    "policy",
    "seed",
    "tau",
    "tau_conf",
    "theta",
    "arm",
    "status",
    "problems",
    "tree_accuracy",
    "share_rate",
    "verify_skip_rate",
    "verify_work_rate",
    "reproduced_rate_num",
    "reproduced_rate_den",
    "ulp_flipped_decision_rate",
    "fact_error",
    "lint",
    "error",
];

/// The same of block caches.
const SHOWN_OF_POOLS: &[&str] = &[
    "policy",
    "arm",
    "status",
    "pool_capacity_blocks",
    "pool_hit_rate_num",
    "pool_hit_rate_den",
    "pool_evicted_blocks",
    "reproduced_rate_num",
    "reproduced_rate_den",
    "reused_logit_error",
    "lint",
    "error",
];

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let bars = Bars::default();
    let scenario = Scenario::load(&args.live.scenario)?;
    let work = args.live.work(&scenario, Mode::Forced)?;
    if !matches!(work, Work::Eviction(..)) && args.forced_only {
        let reason = "--forced-only is for `eviction` sections".to_owned();
        return Err(CliError::Invalid { path: args.live.scenario.clone(), reason });
    }
    if args.forced_only {
        args.live.refuse_grader("--forced-only")?;
    }
    let mut journal = match &work {
        Work::Eviction(..) => args.live.journal()?,
        Work::Trees(..) | Work::Pool(..) => Journal::default(),
    };
    let mut model = args.live.load(&bars)?;
    match work {
        Work::Trees(set, exec) => {
            let found = tree_fidelity(&mut model, &set, &exec, &bars)?;
            study::write(&found.results, &args.live.out, args.live.export)?;
            output::table(&found.results.cells, SHOWN_OF_TREES, args.live.format)?;
            Ok(told_of_trees(&found))
        }
        Work::Pool(set, exec) => {
            let found = pool_fidelity(&mut model, &set, &exec, &bars)?;
            study::write(&found.results, &args.live.out, args.live.export)?;
            output::table(&found.results.cells, SHOWN_OF_POOLS, args.live.format)?;
            Ok(told_of_pools(&found))
        }
        Work::Eviction(items, exec) => {
            let plan = FidelityPlan { exec, with_answers: !args.forced_only };
            let found = fidelity_kept(&mut model, &items, &plan, &mut journal, &bars)?;
            study::write(&found.results, &args.live.out, args.live.export)?;
            write_predictor(&found, &args.live.out)?;
            args.live.close(journal)?;
            if let Some(table) = found.results.more("fidelity") {
                output::table(table, SHOWN, args.live.format)?;
            }
            Ok(told_of_evictions(&found))
        }
    }
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
    // What is shown as 0 is no news.
    residuals.retain(|(_, residual)| residual.abs() >= 0.0005);
    for (policy, residual) in residuals.iter().take(4) {
        let word = if *residual > 0.0 { "flatters" } else { "undersells" };
        news(&format!("{} {word} {policy} by up to {:.3}", predictor.proxy, residual.abs()));
    }
    Ok(())
}

/// One cell of a comparison, whatever was compared.
struct Compared {
    label: String,
    /// How many were compared, how many were equal, and the first that was not; else why the cell did not run.
    outcome: Result<(u64, u64, Option<String>), String>,
}

impl Compared {
    fn of(label: String, counts: Option<(u64, u64, Option<String>)>, failure: Option<&String>) -> Self {
        let why = || failure.cloned().unwrap_or_else(|| "it did not finish".to_owned());
        Self { label, outcome: counts.ok_or_else(why) }
    }
}

/// Says how many of `what` are reproduced, the first of each cell that is not, and `more`.
fn told(cells: &[Compared], what: &str, more: &str) -> Done {
    let (mut all, mut equal, mut missing) = (0, 0, 0);
    for Compared { label, outcome } in cells {
        match outcome {
            Ok((compared, same, first)) => {
                all += compared;
                equal += same;
                if let Some(first) = first {
                    news(&format!("not reproduced: {label}: {first}"));
                }
            }
            Err(why) => {
                missing += 1;
                news(&format!("not run: {label}: {why}"));
            }
        }
    }
    news(&format!("identity: {equal} of {all} {what} over {} cells; {more}", cells.len() - missing));
    match (equal == all, missing) {
        (false, _) => Done::CheckFailed,
        (true, 0) => Done::All,
        (true, _) => Done::Partly,
    }
}

fn told_of_evictions(found: &Fidelity) -> Done {
    let of = |cell: &CellFidelity| {
        let counts = cell.identity.as_ref();
        let counts = counts.map(|i| (i.sets, i.equal, i.first.as_ref().map(ToString::to_string)));
        Compared::of(cell.policy.clone(), counts, cell.failure.as_ref())
    };
    let cells: Vec<Compared> = found.cells.iter().map(of).collect();
    let flipped: u64 = found.cells.iter().flat_map(|cell| &cell.identity).map(|i| i.flipped_sets).sum();
    let more = format!("{flipped} of them would change if every input moved by one unit in the last place");
    told(&cells, "kept sets of live runs reproduced", &more)
}

fn told_of_trees(found: &TreeFidelity) -> Done {
    let of = |cell: &TreeCellFidelity| {
        let counts = cell.identity.as_ref();
        let counts = counts.map(|i| (i.decisions, i.equal, i.first.as_ref().map(ToString::to_string)));
        Compared::of(cell.stack.clone(), counts, cell.failure.as_ref())
    };
    let cells: Vec<Compared> = found.cells.iter().map(of).collect();
    let identities = || found.cells.iter().flat_map(|cell| &cell.identity);
    let flipped: u64 = identities().map(|i| i.flipped).sum();
    let apart = identities().map(|i| i.fact_error).fold(0.0, f64::max);
    let mut more = format!(
        "{flipped} of them would change if every recorded number moved by one unit in the last place; facts of run and recording differ by at most {apart:.1e}"
    );
    let undetermined: u64 = identities().map(|i| i.undetermined).sum();
    if undetermined > 0 {
        more += &format!(
            "; {undetermined} times a problem's answer after a decode-level exit was not recorded, and only sharing, texts and the stop were compared"
        );
    }
    told(&cells, "decisions of live runs reproduced", &more)
}

fn told_of_pools(found: &PoolFidelity) -> Done {
    let of = |cell: &PoolCellFidelity| {
        let counts = cell.identity.as_ref().map(|i| (i.events, i.equal, i.first.clone()));
        Compared::of(format!("{} at {}", cell.policy, cell.capacity), counts, cell.failure.as_ref())
    };
    let cells: Vec<Compared> = found.cells.iter().map(of).collect();
    let apart = found.cells.iter().flat_map(|cell| &cell.identity).map(|i| i.logit_error).fold(0.0, f64::max);
    let more = format!(
        "logits behind reused blocks differ by at most {apart:.1e} from those of prompts computed whole"
    );
    told(&cells, "block events of live caches as in the replay", &more)
}
