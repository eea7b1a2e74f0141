//! `kvlab validate`: a trace, a scenario or result tables.

use super::{findings, sweep};
use crate::exit::{CliError, Done};
use crate::output;
use kvlab_sim::run::Study;
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::{Depth, leftovers, verify_to};
use std::path::PathBuf;

/// Check a trace folder, a scenario file or a results folder, and say what is wrong and where.
///
/// A trace is read in full: structure, checksums, shapes, coverage, finite values, facts against each other and, where it holds
/// hidden states and the head (`kvlab record --hidden --weights head`), lens facts against both. A scenario with `--trace` is told what its thresholds
/// come to over that trace, without running it: vacuous, unreachable, never decisive, repeated.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kvlab validate my-trace --deep\n  kvlab validate scenarios/tuning/trees.yaml --trace my-trees"
)]
pub(crate) struct Args {
    /// Trace folder, scenario file (.yaml) or results folder
    path: PathBuf,
    /// With a scenario: the trace over which its thresholds are looked at; nothing is run
    #[arg(long, value_name = "DIR", conflicts_with = "deep")]
    trace: Option<PathBuf>,
    /// Compute every lens fact again from hidden states and the head, where a trace holds all three, and not a sample of 16
    #[arg(long)]
    deep: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let outcome = checked(args);
    if let (true, Err(error)) = (args.json, &outcome) {
        output::json(&serde_json::json!({ "valid": false, "error": error.to_string() }))?;
    }
    outcome
}

fn checked(args: &Args) -> Result<Done, CliError> {
    let path = &args.path;
    if args.deep && (path.is_file() || path.join("results.json").exists()) {
        let reason = format!("it is for traces, and {} is none", path.display());
        return Err(CliError::Usage { flag: "--deep", reason });
    }
    if path.is_file() {
        let scenario = Scenario::load(path)?;
        let mut text = format!("{}: scenario `{}` is valid\n", path.display(), scenario.id);
        let mut json = serde_json::json!({ "kind": "scenario", "id": scenario.id });
        if let Some(trace) = &args.trace {
            let told = sweep::with_source(path, Some(trace), &scenario, |source, info| {
                findings::told(&Study::of(&scenario, source, info)?, 0)
            })?;
            text += &told.iter().map(|told| format!("lint: {}\n", told.line())).collect::<String>();
            text += &format!("{} findings about thresholds over {}\n", told.len(), trace.display());
            json["findings"] = serde_json::json!(told);
        }
        return said(args, &json, &text);
    }
    if let Some(trace) = &args.trace {
        let reason = format!("it is no scenario: leave out --trace {}", trace.display());
        return Err(CliError::Invalid { path: path.clone(), reason });
    }
    if path.join("results.json").exists() {
        let results = kvlab_sim::results::read(path)?;
        let (cells, series) = (results.cells.rows(), results.series.rows());
        let text = format!("{}: results are valid, {cells} cells, {series} rows of series\n", path.display());
        return said(
            args,
            &serde_json::json!({ "kind": "results", "cells": cells, "series": series }),
            &text,
        );
    }
    let depth = if args.deep { Depth::All } else { Depth::Sample };
    let report = verify_to(path, depth).map_err(|error| CliError::in_trace(path, error))?;
    if args.json {
        output::json(&report)?;
        return Ok(Done::All);
    }
    output::print(&format!(
        "{}: trace is valid, format {}, {} sequences, {} tokens, {} shards, {:.1} MB, {} values and {} lens facts checked{}\n",
        path.display(),
        report.format,
        report.sequences,
        report.tokens,
        report.shards,
        output::megabytes(report.bytes),
        report.tensor_values,
        report.lens_facts,
        if report.synthetic { "; synthetic" } else { "" },
    ))?;
    if report.lens_recomputed > 0 {
        output::print(&format!("{} lens facts agree with hidden states and head\n", report.lens_recomputed))?;
    }
    if report.problems > 0 || report.requests > 0 {
        let (problems, outcomes) = (report.problems, report.branch_outcomes);
        output::print(&format!(
            "{problems} problems with {outcomes} branch outcomes and {} requests checked\n",
            report.requests
        ))?;
    }
    for (beside, what) in leftovers(path) {
        output::news(&format!("note: beside it is {}, {what}", beside.display()));
    }
    for name in &report.unlisted {
        output::news(&format!("note: {name} is in the folder but not in the manifest; it was not read"));
    }
    Ok(Done::All)
}

fn said(args: &Args, json: &serde_json::Value, text: &str) -> Result<Done, CliError> {
    if args.json {
        output::json(json)?
    } else {
        output::print(text)?
    }
    Ok(Done::All)
}
