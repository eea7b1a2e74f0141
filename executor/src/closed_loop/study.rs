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
    let scenario = plan.scenario;
    let plans = scenario.plan(model.shape()?.vocab).eviction;
    let mut executed = prepared(model, set, plan, &plans)?;
    let runnable = plans.iter().filter(|plan| plan.stack.is_ok()).count() as u64;
    let items = executed.items.len();
    progress.start(&format!("executing {}", scenario.id), Some(items as u64 * (runnable + 1)));
    let full = full_cache()?;
    for index in 0..items {
        run_item(model, set, plan, &full, index, &mut executed, progress)?;
    }
    progress.finish();
    rows::results(model, set, plan, &executed)
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
        .map(|plan| CellRun { plan, measured: Vec::with_capacity(items.len()), failure: None })
        .collect();
    Ok(Executed { study, items, prompts, full: Vec::new(), cells })
}

/// The stack that keeps everything.
pub(crate) fn full_cache() -> Result<Stack, ExecutorError> {
    let any = Knobs { capacity: 1, recent: 0, sinks: 0, period: 1, window: 1 };
    Ok(registry::composition("full")?.stack(&any, &RawParams::default())?)
}

fn run_item(
    model: &mut Model,
    set: &ItemSet,
    plan: &ExecPlan<'_>,
    full: &Stack,
    index: usize,
    executed: &mut Executed<'_>,
    progress: &dyn Progress,
) -> Result<(), ExecutorError> {
    let item = &executed.items[index];
    let seq = SeqIdx::new(u32::try_from(index).unwrap_or(u32::MAX));
    let stacks = executed.cells.iter().filter_map(|cell| cell.plan.stack.as_ref().ok());
    let prefix = Prefix::for_stacks(model, &executed.prompts[index], plan.chunk, stacks)?;
    let limits = Limits { max_new_tokens: plan.max_new_tokens, stops: &item.stops };
    let graded = |run: FreeRun| {
        let is_correct = record::graded(item, Some(set.grader), run.text.as_deref()).correct;
        Measured::Free { run, is_correct }
    };

    let mut logits = Vec::new();
    let run = LiveRun::fork(model, &prefix, LiveCell::new(full, 0), seq)?;
    let run = generate(run, &prefix, limits, |row| {
        if plan.mode == Mode::Forced {
            logits.push(row);
        }
    })?;
    let tokens = run.tokens.clone();
    let reference = graded(run);
    progress.advance(1);

    for cell in &mut executed.cells {
        let Ok(stack) = &cell.plan.stack else {
            continue;
        };
        progress.advance(1);
        if cell.failure.is_some() {
            continue;
        }
        // The full cache was run already; teacher-forced it runs again, and shows zero.
        if plan.mode == Mode::Free && stack.is_full_cache() {
            cell.measured.push(reference.clone());
            continue;
        }
        let bytes_per_scalar = executed.study.bytes_per_scalar;
        let live = LiveCell { stack, seed: cell.plan.seed.unwrap_or(0), bytes_per_scalar };
        let outcome = LiveRun::fork(model, &prefix, live, seq).and_then(|run| match plan.mode {
            Mode::Free => generate(run, &prefix, limits, drop).map(graded),
            Mode::Forced => force(run, &tokens, &logits).map(Measured::Forced),
        });
        match outcome {
            Ok(measured) => cell.measured.push(measured),
            Err(error) if is_of_the_cell(&error) => cell.failure = Some(format!("{}: {error}", item.item)),
            Err(error) => return Err(error),
        }
    }
    executed.full.push(reference);
    Ok(())
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
