//! `kvlab sweep`: a scenario over a trace.

use super::study;
use crate::exit::{CliError, Done};
use crate::output::{self, Format};
use crate::progress::Bars;
use kvlab_sim::run::Generated;
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::{Trace, TraceSource};
use std::path::PathBuf;

/// Run every cell of a scenario over a recorded trace and write result tables.
///
/// A scenario is a YAML file; scenarios/reference.yaml shows every key. Cells that cannot work (a budget smaller than
/// what must be kept, say) are skipped with their reason, and the exit code is then 4.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: kvlab sweep scenarios/smoke/tiny.yaml --trace kvlab-out/trace --out kvlab-out/smoke"
)]
pub(crate) struct Args {
    /// Scenario file
    scenario: PathBuf,
    /// Trace folder; not needed when all requests are generated
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Folder for the result tables
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Worker threads; 0 for one a core. Results do not depend on it
    #[arg(long, default_value_t = 0, value_parser = study::threads)]
    threads: usize,
    /// Also write cells.csv and series.csv
    #[arg(long)]
    csv: bool,
    /// Print the cells and what would be read, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// How the cells are printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let scenario = Scenario::load(&args.scenario)?;
    let trace = args.trace.as_deref().map(Trace::open).transpose()?;
    if args.dry_run {
        return match &trace {
            Some(trace) => dry_run(&scenario, trace),
            None => dry_run(&scenario, &Generated),
        };
    }
    let (command, bars) = (study::command_line(), Bars::default());
    let results = match &trace {
        Some(trace) => study::run(&scenario, trace, args.threads, command, &bars)?,
        None if scenario.needs_no_trace() => study::run_generated(&scenario, args.threads, command, &bars)?,
        None => {
            let reason = "this scenario reads a trace: give one with --trace".to_owned();
            return Err(CliError::Invalid { path: args.scenario.clone(), reason });
        }
    };
    if let Some(out) = &args.out {
        study::write(&results, out, args.csv)?;
    }
    output::table(&results.cells, study::SHOWN, args.format)?;
    Ok(study::outcome(&results))
}

fn dry_run(scenario: &Scenario, trace: &dyn TraceSource) -> Result<Done, CliError> {
    let shape = trace.shape();
    let plan = scenario.plan(shape.vocab);
    let pool = scenario.pool_cells();
    let sequences = trace.sequences();
    let read = &sequences[..sequences.len().min(scenario.limit.map_or(usize::MAX, |limit| limit as usize))];
    let tokens: u64 = read.iter().map(|meta| u64::from(meta.len)).sum();
    let vectors = u64::from(shape.q_heads) + 2 * u64::from(shape.kv_heads);
    let bytes = tokens * u64::from(shape.layers) * vectors * u64::from(shape.head_dim) * 4;
    let reads = if plan.eviction.is_empty() { 0 } else { bytes };
    output::print(&format!(
        "{} cells ({} eviction, {} exit, {} trees, {} pool) over {} sequences, {tokens} tokens, and {} problems with branches; reads about {:.1} MB of tensors once\n",
        plan.len() + pool.len(),
        plan.eviction.len(),
        plan.exit.len(),
        plan.trees.len(),
        pool.len(),
        read.len(),
        trace.problems().min(scenario.limit.unwrap_or(u32::MAX)),
        output::megabytes(reads),
    ))?;
    for cell in &plan.eviction {
        let budget = cell.budget.map_or("-".to_owned(), |b| b.to_string());
        let seed = cell.seed.map_or("-".to_owned(), |s| s.to_string());
        let state =
            cell.stack.as_ref().err().map_or(String::new(), |error| format!("  would be skipped: {error}"));
        output::print(&format!("eviction  {}  budget {budget}  seed {seed}{state}\n", cell.label))?;
    }
    for cell in &plan.exit {
        let (lens, unit) = (cell.lens.word(), cell.unit.word());
        output::print(&format!(
            "exit  {lens}  theta {} {unit}  epsilon {} {unit}\n",
            cell.theta, cell.epsilon
        ))?;
    }
    for cell in &pool {
        let seed = cell.seed.map_or("-".to_owned(), |s| s.to_string());
        output::print(&format!("pool  {}  capacity {}  seed {seed}\n", cell.choice.label, cell.capacity))?;
    }
    for cell in &plan.trees {
        let swept: Vec<String> = cell.swept.iter().map(|(key, value)| format!("  {key} {value}")).collect();
        let seed = cell.seed.map_or(String::new(), |seed| format!("  seed {seed}"));
        let state =
            cell.stack.as_ref().err().map_or(String::new(), |error| format!("  would be skipped: {error}"));
        output::print(&format!("trees  {}{}{seed}{state}\n", cell.label, swept.concat()))?;
    }
    let all_work = plan.trees.iter().all(|cell| cell.stack.is_ok())
        && plan.eviction.iter().all(|cell| cell.stack.is_ok());
    Ok(if all_work { Done::All } else { Done::Partly })
}
