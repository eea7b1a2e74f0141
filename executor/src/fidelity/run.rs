//! Problems × policies: the full cache's run, its replay under every policy, and every policy in the loop.

use std::sync::Arc;

use kvlab_sim::{
    fidelity::Predictor,
    metrics::{Evidence, METRICS, Metric, Scope},
    results::Results,
    run::{RunOptions, source_info, study as replay},
    scenario::{EvictionPlan, EvictionStudy, Scenario},
    table::Value,
    trace::SequenceMeta,
    types::SeqIdx,
};
use serde::{Deserialize, Serialize};

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
        kept::{self, Place},
        study::{CellRun, Executed, Measured, Tally, full_cache, graded, is_of_the_cell, prepared},
    },
    error::ExecutorError,
    items::ItemSet,
    journal::{Journal, RunName},
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
/// future) is a skipped cell and has estimates only.
///
/// # Errors
/// As [`crate::closed_loop::exec`], and a replay that cannot be made.
pub fn fidelity(
    model: &mut Model,
    set: &ItemSet,
    plan: &FidelityPlan<'_>,
    progress: &dyn Progress,
) -> Result<Fidelity, ExecutorError> {
    fidelity_kept(model, set, plan, &mut Journal::default(), progress)
}

/// As [`fidelity`]. What each run gave is kept in `journal` as it ends, and what is there already is not made again: the results are the
/// same. Recordings are not kept, only what was found by them.
///
/// # Errors
/// As [`fidelity`], and a journal of other settings, or one that cannot be read or written.
pub fn fidelity_kept(
    model: &mut Model,
    set: &ItemSet,
    plan: &FidelityPlan<'_>,
    journal: &mut Journal,
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
    let wanted = wanted(&forced);
    if journal.keeps() {
        let mode = if plan.with_answers { "with answers" } else { "forced only" };
        journal.begin(kept::settings(model, set, &plan.exec, ("fidelity", mode))?, wanted.len() as u64)?;
    }
    progress.start(&format!("comparing {}", scenario.id), Some(items as u64 * (runnable + 1)));
    let tally = Tally::of(&wanted, journal, progress);
    let weights = Arc::new(LivedWeights::of(model)?);
    let mut at_work = AtWork { model, set, plan, scenario: &scenario, weights, journal, tally, progress };
    for index in 0..items {
        at_work.item(index, &mut compared, (&mut forced, &mut free))?;
    }
    progress.finish();
    at_work.journal.complete(&wanted);
    for (cell, (forced, free)) in compared.iter_mut().zip(forced.cells.iter_mut().zip(&mut free.cells)) {
        cell.failure.clone_from(&forced.failure);
        free.failure.clone_from(&forced.failure);
        free.is_skipped = forced.is_skipped;
    }
    rows::fidelity(at_work.model, set, plan, &compared, (&forced, &free))
}

/// Keys of everything that is kept.
fn wanted(executed: &Executed<'_>) -> Vec<String> {
    let mut keys = Vec::new();
    for (index, (item, prompt)) in executed.items.iter().zip(&executed.prompts).enumerate() {
        let place = Place::of(index, item, prompt);
        keys.push(place.full().0);
        for cell in executed.cells.iter().filter(|cell| cell.plan.stack.is_ok()) {
            let (plan, study) = (cell.plan, executed.study);
            keys.push(place.estimates(plan, study).0);
            keys.extend(cell.failure.is_none().then(|| place.cell(plan, study).0));
        }
    }
    keys
}

/// What a cell gave on one problem.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CellOutcome {
    forced: ForcedRun,
    /// Its free answer, where one was asked for.
    free: Option<FreeRun>,
    identity: Identity,
    drift: Drift,
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
    journal: &'a mut Journal,
    tally: Tally,
    progress: &'a dyn Progress,
}

impl AtWork<'_> {
    fn item(
        &mut self,
        index: usize,
        compared: &mut [Compared<'_>],
        (forced, free): (&mut Executed<'_>, &mut Executed<'_>),
    ) -> Result<(), ExecutorError> {
        let (item, study) = (&forced.items[index], forced.study);
        let place = Place::of(index, item, &forced.prompts[index]);
        let full: Option<FreeRun> = self.journal.find(&place.full().0)?;
        let is_kept = |key: &(String, RunName)| self.journal.has(&key.0);
        let is_done = |(cell, run): (&Compared<'_>, &CellRun<'_>)| {
            let is_over = cell.plan.stack.is_err() || run.failure.is_some();
            let is_estimated = cell.plan.stack.is_err() || is_kept(&place.estimates(cell.plan, study));
            is_estimated && (is_over || is_kept(&place.cell(cell.plan, study)))
        };
        let reference = match full {
            Some(full) if compared.iter().zip(&forced.cells).all(is_done) => {
                self.progress.advance(1);
                self.take_kept(&place, compared, forced, free, item)?;
                full
            }
            full => self.run(index, full, compared, (forced, free))?,
        };
        let reference = graded(self.set, item, reference);
        forced.full.push(reference.clone());
        free.full.push(reference);
        Ok(())
    }

    /// An item of which everything is kept.
    fn take_kept(
        &self,
        place: &Place<'_>,
        compared: &mut [Compared<'_>],
        forced: &mut Executed<'_>,
        free: &mut Executed<'_>,
        item: &record::RecordItem,
    ) -> Result<(), ExecutorError> {
        for (at, cell) in compared.iter_mut().enumerate() {
            let estimated = self.journal.find(&place.estimates(cell.plan, forced.study).0)?;
            cell.estimates.push(estimated.unwrap_or_else(nothing_estimated));
            if cell.plan.stack.is_err() {
                continue;
            }
            self.progress.advance(1);
            if forced.cells[at].failure.is_some() {
                continue;
            }
            if let Some(outcome) = self.journal.find(&place.cell(cell.plan, forced.study).0)? {
                self.take(outcome, cell, (&mut forced.cells[at], &mut free.cells[at]), item);
            }
        }
        Ok(())
    }

    /// Adds what a cell gave on one item.
    fn take(
        &self,
        outcome: CellOutcome,
        cell: &mut Compared<'_>,
        (forced, free): (&mut CellRun<'_>, &mut CellRun<'_>),
        item: &record::RecordItem,
    ) {
        cell.drift.append(&outcome.drift);
        cell.identity.add(outcome.identity);
        forced.measured.push(Measured::Forced(outcome.forced));
        free.measured.extend(outcome.free.map(|run| graded(self.set, item, run)));
    }

    /// Runs what is missing on one item; `full` is the full cache's run where it is kept, and is given back.
    fn run(
        &mut self,
        index: usize,
        full: Option<FreeRun>,
        compared: &mut [Compared<'_>],
        (forced, free): (&mut Executed<'_>, &mut Executed<'_>),
    ) -> Result<FreeRun, ExecutorError> {
        let (item, study) = (&forced.items[index], forced.study);
        let prompt = &forced.prompts[index];
        let place = Place::of(index, item, prompt);
        let seq = SeqIdx::new(u32::try_from(index).unwrap_or(u32::MAX));
        let stacks = compared.iter().filter_map(|cell| cell.plan.stack.as_ref().ok());
        let prefix = Prefix::recorded(self.model, prompt, self.plan.exec.chunk, stacks)?;
        let limits = Limits { max_new_tokens: self.plan.exec.max_new_tokens, stops: &item.stops };

        let stack = full_cache()?;
        let mut logits = Vec::new();
        let mut run = LiveRun::fork(self.model, &prefix, LiveCell::new(&stack, 0), seq)?.recording();
        let made = crate::closed_loop::decode(&mut run, &prefix, limits, |row| logits.push(row))?;
        let RecordedRun { footprint, steps, .. } = run.finish_recorded();
        let reference = FreeRun { footprint, ..made };
        match &full {
            Some(full) => self.journal.check_repeats(&item.item, full.tokens == reference.tokens)?,
            None => {
                let (key, name) = place.full();
                self.journal.keep(&key, name, &reference)?;
                self.tally.count(self.progress);
            }
        }
        let recorded = self.lived(&item.item, seq, &prefix, &steps)?;
        self.progress.advance(1);

        self.estimate(&recorded, compared, study, &place)?;
        for (at, cell) in compared.iter_mut().enumerate() {
            let Ok(stack) = &cell.plan.stack else { continue };
            self.progress.advance(1);
            if forced.cells[at].failure.is_some() {
                continue;
            }
            let (key, name) = place.cell(cell.plan, study);
            let outcome = match self.journal.find(&key)? {
                Some(outcome) => Ok(outcome),
                None => {
                    let live = LiveCell {
                        stack,
                        seed: cell.plan.seed.unwrap_or(0),
                        bytes_per_scalar: study.bytes_per_scalar,
                    };
                    let on = OnItem { item: &item.item, seq, prefix: &prefix, limits };
                    let made = self.one(live, &on, (&recorded, &reference, &logits));
                    if let Ok(outcome) = &made {
                        self.journal.keep(&key, name, outcome)?;
                        self.tally.count(self.progress);
                    }
                    made
                }
            };
            match outcome {
                Ok(outcome) => {
                    self.take(outcome, cell, (&mut forced.cells[at], &mut free.cells[at]), item);
                }
                Err(error) if is_of_the_cell(&error) => {
                    forced.cells[at].stop(&item.item, &error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(reference)
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
    fn estimate(
        &mut self,
        recorded: &Lived,
        compared: &mut [Compared<'_>],
        study: &EvictionStudy,
        place: &Place<'_>,
    ) -> Result<(), ExecutorError> {
        let options = RunOptions { threads: 0, command: String::new(), progress: &|_, _| {} };
        let info = source_info(recorded, "", "");
        let found = replay(self.scenario, recorded, info, &options).map_err(FidelityError::from)?;
        for (row, cell) in compared.iter_mut().enumerate() {
            let is_ok = found.cells.value("status", row) == Value::Text("ok".to_owned());
            let of = |metric: &Metric| part(&found, metric, row).filter(|_| is_ok);
            let estimated: Vec<Option<Part>> = estimates().map(of).collect();
            let (key, name) = place.estimates(cell.plan, study);
            if cell.plan.stack.is_ok() && !self.journal.has(&key) {
                self.journal.keep(&key, name, &estimated)?;
                self.tally.count(self.progress);
            }
            cell.estimates.push(estimated);
        }
        Ok(())
    }

    /// One cell in the loop on the full cache's tokens, and the replay over its own run; then its answer, where one is asked for.
    fn one(
        &mut self,
        live: LiveCell<'_>,
        on: &OnItem<'_>,
        (recorded, full, logits): (&Lived, &FreeRun, &[Vec<f32>]),
    ) -> Result<CellOutcome, ExecutorError> {
        let mut run = LiveRun::fork(self.model, on.prefix, live, on.seq)?.recording();
        let (divergences, agreements) = crate::closed_loop::feed(&mut run, &full.tokens, logits)?;
        let RecordedRun { footprint, steps, kept } = run.finish_recorded();
        let own = self.lived(on.item, on.seq, on.prefix, &steps)?;
        let mut drift = Drift::default();
        drift.add(recorded.hidden(), own.hidden(), on.prefix.len(), &footprint);
        let identity = identity::compare(&own, live.stack, live.seed, (&footprint, &kept))??;
        let free = match self.plan.with_answers {
            true if live.stack.is_full_cache() => Some(full.clone()),
            true => {
                let run = LiveRun::fork(self.model, on.prefix, live, on.seq)?;
                Some(crate::closed_loop::generate(run, on.prefix, on.limits, drop)?)
            }
            false => None,
        };
        Ok(CellOutcome { forced: ForcedRun { divergences, agreements, footprint }, free, identity, drift })
    }
}

/// The item that is run.
struct OnItem<'a> {
    item: &'a str,
    seq: SeqIdx,
    prefix: &'a Prefix,
    limits: Limits<'a>,
}

/// What is estimated of a cell that cannot work.
fn nothing_estimated() -> Vec<Option<Part>> {
    estimates().map(|_| None).collect()
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
