//! Items × cells of a scenario, with the policy in the loop.
//!
//! Item after item: the prompt is prefilled once, the full cache runs once, and every cell forks from the prefix. Draws are keyed
//! by item, so the order does not matter.

use std::num::NonZeroUsize;

use kvlab_sim::{
    policy::{
        RawParams,
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
    rows,
};
use crate::{
    decode::DecodeError,
    error::ExecutorError,
    items::ItemSet,
    model::Model,
    progress::Progress,
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
    /// Whether it stopped because there was no time, which is no fault of its own.
    pub(crate) is_out_of_time: bool,
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
    exec_within(model, set, plan, &[(0..cells).collect()], &|| false, progress)
}

/// As [`exec`], a wave of cells after the other (indices in plan order), until `is_over` says so: asked before each run. A cell that
/// did not run on every item then is a skipped row that says on how many it did.
///
/// # Errors
/// As [`exec`].
pub fn exec_within(
    model: &mut Model,
    set: &ItemSet,
    plan: &ExecPlan<'_>,
    waves: &[Vec<usize>],
    is_over: &dyn Fn() -> bool,
    progress: &dyn Progress,
) -> Result<Results, ExecutorError> {
    let scenario = plan.scenario;
    let plans = scenario.plan(model.shape()?.vocab).eviction;
    let mut executed = prepared(model, set, plan, &plans)?;
    let items = executed.items.len();
    let runs: usize = waves.iter().map(|wave| runnable(&plans, wave) + 1).sum();
    progress.start(&format!("executing {}", scenario.id), Some((items * runs) as u64));
    let full = full_cache()?;
    let mut at_work = AtWork { model, set, plan, full: &full, is_over, progress };
    for wave in waves {
        for index in 0..items {
            at_work.item(index, wave, &mut executed)?;
        }
    }
    progress.finish();
    for cell in executed.cells.iter_mut().filter(|cell| cell.plan.stack.is_ok() && cell.failure.is_none()) {
        let done = cell.measured.len();
        if done < items {
            cell.is_out_of_time = true;
            cell.failure = Some(format!("the time was up after {done} of {items} problems"));
        }
    }
    rows::results(at_work.model, set, plan, &executed)
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
    let cells = plans
        .iter()
        .map(|plan| CellRun {
            plan,
            measured: Vec::with_capacity(items.len()),
            failure: None,
            is_out_of_time: false,
        })
        .collect();
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
        if (self.is_over)() {
            return Ok(());
        }
        let (plan, set) = (self.plan, self.set);
        let item = &executed.items[index];
        let seq = SeqIdx::new(u32::try_from(index).unwrap_or(u32::MAX));
        let stacks = wave.iter().filter_map(|&at| executed.cells.get(at)?.plan.stack.as_ref().ok());
        let prefix = Prefix::for_stacks(self.model, &executed.prompts[index], plan.chunk, stacks)?;
        let limits = Limits { max_new_tokens: plan.max_new_tokens, stops: &item.stops };
        let graded = |run: FreeRun| {
            let is_correct = record::graded(item, Some(set.grader), run.text.as_deref()).correct;
            Measured::Free { run, is_correct }
        };

        let mut logits = Vec::new();
        let run = LiveRun::fork(self.model, &prefix, LiveCell::new(self.full, 0), seq)?;
        let run = generate(run, &prefix, limits, |row| {
            if plan.mode == Mode::Forced {
                logits.push(row);
            }
        })?;
        let tokens = run.tokens.clone();
        let reference = graded(run);
        self.progress.advance(1);

        for &at in wave {
            let Some(cell) = executed.cells.get_mut(at) else { continue };
            let Ok(stack) = &cell.plan.stack else { continue };
            self.progress.advance(1);
            // A cell that missed an item is over.
            if cell.failure.is_some() || cell.measured.len() < index || (self.is_over)() {
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
                Mode::Free => generate(run, &prefix, limits, drop).map(graded),
                Mode::Forced => force(run, &tokens, &logits).map(Measured::Forced),
            });
            match outcome {
                Ok(measured) => cell.measured.push(measured),
                Err(error) if is_of_the_cell(&error) => {
                    cell.failure = Some(format!("{}: {error}", item.item));
                }
                Err(error) => return Err(error),
            }
        }
        // Every wave has its own, and they are the same.
        if executed.full.len() == index {
            executed.full.push(reference);
        }
        Ok(())
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
