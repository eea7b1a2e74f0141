//! `kvlab sweep`: a scenario over a trace, in parts that are kept.

use super::sample::SampleArgs;
use super::{check, findings, folder, shard, study, sweep_plan};
use crate::exit::{CliError, Done};
use crate::output::{self, Format, news};
use crate::progress::Bars;
use kvlab_executor::Progress;
use kvlab_sim::results::{Parts, Results, Section, SourceInfo, Standing, Unit, UnitKind, save_part};
use kvlab_sim::run::{Generated, RunOptions, Shard, Study, assemble, batches, source_info, usual_batch};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::{Trace, TraceSource};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Run every cell of a scenario over a recorded trace and write result tables.
///
/// A scenario is a YAML file; scenarios/reference.yaml shows every key. Cells that cannot work (a budget smaller than
/// what must be kept, say) are skipped with their reason, and the exit code is then 4.
///
/// Thresholds that can never act, decide nothing or repeat one another are told before the cells run, each with the number that shows it.
///
/// Finished cells are kept in the folder `parts` of --out. The same command again, after an interruption or with a changed
/// scenario, runs only what is not there. With --shard, or under a Slurm array or a Kubernetes Indexed Job, only a share of the cells runs;
/// `kvlab merge` makes the tables then.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(
    after_help = "Examples:\n  kvlab sweep scenarios/smoke/tiny.yaml --trace kvlab-out/trace --out kvlab-out/smoke\n  \
kvlab sweep study.yaml --trace my-trace --out shared --shard 3/7; kvlab merge shared --out shared\n\n\
Without --shard: SLURM_ARRAY_TASK_ID, _MIN and _COUNT; else JOB_COMPLETION_INDEX (from 0) with KVLAB_SHARDS; else KVLAB_SHARD (from 1) \
with KVLAB_SHARDS."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    instead: Option<Instead>,
    /// Scenario file
    #[arg(required = true)]
    scenario: Option<PathBuf>,
    /// Trace folder; not needed when all requests are generated
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Folder for the result tables
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    sample: SampleArgs,
    /// Run the i-th of n equal shares of the cells (from 1) and write no tables
    #[arg(long, value_name = "I/N", requires = "out", value_parser = shard::given)]
    shard: Option<Shard>,
    /// Most cells that are run and kept together [default: 64, or two percent of the study; a shard's share up to 256]
    #[arg(long, value_name = "CELLS", requires = "out", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Remove the parts that are there, of whatever study, and run all cells
    #[arg(long, requires = "out")]
    fresh: bool,
    /// Worker threads; 0 for one a core. Results do not depend on it
    #[arg(long, default_value_t = 0, value_parser = study::threads)]
    threads: usize,
    #[command(flatten)]
    export: study::TableArgs,
    /// Add `predicted_accuracy` with an interval to eviction cells, by the predictor.json of `kvlab fidelity` on the same model: a proxy, absent
    /// outside of what it was fitted on
    #[arg(long, value_name = "FILE", conflicts_with = "shard")]
    predict: Option<PathBuf>,
    /// Compare the cells with `expect` of the scenario; the exit code is 5 when they are not as expected
    #[arg(long, conflicts_with_all = ["shard", "dry_run"])]
    check: bool,
    /// Print the cells and what would be read, and do nothing
    #[arg(long, conflicts_with_all = ["csv", "jsonl", "fresh", "batch", "predict"])]
    dry_run: bool,
    /// How the cells are printed
    #[arg(long, value_enum, default_value_t, conflicts_with = "dry_run")]
    format: Format,
}

/// What is done instead of a sweep.
#[derive(Debug, clap::Subcommand)]
enum Instead {
    Plan(sweep_plan::Args),
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    if let Some(Instead::Plan(args)) = &args.instead {
        return sweep_plan::run(args);
    }
    let path = args.scenario.clone().unwrap_or_default();
    let scenario = args.sample.on(Scenario::load(&path)?, &path)?;
    if args.check {
        check::refuse_without_claims(&scenario, &path)?;
    }
    if args.predict.is_some() && scenario.eviction.is_none() {
        let reason = format!("{} has no `eviction` section, whose cells are predicted", path.display());
        return Err(CliError::Usage { flag: "--predict", reason });
    }
    with_source(&path, args.trace.as_deref(), &scenario, |source, info| over(args, &scenario, source, info))
}

/// Opens what `scenario`, the file `path`, is run over, and hands it to `work`.
pub(crate) fn with_source<T>(
    path: &Path,
    trace: Option<&Path>,
    scenario: &Scenario,
    work: impl FnOnce(&dyn TraceSource, SourceInfo) -> Result<T, CliError>,
) -> Result<T, CliError> {
    if let Some(trace) = trace.filter(|_| scenario.needs_no_trace()) {
        let reason = format!("it reads no trace: leave out --trace {}", trace.display());
        return Err(CliError::Invalid { path: path.to_owned(), reason });
    }
    match trace.map(Trace::open).transpose()? {
        Some(trace) => work(&trace, study::info(&trace)),
        None if scenario.needs_no_trace() => work(&Generated, source_info(&Generated, "generated", "")),
        None => {
            let reason = "this scenario reads a trace: give one with --trace".to_owned();
            Err(CliError::Invalid { path: path.to_owned(), reason })
        }
    }
}

fn over(
    args: &Args,
    scenario: &Scenario,
    source: &dyn TraceSource,
    info: SourceInfo,
) -> Result<Done, CliError> {
    let study = Study::of(scenario, source, info)?;
    study::tell_fit(&study);
    if args.dry_run {
        return dry_run(&study);
    }
    let (command, bars) = (study::command_line(), Bars::default());
    let Some(out) = &args.out else {
        findings::tell(&study, args.threads)?;
        let all: Vec<usize> = (0..study.units().len()).collect();
        let mut parts = Vec::new();
        bars.piece("replay", |progress| {
            let options = RunOptions { threads: args.threads, command: command.clone(), progress };
            study.run(&batches(study.units(), &all, usize::MAX), &options, &mut |part| {
                parts.push(part);
                Ok(())
            })
        })?;
        return shown(
            args,
            scenario,
            &study::with_predictions(assemble(&study.plan(&command, 1), &parts)?, args.predict.as_deref())?,
        );
    };
    folder::check(out)?;
    let shard = shard::chosen(args.shard)?;
    if args.check && shard.count > 1 {
        let reason = "--check: a shard makes no tables; `kvlab merge --check` compares them".to_owned();
        return Err(CliError::Invalid { path: out.clone(), reason });
    }
    if args.export.is_any() && shard.count > 1 {
        let reason = "a shard makes no tables: `kvlab merge` has these flags".to_owned();
        return Err(CliError::Usage { flag: "--csv, --jsonl", reason });
    }
    if args.fresh && shard.count > 1 {
        let reason =
            "--fresh with shards would remove what other shards did: remove its folder `parts` first"
                .to_owned();
        return Err(CliError::Invalid { path: out.clone(), reason });
    }
    let plan = study.plan(&command, shard.count);
    let found = found(out, args.fresh)?;
    let before = Standing::of(&plan, &found.whole);
    if before.foreign > 0 {
        news(&format!("{} cells in {} are of other studies: they stay there", before.foreign, out.display()));
    }
    let share = shard.share(study.units());
    let missing: BTreeSet<usize> = before.missing.iter().copied().collect();
    let wanted: Vec<usize> = share.iter().copied().filter(|place| missing.contains(place)).collect();
    let cells = |places: &[usize]| {
        places.iter().filter(|&&place| study.units()[place].kind == UnitKind::Cell).count()
    };
    if cells(&wanted) < cells(&share) {
        news(&format!("{} of {} cells are there already", cells(&share) - cells(&wanted), cells(&share)));
    }
    // Every shard would say the same.
    if shard.count == 1 && !wanted.is_empty() {
        findings::tell(&study, args.threads)?;
    }
    let mut parts = found.whole;
    let work = batches(study.units(), &wanted, batch(args, study.units(), shard));
    bars.piece("replay", |progress| {
        let options = RunOptions { threads: args.threads, command: command.clone(), progress };
        let (since, mut done) = (Instant::now(), 0);
        study.run(&work, &options, &mut |part| {
            // Before the first part, so that a sweep that is refused leaves nothing behind.
            if done == 0 {
                plan.save(out)?;
            }
            save_part(out, &part)?;
            parts.push(part);
            done += 1;
            if work.len() > 1 {
                bars.message(&kept(done, work.len(), since));
            }
            Ok(())
        })
    })?;
    plan.save(out)?;
    if shard.count == 1 {
        let results = study::with_predictions(assemble(&plan, &parts)?, args.predict.as_deref())?;
        study::write(&results, out, args.export)?;
        return shown(args, scenario, &results);
    }
    let after = Standing::of(&plan, &parts);
    let failed: Vec<_> =
        after.unfinished.iter().filter(|cell| share.binary_search(&cell.place).is_ok()).collect();
    for cell in &failed {
        news(&format!("{}: {}: {}", cell.status, study.units()[cell.place].label, cell.error));
    }
    let (out, n) = (out.display(), cells(&share));
    news(&format!("shard {shard}: {n} cells are in {out}; `kvlab merge {out} --out {out}` makes the tables"));
    Ok(if failed.is_empty() { Done::All } else { Done::Partly })
}

/// The parts that can be used; says which cannot, and puts them aside.
fn found(out: &Path, is_fresh: bool) -> Result<Parts, CliError> {
    if is_fresh {
        Parts::remove(out)?;
    }
    let parts = Parts::read(out)?;
    for (path, reason) in &parts.damaged {
        news(&format!("{} is damaged: {reason}; its cells run again", path.display()));
    }
    parts.set_aside()?;
    if parts.others > 0 {
        news(&format!("{} parts are of another version of the tables and not used", parts.others));
    }
    Ok(parts)
}

/// `3 of 50 batches are kept, about 120 s left`.
fn kept(done: usize, all: usize, since: Instant) -> String {
    let left = match (u32::try_from(done), u32::try_from(all - done)) {
        (Ok(done), Ok(left)) if done > 0 && left > 0 => {
            format!(", about {:.0} s left", (since.elapsed() / done * left).as_secs_f64())
        }
        _ => String::new(),
    };
    format!("{done} of {all} batches are kept{left}")
}

fn batch(args: &Args, units: &[Unit], shard: Shard) -> usize {
    /// A shard's share runs in one piece up to here, so that it reads the trace once.
    const SHARE: usize = 256;
    match args.batch {
        Some(most) => most as usize,
        None if shard.count > 1 => SHARE.max(usual_batch(units)),
        None => usual_batch(units),
    }
}

fn shown(args: &Args, scenario: &Scenario, results: &Results) -> Result<Done, CliError> {
    output::table(&results.cells, study::SHOWN, args.format)?;
    let done = study::outcome(results);
    Ok(if args.check { check::against(scenario, results, done) } else { done })
}

fn dry_run(study: &Study<'_>) -> Result<Done, CliError> {
    let cells: Vec<&Unit> = study.units().iter().filter(|unit| unit.kind == UnitKind::Cell).collect();
    let by_section = Section::ALL.map(|section| {
        format!("{} {}", cells.iter().filter(|unit| unit.section == section).count(), section.word())
    });
    let (sequences, tokens, problems) = study.reads();
    let reads_tensors = cells.iter().any(|unit| unit.section == Section::Eviction);
    output::print(&format!(
        "{} cells ({}) over {sequences} sequences, {tokens} tokens, and {problems} problems with branches; reads about {:.1} MB of tensors once a batch\n",
        cells.len(),
        by_section.join(", "),
        output::megabytes(if reads_tensors { study.tensor_bytes() } else { 0 }),
    ))?;
    let lines: Vec<String> = cells
        .iter()
        .map(|unit| {
            let state =
                unit.refused.as_ref().map_or(String::new(), |error| format!("  would be skipped: {error}"));
            format!("{}  {}{state}\n", unit.section.word(), unit.label)
        })
        .collect();
    output::print(&lines.concat())?;
    Ok(if cells.iter().all(|unit| unit.refused.is_none()) { Done::All } else { Done::Partly })
}
