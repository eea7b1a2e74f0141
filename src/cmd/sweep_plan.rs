//! `kvlab sweep plan`: job files for a sweep on several machines.

use super::sample::SampleArgs;
use super::{study, sweep};
use crate::exit::{CliError, Done};
use crate::output;
use kvlab_sim::results::{Section, UnitKind};
use kvlab_sim::run::{Shard, Study};
use kvlab_sim::scenario::Scenario;
use std::path::PathBuf;

/// Print a job file that runs a sweep in shards on a batch engine, with sizes.
///
/// Every job writes finished cells into the same folder, which all machines must see; the trace may be read-only. A job that is run again,
/// by the engine or by hand, runs only what is not there. Cells that are skipped or failed (exit code 4) are rows, not failures of a job.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: kvlab sweep plan study.yaml --trace my-trace --out shared --shards 16 --emit slurm >study.sbatch"
)]
pub(crate) struct Args {
    /// Scenario file, as the machines see it
    scenario: PathBuf,
    /// Trace folder, as the machines see it; not needed when all requests are generated
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Folder for parts and result tables, as the machines see it
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    sample: SampleArgs,
    /// Into how many shards the cells are cut
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shards: u32,
    /// For which engine
    #[arg(long, value_enum, default_value_t)]
    emit: Engine,
    /// Cores of a shard
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cpus: u32,
    /// Image with kvlab in it (k8s)
    #[arg(long, default_value = "kvlab:latest")]
    image: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// One command a shard, then the merge
    #[default]
    Commands,
    /// A Slurm array job
    Slurm,
    /// A Kubernetes Indexed Job
    K8s,
    /// GNU parallel
    Parallel,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let scenario = args.sample.on(Scenario::load(&args.scenario)?, &args.scenario)?;
    let text = sweep::with_source(&args.scenario, args.trace.as_deref(), &scenario, |source, info| {
        let study = Study::of(&scenario, source, info)?;
        let job = Job::of(args, &scenario, &study);
        Ok(match args.emit {
            Engine::Commands => job.commands(),
            Engine::Slurm => job.slurm(),
            Engine::K8s => job.kubernetes(),
            Engine::Parallel => job.parallel(),
        })
    })?;
    output::print(&text)?;
    Ok(Done::All)
}

struct Job<'a> {
    args: &'a Args,
    id: &'a str,
    sizes: String,
}

impl<'a> Job<'a> {
    fn of(args: &'a Args, scenario: &'a Scenario, study: &Study<'_>) -> Self {
        let units = study.units();
        let cells = |index: u32| {
            let share = Shard { index, count: args.shards }.share(units);
            share.iter().filter(|&&place| units[place].kind == UnitKind::Cell).count()
        };
        let all: Vec<usize> = (0..args.shards).map(cells).collect();
        let reads =
            if units.iter().any(|unit| unit.section == Section::Eviction) { study.tensor_bytes() } else { 0 };
        let (least, most) = (all.iter().min().unwrap_or(&0), all.iter().max().unwrap_or(&0));
        let sizes = format!(
            "# {} cells of `{}` in {} shards of {least} to {most}; each reads {:.1} MB of tensors. No time was measured.\n",
            all.iter().sum::<usize>(),
            scenario.id,
            args.shards,
            output::megabytes(reads),
        );
        Self { args, id: &scenario.id, sizes }
    }

    fn sweep(&self) -> String {
        let path = |path: &PathBuf| study::quoted(&path.display().to_string());
        let trace =
            self.args.trace.as_ref().map_or_else(String::new, |trace| format!(" --trace {}", path(trace)));
        let (scenario, out) = (path(&self.args.scenario), path(&self.args.out));
        format!("kvlab sweep {scenario}{trace}{} --out {out}", self.args.sample.typed())
    }

    /// One shard as a task: cells that were skipped or failed are rows that say so, and no failure of the job.
    fn task(&self, more: &str) -> String {
        format!("{} {more} || test $? -eq 4", self.sweep())
    }

    /// The id as the name of a job: lower-case letters, digits and hyphens inside, short enough for the names that pods get from it.
    fn job_name(&self) -> String {
        let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let id: String =
            self.id.to_ascii_lowercase().chars().map(|c| if is_fine(c) { c } else { '-' }).collect();
        let name: String = format!("kvlab-{}", id.trim_matches('-')).chars().take(52).collect();
        name.trim_end_matches('-').to_owned()
    }

    fn merge(&self) -> String {
        let out = study::quoted(&self.args.out.display().to_string());
        format!("kvlab merge {out} --out {out}")
    }

    fn commands(&self) -> String {
        let (n, cpus) = (self.args.shards, self.args.cpus);
        let shard = |index: u32| format!("{}\n", self.task(&format!("--shard {index}/{n} --threads {cpus}")));
        let shards: String = (1..=n).map(shard).collect();
        format!("{}{shards}{}\n", self.sizes, self.merge())
    }

    fn parallel(&self) -> String {
        let (n, cpus) = (self.args.shards, self.args.cpus);
        let command = self.task(&format!("--shard {{}}/{n} --threads {cpus}"));
        let command = format!("'{}'", command.replace('\'', "'\\''"));
        format!("{}seq {n} | parallel --jobs 25% {command}\n{}\n", self.sizes, self.merge())
    }

    fn slurm(&self) -> String {
        let (n, cpus) = (self.args.shards, self.args.cpus);
        format!(
            "#!/bin/sh\n{}# When all tasks are done: {}\n#SBATCH --job-name={}\n#SBATCH --array=1-{n}\n\
             #SBATCH --cpus-per-task={cpus}\n#SBATCH --requeue\n#SBATCH --output={}-%A_%a.log\n\
             {}\n",
            self.sizes,
            self.merge(),
            self.job_name(),
            self.job_name(),
            self.task("--threads \"${SLURM_CPUS_PER_TASK:-1}\"")
        )
    }

    fn kubernetes(&self) -> String {
        let (n, cpus) = (self.args.shards, self.args.cpus);
        // A JSON string is a YAML string.
        let shell = |text: String| serde_json::Value::from(text).to_string();
        let command = shell(self.task(&format!("--threads {cpus}")));
        let image = shell(self.args.image.clone());
        format!(
            "{}# Add the volumes that hold scenario, trace (may be read-only) and results. When the job is done: {}\n\
             apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {}\nspec:\n  completionMode: Indexed\n  \
             completions: {n}\n  parallelism: {n}\n  template:\n    spec:\n      restartPolicy: OnFailure\n      containers:\n      \
             - name: kvlab\n        image: {image}\n        command: [\"/bin/sh\", \"-c\", {command}]\n        env:\n        \
             - {{name: KVLAB_SHARDS, value: \"{n}\"}}\n        resources:\n          requests: {{cpu: \"{cpus}\"}}\n",
            self.sizes,
            self.merge(),
            self.job_name()
        )
    }
}
