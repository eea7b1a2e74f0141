//! One study over one trace: its units, batches of them, and the tables that they make up.

use super::context::Context;
use super::repeats::Repeats;
use super::{RunError, assemble, eviction, exit, pool, retained, serve, shard, trees};
use crate::results::{
    Outcome, Part, RESULTS_VERSION, Results, ResultsError, Section, SourceInfo, StudyPlan, Unit, UnitKind,
};
use crate::scenario::{Plan, PoolPlan, Scenario, ServeStudy};
use crate::trace::TraceSource;
use std::borrow::Cow;

/// How a study is run. None of it changes a number.
pub struct RunOptions<'a> {
    /// Worker threads; 0 for one a core.
    pub threads: usize,
    /// The command line that results are attributed to.
    pub command: String,
    /// Called with (done, total) units of work, from any thread.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl std::fmt::Debug for RunOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOptions").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// A scenario over a trace, expanded to units that can run in any batches.
///
/// What a unit gives does not depend on the batch, the other units of it, or the number of threads.
pub struct Study<'a> {
    scenario: &'a Scenario,
    source: &'a dyn TraceSource,
    info: SourceInfo,
    problems: usize,
    plan: Plan,
    pool: Vec<PoolPlan<'a>>,
    /// With the times of the trace, where it takes them.
    serve: Option<Cow<'a, ServeStudy>>,
    units: Vec<Unit>,
    /// Where each section begins in `units`, by [`Section::ALL`], and the end.
    starts: Vec<usize>,
}

impl std::fmt::Debug for Study<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Study")
            .field("scenario", &self.scenario.id)
            .field("units", &self.units.len())
            .finish()
    }
}

/// Something about the thresholds of a cell that a study can do without, with the number that shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The study that the cell belongs to.
    pub section: Section,
    /// The cell, in words.
    pub cell: String,
    /// What was found, in words.
    pub finding: String,
}

/// What a section hands every finished batch to.
pub(super) type Finished<'k> = &'k mut (dyn FnMut(Vec<Outcome>) -> Result<(), RunError> + Send);

/// What is called with every finished batch.
pub type Keep<'k> = &'k mut (dyn FnMut(Part) -> Result<(), ResultsError> + Send);

impl<'a> Study<'a> {
    /// The units of `scenario` over `source`. Nothing of the trace but its manifest is read.
    ///
    /// # Errors
    /// When the trace has nothing of the kind that the scenario studies, or the study would make too many rows.
    pub fn of(
        scenario: &'a Scenario,
        source: &'a dyn TraceSource,
        info: SourceInfo,
    ) -> Result<Self, RunError> {
        let context = Context::of(scenario, source)?;
        if context.sequences.is_empty() && (scenario.eviction.is_some() || scenario.exit.is_some()) {
            return Err(RunError::NoSequences { source_name: source.name().to_owned() });
        }
        let plan = scenario.plan(context.shape.vocab);
        let pool = scenario.pool_cells();
        let timed = |study: &'a ServeStudy| {
            study.timed(source.shape().layers, || source.times().map_err(RunError::from))
        };
        let serve = scenario.serve.as_ref().map(timed).transpose()?;
        let (mut units, mut starts) = (Vec::new(), vec![0]);
        for section in Section::ALL {
            match section {
                Section::Eviction => {
                    if let Some(study) = &scenario.eviction {
                        retained::check(&context, study)?;
                        units.extend(eviction::units(&context, study, &plan.eviction));
                    }
                }
                Section::Exit => {
                    if scenario.exit.is_some() {
                        units.extend(exit::units(&context, &plan.exit));
                    }
                }
                Section::Pool => {
                    if let Some(study) = &scenario.pool {
                        units.extend(pool::units(&context, study, &pool)?);
                    }
                }
                Section::Serve => {
                    if let Some(study) = &serve {
                        units.extend(serve::units(&context, study, &scenario.seeds)?);
                    }
                }
                Section::Trees => {
                    if let Some(study) = &scenario.trees {
                        units.extend(trees::units(&context, study, &plan.trees)?);
                    }
                }
            }
            starts.push(units.len());
        }
        // What is read, not what there is.
        let info = SourceInfo {
            sequences: u32::try_from(context.sequences.len()).unwrap_or(u32::MAX),
            tokens: context.sequences.iter().map(|meta| u64::from(meta.len)).sum(),
            ..info
        };
        let problems = context.problems.len();
        Ok(Self { scenario, source, info, problems, plan, pool, serve, units, starts })
    }

    /// The units, in table order.
    #[must_use]
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The effective parameters of the serving study's cost model, the error of a fit included; absent without such a study.
    #[must_use]
    pub fn cost_params(&self) -> Option<serde_json::Value> {
        self.serve.as_ref().and_then(|study| study.cost().ok()).map(|cost| cost.params())
    }

    /// What is read: sequences, their tokens, and problems with branch trees.
    #[must_use]
    pub fn reads(&self) -> (u32, u64, usize) {
        (self.info.sequences, self.info.tokens, self.problems)
    }

    /// The study as it is written beside its parts; `shards` is in how many pieces it is run.
    #[must_use]
    pub fn plan(&self, command: &str, shards: u32) -> StudyPlan {
        StudyPlan {
            version: RESULTS_VERSION,
            tool: concat!("kvlab ", env!("CARGO_PKG_VERSION")).to_owned(),
            scenario_text: self.scenario.text.clone(),
            scenario_digest: StudyPlan::digest_of(&self.scenario.text),
            source: self.info.clone(),
            command: command.to_owned(),
            shards,
            units: self.units.clone(),
        }
    }

    /// Bytes of queries, keys and values that one pass over the trace reads.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        let shape = self.source.shape();
        let vectors = u64::from(shape.q_heads) + 2 * u64::from(shape.kv_heads);
        self.info.tokens * u64::from(shape.layers) * vectors * u64::from(shape.head_dim) * 4
    }

    /// What is vacuous, unreachable, never decisive or repeated among the thresholds, cell by cell in table order, before anything runs. The rows of a
    /// finished study say the same.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub fn lint(&self, threads: usize) -> Result<Vec<Finding>, RunError> {
        self.pool(threads)?.install(|| self.lint_in_pool())
    }

    fn lint_in_pool(&self) -> Result<Vec<Finding>, RunError> {
        let context = Context::of(self.scenario, self.source)?;
        let (mut findings, mut repeats) = (Vec::new(), Repeats::default());
        for (at, section) in Section::ALL.into_iter().enumerate() {
            let found = match (section, &self.serve) {
                (Section::Exit, _) if self.scenario.exit.is_some() => exit::found(&context, &self.plan.exit)?,
                (Section::Trees, _) if self.scenario.trees.is_some() => {
                    trees::found(&self.plan.trees, &trees::read(&context)?, trees::model(&context))
                }
                (Section::Serve, Some(study)) if study.is_recorded() => {
                    serve::found(&context, study, &self.scenario.seeds)?
                }
                _ => continue,
            };
            let units = self.units[self.starts[at]..self.starts[at + 1]].iter();
            let cells = units.filter(|unit| unit.kind == UnitKind::Cell);
            for (unit, found) in cells.zip(found) {
                let said = found.findings.into_iter().chain(repeats.next(&found.places));
                findings.extend(said.map(|finding| Finding { section, cell: unit.label.clone(), finding }));
            }
        }
        Ok(findings)
    }

    fn pool(&self, threads: usize) -> Result<rayon::ThreadPool, RunError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.map_err(|error| RunError::Threads { threads, detail: error.to_string() })
    }

    /// Runs `batches` of units (places in [`Study::units`], no batch with units of two sections; see [`super::batches`]) one after
    /// the other, and hands each to `keep` when it is done.
    ///
    /// # Errors
    /// When the trace cannot be read, lacks what is not a cell's own need, or `keep` fails. What was kept stays kept.
    pub fn run(
        &self,
        batches: &[Vec<usize>],
        options: &RunOptions<'_>,
        keep: Keep<'_>,
    ) -> Result<(), RunError> {
        self.pool(options.threads)?.install(|| self.in_pool(batches, options.progress, keep))
    }

    fn in_pool(
        &self,
        batches: &[Vec<usize>],
        progress: &(dyn Fn(u64, u64) + Sync),
        keep: Keep<'_>,
    ) -> Result<(), RunError> {
        let scenario = self.scenario;
        let local = |section: Section| -> Vec<Vec<usize>> {
            let at = Section::ALL.iter().position(|known| *known == section).unwrap_or(0);
            let span = self.starts[at]..self.starts[at + 1];
            let of_section =
                batches.iter().filter(|batch| batch.first().is_some_and(|unit| span.contains(unit)));
            of_section.map(|batch| batch.iter().map(|unit| unit - span.start).collect()).collect()
        };
        let context = Context::of(scenario, self.source)?;
        let total =
            Section::ALL.iter().map(|&section| work(scenario, &context, section, &local(section))).sum();
        let context = context.telling(progress, total);
        for section in Section::ALL {
            let batches = local(section);
            if batches.is_empty() {
                continue;
            }
            let mut keep = |outcomes: Vec<Outcome>| -> Result<(), RunError> {
                Ok(keep(Part::of(self.source.name(), &outcomes)?)?)
            };
            match section {
                Section::Eviction => {
                    if let Some(study) = &scenario.eviction {
                        eviction::run(&context, study, &self.plan.eviction, &batches, &mut keep)?;
                    }
                }
                Section::Exit => {
                    exit::run(&context, &self.plan.exit, &batches, &mut keep)?;
                }
                Section::Pool => {
                    if let Some(study) = &scenario.pool {
                        pool::run(&context, study, &self.pool, &batches, &mut keep)?;
                    }
                }
                Section::Serve => {
                    if let Some(study) = &self.serve {
                        serve::run(&context, study, &scenario.seeds, &batches, &mut keep)?;
                    }
                }
                Section::Trees => {
                    if let Some(study) = &scenario.trees {
                        trees::run(&context, study, &self.plan.trees, &batches, &mut keep)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Units of work of the batches of a section, as [`Context::advance`] counts them.
fn work(scenario: &Scenario, context: &Context<'_>, section: Section, batches: &[Vec<usize>]) -> u64 {
    if batches.is_empty() {
        return 0;
    }
    let cells = batches.iter().map(|batch| batch.len() as u64).sum::<u64>();
    let sequences = context.sequences.len() as u64;
    match section {
        Section::Eviction => batches.len() as u64 * sequences * u64::from(context.shape.layers),
        Section::Exit => sequences + cells,
        Section::Pool => cells,
        Section::Serve => {
            let is_recorded = scenario.serve.as_ref().is_some_and(ServeStudy::is_recorded);
            cells + if is_recorded { context.problems.len() as u64 } else { 0 }
        }
        Section::Trees => context.problems.len() as u64 + cells,
    }
}

/// Runs every cell of `scenario` over `source`.
///
/// The tables depend on trace, scenario and seeds only: not on threads, nor on which cells run together.
///
/// # Errors
/// When the trace lacks a field that a cell needs or cannot be read, or a policy or the engine breaks a rule.
pub fn study(
    scenario: &Scenario,
    source: &dyn TraceSource,
    info: SourceInfo,
    options: &RunOptions<'_>,
) -> Result<Results, RunError> {
    let study = Study::of(scenario, source, info)?;
    let all: Vec<usize> = (0..study.units.len()).collect();
    let mut parts = Vec::new();
    let mut keep = |part| {
        parts.push(part);
        Ok(())
    };
    study.run(&shard::batches(&study.units, &all, usize::MAX), options, &mut keep)?;
    assemble::of_scenario(&study.plan(&options.command, 1), scenario, parts)
}

/// What a study gives when its units are no cell at all.
pub(super) fn unit(id: String, section: Section, kind: UnitKind, label: String) -> Unit {
    Unit { id, section, kind, label, refused: None }
}
