//! Items × cells of a scenario, with the policy in the loop.
//!
//! Item after item: the prompt is prefilled once, the full cache runs once, and every cell forks from the prefix. Draws are keyed
//! by item, so the order does not matter.

use std::num::NonZeroUsize;

use kvlab_sim::{
    policy::{
        PolicyError, RawParams,
        compose::{Knobs, Stack},
        registry,
    },
    results::Results,
    scenario::{EvictionPlan, EvictionStudy, Scenario},
    types::SeqIdx,
};

use super::{
    ClosedLoopError, FreeRun, Limits, LiveCell, LiveRun, Prefix,
    forced::{ForcedRun, force},
    free::generate,
    kept::{self, Place},
    rows,
};
use crate::{
    decode::DecodeError,
    error::ExecutorError,
    items::ItemSet,
    journal::Journal,
    model::Model,
    progress::{Progress, Reached},
    record::{self, RecordItem},
};

/// What is fed after the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// What the model itself chooses under the policy.
    Free,
    /// What the model chose with its full cache.
    Forced,
}

impl Mode {
    /// The word used on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Forced => "forced",
        }
    }
}

/// How a scenario is executed.
#[derive(Debug, Clone)]
pub struct ExecPlan<'a> {
    /// The scenario; its `eviction` section is executed.
    pub scenario: &'a Scenario,
    /// What is fed.
    pub mode: Mode,
    /// Most tokens that are generated for an item.
    pub max_new_tokens: u32,
    /// Prompt tokens per pass.
    pub chunk: NonZeroUsize,
    /// The command line that results are attributed to.
    pub command: String,
}

impl<'a> ExecPlan<'a> {
    /// What is executed; for a look before the model is loaded.
    ///
    /// # Errors
    /// A scenario without an eviction section.
    pub fn study(&self) -> Result<&'a EvictionStudy, ClosedLoopError> {
        let no_eviction = || ClosedLoopError::NoEviction { scenario: self.scenario.id.clone() };
        self.scenario.eviction.as_ref().ok_or_else(no_eviction)
    }
}

/// What one cell did on one item.
#[derive(Debug, Clone)]
pub(crate) enum Measured {
    /// A free run, and whether its answer is right, where there is an expected one.
    Free { run: FreeRun, is_correct: Option<bool> },
    /// A teacher-forced run.
    Forced(ForcedRun),
}

/// One cell with what it did, `[item]`.
#[derive(Debug)]
pub(crate) struct CellRun<'p> {
    pub(crate) plan: &'p EvictionPlan,
    pub(crate) measured: Vec<Measured>,
    /// Why it stopped.
    pub(crate) failure: Option<String>,
    /// Whether it stopped through no fault of its own: there was no time, or it cannot run in the loop.
    pub(crate) is_skipped: bool,
}

impl<'p> CellRun<'p> {
    fn of(plan: &'p EvictionPlan) -> Self {
        let looks_ahead = plan.stack.as_ref().is_ok_and(|stack| stack.needs().future);
        let failure = looks_ahead.then(|| {
            let policy = &plan.label;
            format!(
                "`{policy}` needs what comes later, which a running model has not: `kvlab sweep` replays it"
            )
        });
        Self { plan, measured: Vec::new(), is_skipped: failure.is_some(), failure }
    }

    /// It cannot go on after `error` on the problem `item`.
    pub(crate) fn stop(&mut self, item: &str, error: &ExecutorError) {
        self.is_skipped =
            matches!(error, ExecutorError::Policy(PolicyError::Refused { .. } | PolicyError::Missing { .. }));
        self.failure = Some(format!("{item}: {error}"));
    }
}

/// What all rows share.
#[derive(Debug)]
pub(crate) struct Executed<'p> {
    pub(crate) study: &'p EvictionStudy,
    pub(crate) items: &'p [RecordItem],
    /// Prompt tokens, `[item]`.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// The full cache's free runs, `[item]`.
    pub(crate) full: Vec<Measured>,
    pub(crate) cells: Vec<CellRun<'p>>,
}

/// Runs every eviction cell of the scenario on every item of `set`. Cells that cannot work are skipped rows; a cell that fails
/// is a row that says so.
///
/// # Errors
/// No item, a scenario without an eviction section, a prompt that cannot be made, the full-cache run, or the runtime.
pub fn exec(
    model: &mut Model,
    set: &ItemSet,
    plan: &ExecPlan<'_>,
    progress: &dyn Progress,
) -> Result<Results, ExecutorError> {
    let cells = plan.scenario.plan(model.shape()?.vocab).eviction.len();
    exec_within(model, set, plan, &[(0..cells).collect()], &|| false, &mut Journal::default(), progress)
}

/// As [`exec`], a wave of cells after the other (indices in plan order), until `is_over` says so: asked before each run. A cell that
/// did not run on every item then is a skipped row that says on how many it did.
///
/// Every run is kept in `journal` as it ends, and one that is there already is not made again: the results are the same.
///
/// # Errors
/// As [`exec`], and a journal of other settings, or one that cannot be read or written.
pub fn exec_within(
    model: &mut Model,
    set: &ItemSet,
    plan: &ExecPlan<'_>,
    waves: &[Vec<usize>],
    is_over: &dyn Fn() -> bool,
    journal: &mut Journal,
    progress: &dyn Progress,
) -> Result<Results, ExecutorError> {
    let scenario = plan.scenario;
    let plans = scenario.plan(model.shape()?.vocab).eviction;
    let mut executed = prepared(model, set, plan, &plans)?;
    let items = executed.items.len();
    let wanted = executed.wanted(plan.mode);
    if journal.keeps() {
        let settings = kept::settings(model, set, plan, ("exec", plan.mode.word()))?;
        journal.begin(settings, wanted.len() as u64)?;
    }
    let runs: usize = waves.iter().map(|wave| runnable(&plans, wave) + 1).sum();
    progress.start(&format!("executing {}", scenario.id), Some((items * runs) as u64));
    let tally = Tally::of(&wanted, journal, progress);
    let full = full_cache()?;
    let mut at_work = AtWork { model, set, plan, full: &full, is_over, journal, tally, progress };
    for wave in waves {
        for index in 0..items {
            at_work.item(index, wave, &mut executed)?;
        }
    }
    progress.finish();
    let mut is_whole = true;
    for cell in executed.cells.iter_mut().filter(|cell| cell.plan.stack.is_ok() && cell.failure.is_none()) {
        let done = cell.measured.len();
        if done < items {
            is_whole = false;
            cell.is_skipped = true;
            cell.failure = Some(format!("the time was up after {done} of {items} problems"));
        }
    }
    if is_whole {
        at_work.journal.complete(&wanted);
    }
    rows::results(at_work.model, set, plan, &executed)
}

impl Executed<'_> {
    /// Keys of all runs that are kept.
    fn wanted(&self, mode: Mode) -> Vec<String> {
        let mut keys = Vec::new();
        for (index, (item, prompt)) in self.items.iter().zip(&self.prompts).enumerate() {
            let place = Place::of(index, item, prompt);
            keys.push(place.full().0);
            let cells = self.cells.iter().filter(|cell| cell.failure.is_none() && is_kept(cell.plan, mode));
            keys.extend(cells.map(|cell| place.cell(cell.plan, self.study).0));
        }
        keys
    }
}

/// Whether a cell has a run of its own in the journal: where nothing is forced, the full cache has run already.
fn is_kept(plan: &EvictionPlan, mode: Mode) -> bool {
    plan.stack.as_ref().is_ok_and(|stack| mode == Mode::Forced || !stack.is_full_cache())
}

/// How many runs are there.
pub(crate) struct Tally {
    before: u64,
    done: u64,
    total: u64,
}

impl Tally {
    /// Those of the runs under the keys `wanted` that are there already are told.
    pub(crate) fn of(wanted: &[String], journal: &Journal, progress: &dyn Progress) -> Self {
        let before = wanted.iter().filter(|key| journal.has(key)).count() as u64;
        let total = wanted.len() as u64;
        if before > 0 {
            progress.message(&format!("{before} of {total} runs are there already"));
        }
        Self { before, done: before, total }
    }

    /// One more.
    pub(crate) fn count(&mut self, progress: &dyn Progress) {
        self.done += 1;
        let Self { before, done, total } = *self;
        progress.reached(Reached { what: "runs", before, done, total });
    }
}

fn runnable(plans: &[EvictionPlan], wave: &[usize]) -> usize {
    wave.iter().filter(|&&at| plans.get(at).is_some_and(|plan| plan.stack.is_ok())).count()
}

/// What is run, before anything is: the prompts in tokens, and a cell for each plan.
///
/// # Errors
/// No item, a scenario without an eviction section, or a prompt that cannot be made or does not fit.
pub(crate) fn prepared<'p>(
    model: &Model,
    set: &'p ItemSet,
    plan: &ExecPlan<'p>,
    plans: &'p [EvictionPlan],
) -> Result<Executed<'p>, ExecutorError> {
    let study = plan.study()?;
    let limit = plan.scenario.limit.map_or(usize::MAX, |limit| limit as usize);
    let items = &set.items[..set.items.len().min(limit)];
    if items.is_empty() {
        return Err(ClosedLoopError::NoItems.into());
    }
    let prompts = items
        .iter()
        .map(|item| {
            let tokens = record::prompt(model, item)?.tokens;
            record::check_context(model, &item.item, tokens.len(), plan.max_new_tokens)?;
            Ok(tokens)
        })
        .collect::<Result<_, ExecutorError>>()?;
    let cells = plans.iter().map(CellRun::of).collect();
    Ok(Executed { study, items, prompts, full: Vec::new(), cells })
}

/// The stack that keeps everything.
pub(crate) fn full_cache() -> Result<Stack, ExecutorError> {
    let any = Knobs { capacity: 1, recent: 0, sinks: 0, period: 1, window: 1 };
    Ok(registry::composition("full")?.stack(&any, &RawParams::default())?)
}

/// What the work on every item needs.
struct AtWork<'a> {
    model: &'a mut Model,
    set: &'a ItemSet,
    plan: &'a ExecPlan<'a>,
    full: &'a Stack,
    is_over: &'a dyn Fn() -> bool,
    journal: &'a mut Journal,
    tally: Tally,
    progress: &'a dyn Progress,
}

impl AtWork<'_> {
    /// The full cache and the cells of `wave` on one item.
    fn item(
        &mut self,
        index: usize,
        wave: &[usize],
        executed: &mut Executed<'_>,
    ) -> Result<(), ExecutorError> {
        let mode = self.plan.mode;
        let item = &executed.items[index];
        let place = Place::of(index, item, &executed.prompts[index]);
        // Every wave has its own, and they are the same.
        let full = match executed.full.get(index) {
            Some(full) => Some(full.clone()),
            None => self.journal.find(&place.full().0)?.map(|run| graded(self.set, item, run)),
        };
        let mut due = Vec::new();
        for &at in wave {
            let Some(cell) = executed.cells.get_mut(at).filter(|cell| cell.plan.stack.is_ok()) else {
                continue;
            };
            // A cell that missed an item is over.
            let is_over = cell.failure.is_some() || cell.measured.len() < index;
            let kept = match is_kept(cell.plan, mode) {
                _ if is_over => None,
                true => self.kept(&place.cell(cell.plan, executed.study).0, item)?,
                false => full.clone(),
            };
            match kept {
                Some(measured) => cell.measured.push(measured),
                None if !is_over => {
                    due.push(at);
                    continue;
                }
                None => {}
            }
            self.progress.advance(1);
        }
        let full = match full {
            Some(full) if due.is_empty() => Some(full),
            full if (self.is_over)() => full,
            full => Some(self.run(index, wave, &due, full, executed)?),
        };
        self.progress.advance(1);
        if executed.full.len() == index {
            executed.full.extend(full);
        }
        Ok(())
    }

    /// What is kept of a cell.
    fn kept(&self, key: &str, item: &RecordItem) -> Result<Option<Measured>, ExecutorError> {
        Ok(match self.plan.mode {
            Mode::Free => self.journal.find(key)?.map(|run| graded(self.set, item, run)),
            Mode::Forced => self.journal.find(key)?.map(Measured::Forced),
        })
    }

    /// Runs the cells that are due on one item, those of `wave` that are not kept. Gives the full cache's run, which is made again where
    /// its distributions are looked at.
    fn run(
        &mut self,
        index: usize,
        wave: &[usize],
        due: &[usize],
        full: Option<Measured>,
        executed: &mut Executed<'_>,
    ) -> Result<Measured, ExecutorError> {
        let (plan, set) = (self.plan, self.set);
        let item = &executed.items[index];
        let place = Place::of(index, item, &executed.prompts[index]);
        let seq = SeqIdx::new(u32::try_from(index).unwrap_or(u32::MAX));
        let stacks = wave.iter().filter_map(|&at| executed.cells.get(at)?.plan.stack.as_ref().ok());
        let prefix = Prefix::for_stacks(self.model, &executed.prompts[index], plan.chunk, stacks)?;
        let limits = Limits { max_new_tokens: plan.max_new_tokens, stops: &item.stops };

        let mut logits = Vec::new();
        let reference = match full {
            Some(full) if plan.mode == Mode::Free => full,
            full => {
                let run = LiveRun::fork(self.model, &prefix, LiveCell::new(self.full, 0), seq)?;
                let run = generate(run, &prefix, limits, |row| {
                    if plan.mode == Mode::Forced {
                        logits.push(row);
                    }
                })?;
                match full {
                    None => {
                        let (key, name) = place.full();
                        self.journal.keep(&key, name, &run)?;
                        self.tally.count(self.progress);
                    }
                    Some(full) => self.journal.check_repeats(&item.item, full.tokens() == run.tokens)?,
                }
                graded(set, item, run)
            }
        };

        for &at in due {
            let Some(cell) = executed.cells.get_mut(at) else { continue };
            let Ok(stack) = &cell.plan.stack else { continue };
            self.progress.advance(1);
            if (self.is_over)() {
                continue;
            }
            // The full cache was run already; teacher-forced it runs again, and shows zero.
            if plan.mode == Mode::Free && stack.is_full_cache() {
                cell.measured.push(reference.clone());
                continue;
            }
            let bytes_per_scalar = executed.study.bytes_per_scalar;
            let live = LiveCell { stack, seed: cell.plan.seed.unwrap_or(0), bytes_per_scalar };
            let outcome = LiveRun::fork(self.model, &prefix, live, seq).and_then(|run| match plan.mode {
                Mode::Free => generate(run, &prefix, limits, drop).map(|run| graded(set, item, run)),
                Mode::Forced => force(run, reference.tokens(), &logits).map(Measured::Forced),
            });
            match outcome {
                Ok(measured) => {
                    let (key, name) = place.cell(cell.plan, executed.study);
                    match &measured {
                        Measured::Free { run, .. } => self.journal.keep(&key, name, run)?,
                        Measured::Forced(run) => self.journal.keep(&key, name, run)?,
                    }
                    self.tally.count(self.progress);
                    cell.measured.push(measured);
                }
                Err(error) if is_of_the_cell(&error) => {
                    cell.stop(&item.item, &error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(reference)
    }
}

/// A free run with what its answer is worth.
pub(crate) fn graded(set: &ItemSet, item: &RecordItem, run: FreeRun) -> Measured {
    let is_correct = record::graded(item, Some(set.grader), run.text.as_deref()).correct;
    Measured::Free { run, is_correct }
}

impl Measured {
    /// The tokens that were generated; none where they were fed.
    pub(crate) fn tokens(&self) -> &[u32] {
        match self {
            Self::Free { run, .. } => &run.tokens,
            Self::Forced(_) => &[],
        }
    }
}

/// Whether an error says something about the policy and nothing about the machine.
pub(crate) fn is_of_the_cell(error: &ExecutorError) -> bool {
    matches!(
        error,
        ExecutorError::Policy(_)
            | ExecutorError::ClosedLoop(ClosedLoopError::NotAtHand { .. })
            | ExecutorError::Decode(DecodeError::NonFinite { .. } | DecodeError::Logits { .. })
    )
}
