//! `kvlab paper`: published figures beside what the simulator gives under the published protocol and without its defects.

use super::{folder, study};
use crate::exit::{CliError, Done};
use crate::output::{self, news};
use kvlab_sim::results::Formats;
use kvlab_sim::run::{ClaimResult, Measured, claim_results, claims};
use kvlab_sim::scenario::Scenario;
use std::fmt::Write;
use std::path::PathBuf;

/// Audit published figures: serve each scenario's protocol in simulated time and print one Markdown page.
///
/// Every scenario states a protocol with its sizes, the published figures, and why ours differ; what cannot be reproduced is said
/// in its row. Times are estimates by a cost model and never come from a clock, so the page is the same on every machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kvlab paper scenarios/paper/*.yaml\n  \
kvlab paper scenarios/paper/*.yaml --check docs/papers.md   exit code 5 when the page is another one\n  \
kvlab paper scenarios/paper/*.yaml --out papers.md --tables papers")]
pub(crate) struct Args {
    /// Scenario files with a `serve` study and claims
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    /// Write the page to this file instead of standard output
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    out: Option<PathBuf>,
    /// Compare the page with this file
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Also write the figures as a table into this results folder, for `kvlab plot`
    #[arg(long, value_name = "DIR", conflicts_with = "check")]
    tables: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    if let Some(out) = &args.tables {
        folder::check(out)?;
    }
    let mut paths = args.scenarios.clone();
    paths.sort();
    let mut page = String::from(HEAD);
    let mut scenarios = Vec::new();
    for path in &paths {
        let scenario = Scenario::load(path)?;
        if scenario.serve.as_ref().is_none_or(|study| study.claims.is_empty()) {
            let reason = "this scenario has no `serve` study with claims".to_owned();
            return Err(CliError::Invalid { path: path.clone(), reason });
        }
        page.push_str(&section(&scenario, &claims(&scenario)?));
        scenarios.push(scenario);
    }
    if let Some(out) = &args.tables {
        let results = claim_results(&scenarios, &study::command_line())?;
        kvlab_sim::results::write(out, &results, Formats::WITH_CSV)?;
        news(&format!("the table of figures is in {}", out.display()));
    }
    if let Some(file) = &args.check {
        let io = |source| CliError::Io { path: file.clone(), source };
        if std::fs::read_to_string(file).map_err(io)? == page {
            news(&format!("{} is up to date", file.display()));
            return Ok(Done::All);
        }
        news(&format!("{} differs from what the scenarios give; write it again with --out", file.display()));
        return Ok(Done::CheckFailed);
    }
    match &args.out {
        Some(file) => {
            std::fs::write(file, page).map_err(|source| CliError::Io { path: file.clone(), source })?;
        }
        None => output::print(&page)?,
    }
    Ok(Done::All)
}

const HEAD: &str = "# The papers, audited

Made by `kvlab paper scenarios/paper/*.yaml`; do not edit. Each section is a scenario: a protocol as numbers, served by the event engine
under a cost model. *Published* is quoted. *As published* is what the engine gives under the published protocol, its defects included;
*corrected* is the same without them. Defects are numbered D1 to D14 as in the analysis of the authors' code that the scenarios follow: each is
named in words where it is used. Speed-ups are ratios of mean simulated latencies with 95 % intervals over resampled problems, where problems
differ at all; a speed-up over an arm that generates more tokens says so.

All times are estimates from data sheets and two figures for the software (the cost model of each section). They say whether a published
ratio follows from the work that was done and left out, not what a device would measure.
";

fn section(scenario: &Scenario, results: &[ClaimResult]) -> String {
    let mut text = format!("\n## {}\n\n{}\n\n", scenario.id, scenario.why);
    // Writing to a string cannot fail.
    let mut line = |content: String| writeln!(text, "{content}").unwrap_or_default();
    if let Some(cost) = scenario.serve.as_ref().and_then(|study| study.cost().ok()) {
        let params = cost.params();
        for part in ["device", "model", "software"] {
            if let (Some(name), Some(source)) =
                (params[part]["name"].as_str(), params[part]["source"].as_str())
            {
                line(format!("* {part}: `{name}` ({source})"));
            }
        }
    }
    if let Some(sizes) = scenario.serve.as_ref().and_then(|study| study.sizes()) {
        line(format!(
            "* {} problems of {} branches; prefix {} to {} tokens, suffix {}, {} generated, verifier's prompt {}",
            sizes.count,
            sizes.branches,
            sizes.root_tokens[0],
            sizes.root_tokens[1],
            sizes.suffix_tokens,
            sizes.generated_tokens,
            sizes.verify_tokens
        ));
    }
    line("\n| what | published | as published | corrected | why |\n|---|---|---|---|---|".to_owned());
    for ClaimResult { claim, as_published, corrected } in results {
        let cell = |found: &Option<Measured>| {
            found.as_ref().map_or_else(|| "-".to_owned(), |found| found.text.clone())
        };
        let row = [&claim.what, &claim.published, &cell(as_published), &cell(corrected), &claim.why];
        line(format!("| {} |", row.map(|text| text.replace('|', "\\|").replace('\n', " ")).join(" | ")));
    }
    text
}
