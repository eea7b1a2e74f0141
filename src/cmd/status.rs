//! `kvlab status`: how far a sweep or an execution is.

use crate::exit::{CliError, Done};
use crate::output;
use kvlab_executor::{ExecutorError, Journal, JournalStanding};
use kvlab_sim::results::{Parts, Standing, StudyPlan, UnitKind};
use kvlab_sim::run::Shard;
use std::path::{Path, PathBuf};

/// Say which cells of a sweep are done, which failed and which are missing. The exit code is 4 when a cell is missing, failed or skipped.
///
/// Of an interrupted `kvlab exec` or `kvlab fidelity`: which runs are kept. The exit code is 4, since some are missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kvlab status study --json")]
pub(crate) struct Args {
    /// Folder that `kvlab sweep --out` writes to, or `exec`, or `fidelity`
    folder: PathBuf,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// The plan in a folder of results.
pub(crate) fn plan_in(folder: &Path) -> Result<StudyPlan, CliError> {
    StudyPlan::read(folder)?.ok_or_else(|| {
        let reason = "there is no plan.json: no `kvlab sweep --out` has written here".to_owned();
        CliError::Invalid { path: folder.to_owned(), reason }
    })
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    if let Some(begun) = Journal::standing(&args.folder).map_err(ExecutorError::from)? {
        return unfinished(args, &begun);
    }
    let plan = plan_in(&args.folder)?;
    let parts = Parts::read(&args.folder)?;
    let standing = Standing::of(&plan, &parts.whole);
    if args.json {
        output::json(&as_json(&plan, &parts, &standing))?;
    } else {
        output::print(&as_text(&plan, &parts, &standing))?;
    }
    Ok(if standing.is_complete() { Done::All } else { Done::Partly })
}

/// An execution that was interrupted, or that runs.
fn unfinished(args: &Args, begun: &JournalStanding) -> Result<Done, CliError> {
    let JournalStanding { verb, scenario, kept, planned } = begun;
    if args.json {
        let runs = kept.iter().map(|run| serde_json::json!({ "problem": run.item, "run": run.run }));
        output::json(&serde_json::json!({
            "verb": verb,
            "scenario": scenario,
            "runs": planned,
            "kept": runs.collect::<Vec<_>>(),
        }))?;
        return Ok(Done::Partly);
    }
    let mut lines = vec![format!(
        "{} of {planned} runs of `kvlab {verb}` of the scenario `{scenario}` are kept: the same command again goes on",
        kept.len()
    )];
    lines.extend(kept.iter().map(|run| format!("kept: {}  {}", run.item, run.run)));
    output::print(&(lines.join("\n") + "\n"))?;
    Ok(Done::Partly)
}

fn as_json(plan: &StudyPlan, parts: &Parts, standing: &Standing) -> serde_json::Value {
    let unit = |place: usize| {
        let unit = &plan.units[place];
        let shard = Shard::of(&plan.units, place, plan.shards);
        serde_json::json!({
            "id": unit.id, "study": unit.section.word(), "kind": unit.kind, "label": unit.label,
            "shard": shard.to_string(),
        })
    };
    let failed = standing.unfinished.iter().map(|cell| {
        let mut value = unit(cell.place);
        value["status"] = cell.status.clone().into();
        value["error"] = cell.error.clone().into();
        value
    });
    let damaged = parts
        .damaged
        .iter()
        .map(|(path, reason)| serde_json::json!({ "file": path.display().to_string(), "reason": reason }));
    serde_json::json!({
        "cells": standing.cells,
        "done": standing.done,
        "failed": failed.collect::<Vec<_>>(),
        "missing": standing.missing.iter().map(|&place| unit(place)).collect::<Vec<_>>(),
        "damaged_parts": damaged.collect::<Vec<_>>(),
        "cells_of_other_studies": standing.foreign,
        "parts_of_other_versions": parts.others,
    })
}

fn as_text(plan: &StudyPlan, parts: &Parts, standing: &Standing) -> String {
    let mut lines = vec![format!("{} of {} cells are done", standing.done, standing.cells)];
    for cell in &standing.unfinished {
        let unit = &plan.units[cell.place];
        lines.push(format!("{}: {}  {}: {}", cell.status, unit.section.word(), unit.label, cell.error));
    }
    for &place in &standing.missing {
        let unit = &plan.units[place];
        let what = if unit.kind == UnitKind::Cell { "" } else { " (no cell)" };
        let shard = match plan.shards {
            0 | 1 => String::new(),
            count => format!("  shard {}", Shard::of(&plan.units, place, count)),
        };
        lines.push(format!("missing: {}  {}{what}{shard}", unit.section.word(), unit.label));
    }
    for (path, reason) in &parts.damaged {
        lines.push(format!("damaged: {}: {reason}; its cells count as missing", path.display()));
    }
    if standing.foreign > 0 {
        lines.push(format!("{} further cells are of other studies", standing.foreign));
    }
    if parts.others > 0 {
        lines.push(format!("{} parts are of another version of the tables", parts.others));
    }
    lines.join("\n") + "\n"
}
