//! `kvlab merge`: the parts of a sweep that ran in shards, put together.

use super::status::plan_in;
use super::{check, folder, study};
use crate::exit::{CliError, Done};
use crate::output::news;
use kvlab_sim::results::{Parts, Standing, StudyPlan};
use kvlab_sim::run::{Shard, assemble};
use kvlab_sim::scenario::Scenario;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Put the parts of a sweep together that was run in shards, from one shared folder or from several.
///
/// The tables are those of a run in one piece, byte for byte. Scenario and trace are not needed. Cells that are missing are told
/// with the shard that they belong to, nothing is written then, and the exit code is 4.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kvlab merge study --out study")]
pub(crate) struct Args {
    /// Folders that `kvlab sweep --shard i/n --out` wrote to
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Folder for the result tables; it may be one of the others
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Write the tables of what is there when cells are missing
    #[arg(long)]
    partial: bool,
    /// Add `predicted_accuracy`, as `kvlab sweep --predict` does
    #[arg(long, value_name = "FILE")]
    predict: Option<PathBuf>,
    /// Compare the cells with `expect` of the scenario; the exit code is 5 when they are not as expected
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    export: study::TableArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    folder::check(&args.out)?;
    let mut plan: Option<StudyPlan> = None;
    let mut parts = Vec::new();
    for folder in &args.folders {
        let found = plan_in(folder)?;
        if plan.as_ref().is_some_and(|first| !first.is_same_study(&found)) {
            let first = args.folders[0].display();
            let reason = format!("its plan.json is of another study than that in {first}");
            return Err(CliError::Invalid { path: folder.clone(), reason });
        }
        plan.get_or_insert(found);
        let read = Parts::read(folder)?;
        for (path, reason) in &read.damaged {
            news(&format!("{} is damaged and left out: {reason}", path.display()));
        }
        parts.extend(read.whole);
    }
    let Some(plan) = plan else { return Ok(Done::All) };
    let scenario = Scenario::parse(&plan.scenario_text, "the scenario in plan.json")?;
    if args.check {
        check::refuse_without_claims(&scenario, &args.folders[0])?;
    }
    let standing = Standing::of(&plan, &parts);
    if standing.foreign > 0 {
        news(&format!("{} cells in the parts are of other studies and left out", standing.foreign));
    }
    if !standing.missing.is_empty() {
        news(&missing(&plan, &standing));
        if !args.partial {
            news("nothing was written; --partial writes what is there");
            return Ok(Done::Partly);
        }
    }
    let mut results = study::with_predictions(assemble(&plan, &parts)?, args.predict.as_deref())?;
    if !standing.missing.is_empty() {
        // Reports show the command: whoever reads the tables alone learns that they are not whole.
        let (missing, all) = (standing.missing.len(), plan.units.len());
        results.manifest.command += &format!(" (partial: {missing} of {all} units are missing)");
    }
    study::write(&results, &args.out, args.export)?;
    let done = study::outcome(&results);
    let done = if standing.missing.is_empty() { done } else { Done::Partly };
    Ok(if args.check { check::against(&scenario, &results, done) } else { done })
}

/// `14 of 96 cells are missing: 10 of shard 3/7, 4 of shard 5/7`.
fn missing(plan: &StudyPlan, standing: &Standing) -> String {
    let mut by_shard: BTreeMap<u32, usize> = BTreeMap::new();
    for &place in &standing.missing {
        *by_shard.entry(Shard::of(&plan.units, place, plan.shards).index).or_default() += 1;
    }
    let by_shard: Vec<String> = by_shard
        .iter()
        .map(|(&index, units)| format!("{units} of shard {}", Shard { index, count: plan.shards.max(1) }))
        .collect();
    let units = plan.units.len();
    format!("{} of {units} units are missing: {}", standing.missing.len(), by_shard.join(", "))
}
