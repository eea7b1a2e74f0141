//! Problems × policies: the full cache's run, its replay under every policy, and every policy in the loop.

use std::sync::Arc;

use kvlab_sim::{
    fidelity::Predictor,
    metrics::{Evidence, METRICS, Metric, Scope},
    results::Results,
    run::{RunOptions, source_info, study},
    scenario::{EvictionPlan, Scenario},
    table::Value,
    trace::SequenceMeta,
    types::SeqIdx,
};

use super::{
    FidelityError,
    drift::Drift,
    identity::{self, Identity},
    lived::{Lived, LivedWeights},
    rows,
};
use crate::{
    closed_loop::{
        ExecPlan, ForcedRun, FreeRun, Limits, LiveCell, LivePass, LiveRun, Prefix, RecordedRun,
        study::{CellRun, Executed, Measured, full_cache, is_of_the_cell, prepared},
    },
    error::ExecutorError,
    items::ItemSet,
    model::Model,
    progress::Progress,
    record,
};

/// How replay and run are compared.
#[derive(Debug, Clone)]
pub struct FidelityPlan<'a> {
    /// The scenario and how it is run; the mode does not matter.
    pub exec: ExecPlan<'a>,
    /// Whether every policy also answers freely, for accuracy: as many runs again.
    pub with_answers: bool,
}

/// One cell.
#[derive(Debug, Clone)]
pub struct CellFidelity {
    /// Label of the policy.
    pub policy: String,
    /// C.
    pub budget: Option<u32>,
    /// The seed.
    pub seed: Option<u64>,
    /// How many decisions the replay reproduces; nothing where the policy did not run.
    pub identity: Option<Identity>,
    /// Why it did not.
    pub failure: Option<String>,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Fidelity {
    /// Tables: `cells` has a row of `arm = replay` and rows of `arm = real` for each cell, `fidelity` how well each proxy ranks.
    pub results: Results,
    /// The cells, in plan order.
    pub cells: Vec<CellFidelity>,
    /// The curve from the best proxy to accuracy, where policies answered; else to the agreement of next tokens.
    pub predictor: Option<Predictor>,
}

/// What the replay of one cell said about each problem, and what its runs gave.
#[derive(Debug)]
pub(super) struct Compared<'p> {
    pub(super) plan: &'p EvictionPlan,
    /// `[problem][estimate]`, in the order of [`estimates`].
    pub(super) estimates: Vec<Vec<Option<Part>>>,
    pub(super) identity: Identity,
    pub(super) drift: Drift,
    /// Why it has no runs.
    pub(super) failure: Option<String>,
}

/// A value of one problem: a mean, or a numerator and denominator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Part {
    Mean(f64),
    Rate(u64, u64),
}

impl Part {
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub(super) fn value(self) -> Option<f64> {
        match self {
            Self::Mean(value) => Some(value),
            Self::Rate(num, den) => (den > 0).then(|| num as f64 / den as f64),
        }
    }
}

/// The metrics of a replay that may say something about what a policy loses: every proxy, and the share of tokens that is kept, which
/// any of them should beat.
pub(super) fn estimates() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().filter(|metric| {
        let is_scalar = matches!(metric.scope, Scope::CellMean | Scope::CellRate);
        is_scalar && (metric.evidence == Evidence::Proxy || metric.id == "mean_keep_ratio")
    })
}

/// Runs and replays every eviction cell of the scenario on every item of `set`.
///
/// Each item's prompt is prefilled once and its full-cache run is recorded in memory; every cell is replayed over it, then runs
/// in the loop on the same tokens, and its own run is recorded and replayed. A policy that cannot run live (one that looks into the
/// future) is a failed cell and has estimates only.
///
/// # Errors
/// As [`crate::closed_loop::exec`], and a replay that cannot be made.
pub fn fidelity(
    model: &mut Model,
    set: &ItemSet,
    plan: &FidelityPlan<'_>,
    progress: &dyn Progress,
) -> Result<Fidelity, ExecutorError> {
    let scenario =
        Scenario { exit: None, pool: None, serve: None, trees: None, ..plan.exec.scenario.clone() };
    let plans = scenario.plan(model.shape()?.vocab).eviction;
    let mut forced = prepared(model, set, &plan.exec, &plans)?;
    let mut free = prepared(model, set, &plan.exec, &plans)?;
    let mut compared: Vec<Compared<'_>> = plans.iter().map(Compared::of).collect();
    let runnable = compared.iter().filter(|cell| cell.plan.stack.is_ok()).count() as u64;
    let items = forced.items.len();
    progress.start(&format!("comparing {}", scenario.id), Some(items as u64 * (runnable + 1)));
    let weights = Arc::new(LivedWeights::of(model)?);
    let mut at_work = AtWork { model, set, plan, scenario: &scenario, weights, progress };
    for index in 0..items {
        at_work.item(index, &mut compared, (&mut forced, &mut free))?;
    }
    progress.finish();
    for (cell, (forced, free)) in compared.iter_mut().zip(forced.cells.iter_mut().zip(&mut free.cells)) {
        cell.failure.clone_from(&forced.failure);
        free.failure.clone_from(&forced.failure);
    }
    rows::fidelity(at_work.model, set, plan, &compared, (&forced, &free))
}

impl<'p> Compared<'p> {
    fn of(plan: &'p EvictionPlan) -> Self {
        let failure = plan.stack.as_ref().err().map(ToString::to_string);
        Self { plan, estimates: Vec::new(), identity: Identity::default(), drift: Drift::default(), failure }
    }
}

/// What the work on every item needs.
struct AtWork<'a> {
    model: &'a mut Model,
    set: &'a ItemSet,
    plan: &'a FidelityPlan<'a>,
    scenario: &'a Scenario,
    weights: Arc<LivedWeights>,
    progress: &'a dyn Progress,
}

impl AtWork<'_> {
    fn item(
        &mut self,
        index: usize,
        compared: &mut [Compared<'_>],
        (forced, free): (&mut Executed<'_>, &mut Executed<'_>),
    ) -> Result<(), ExecutorError> {
        let item = &forced.items[index];
        let prompt = &forced.prompts[index];
        let seq = SeqIdx::new(u32::try_from(index).unwrap_or(u32::MAX));
        let stacks = compared.iter().filter_map(|cell| cell.plan.stack.as_ref().ok());
        let prefix = Prefix::recorded(self.model, prompt, self.plan.exec.chunk, stacks)?;
        let limits = Limits { max_new_tokens: self.plan.exec.max_new_tokens, stops: &item.stops };

        let full = full_cache()?;
        let mut logits = Vec::new();
        let mut run = LiveRun::fork(self.model, &prefix, LiveCell::new(&full, 0), seq)?.recording();
        let made = crate::closed_loop::decode(&mut run, &prefix, limits, |row| logits.push(row))?;
        let RecordedRun { footprint, steps, .. } = run.finish_recorded();
        let tokens = made.tokens.clone();
        let reference = self.graded(FreeRun { footprint, ..made }, item);
        let recorded = self.lived(&item.item, seq, &prefix, &steps)?;
        self.progress.advance(1);

        self.estimate(&recorded, compared)?;
        for (at, cell) in compared.iter_mut().enumerate() {
            let Ok(stack) = &cell.plan.stack else { continue };
            self.progress.advance(1);
            if forced.cells[at].failure.is_some() {
                continue;
            }
            let live = LiveCell {
                stack,
                seed: cell.plan.seed.unwrap_or(0),
                bytes_per_scalar: forced.study.bytes_per_scalar,
            };
            let outcome = self.one(cell, live, seq, &prefix, (&recorded, &tokens, &logits), &item.item);
            let outcome = outcome.and_then(|forced| {
                let free = match self.plan.with_answers {
                    true if stack.is_full_cache() => Some(reference.clone()),
                    true => {
                        let run = LiveRun::fork(self.model, &prefix, live, seq)?;
                        let answer = crate::closed_loop::generate(run, &prefix, limits, drop)?;
                        Some(self.graded(answer, item))
                    }
                    false => None,
                };
                Ok((forced, free))
            });
            match outcome {
                Ok((run, answer)) => {
                    forced.cells[at].measured.push(Measured::Forced(run));
                    free.cells[at].measured.extend(answer);
                }
                Err(error) if is_of_the_cell(&error) => {
                    forced.cells[at].failure = Some(format!("{}: {error}", item.item));
                }
                Err(error) => return Err(error),
            }
        }
        forced.full.push(reference.clone());
        free.full.push(reference);
        Ok(())
    }

    fn graded(&self, run: FreeRun, item: &record::RecordItem) -> Measured {
        let is_correct = record::graded(item, Some(self.set.grader), run.text.as_deref()).correct;
        Measured::Free { run, is_correct }
    }

    fn lived(
        &self,
        item: &str,
        seq: SeqIdx,
        prefix: &Prefix,
        steps: &[LivePass],
    ) -> Result<Lived, ExecutorError> {
        let count = u32::try_from(steps.len()).unwrap_or(u32::MAX);
        let len = prefix.len() + count;
        let meta = SequenceMeta { seq, item: item.to_owned(), prompt_len: prefix.len(), len };
        Lived::of(&self.weights, (&self.set.name, ""), meta, prefix.passes(), steps)
    }

    /// The open-loop replay of every cell over the full cache's run.
    fn estimate(&self, recorded: &Lived, compared: &mut [Compared<'_>]) -> Result<(), ExecutorError> {
        let options = RunOptions { threads: 0, command: String::new(), progress: &|_, _| {} };
        let info = source_info(recorded, "", "");
        let found = study(self.scenario, recorded, info, &options).map_err(FidelityError::from)?;
        for (row, cell) in compared.iter_mut().enumerate() {
            let is_ok = found.cells.value("status", row) == Value::Text("ok".to_owned());
            let of = |metric: &Metric| part(&found, metric, row).filter(|_| is_ok);
            cell.estimates.push(estimates().map(of).collect());
        }
        Ok(())
    }

    /// One cell in the loop on the full cache's tokens, and the replay over its own run.
    fn one(
        &mut self,
        cell: &mut Compared<'_>,
        live: LiveCell<'_>,
        seq: SeqIdx,
        prefix: &Prefix,
        (recorded, tokens, logits): (&Lived, &[u32], &[Vec<f32>]),
        item: &str,
    ) -> Result<ForcedRun, ExecutorError> {
        let mut run = LiveRun::fork(self.model, prefix, live, seq)?.recording();
        let (divergences, agreements) = crate::closed_loop::feed(&mut run, tokens, logits)?;
        let RecordedRun { footprint, steps, kept } = run.finish_recorded();
        let own = self.lived(item, seq, prefix, &steps)?;
        cell.drift.add(recorded.hidden(), own.hidden(), prefix.len(), &footprint);
        cell.identity.add(identity::compare(&own, live.stack, live.seed, (&footprint, &kept))??);
        Ok(ForcedRun { divergences, agreements, footprint })
    }
}

/// A metric of a row that covers one problem.
fn part(results: &Results, metric: &Metric, row: usize) -> Option<Part> {
    let cells = &results.cells;
    let count = |suffix: &str| match cells.value(&format!("{}{suffix}", metric.id), row) {
        Value::Int(count) => u64::try_from(count).ok(),
        _ => None,
    };
    if metric.scope == Scope::CellRate {
        return Some(Part::Rate(count("_num")?, count("_den")?));
    }
    match cells.value(metric.id, row) {
        Value::Real(value) => Some(Part::Mean(value)),
        _ => None,
    }
}

/// What the tables say of a cell whose runs stopped.
pub(super) fn is_done(cell: &CellRun<'_>, problems: usize) -> bool {
    cell.failure.is_none() && cell.measured.len() == problems
}
