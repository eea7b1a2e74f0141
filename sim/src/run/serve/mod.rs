//! The serving half of a study: every arm on the same problems, in simulated time.

mod claims;
mod plan;
mod recorded;

pub use claims::{ClaimResult, Measured, claims};

use super::RunError;
use super::context::Context;
use super::eviction::unfinished;
use super::lint::Found;
use super::study::{Finished, unit};
use super::trees::{tree_keys, tree_problem};
use crate::cost::{BatchCost, Model};
use crate::engine::Observer;
use crate::observe::LogDigest;
use crate::results::{Bootstrap, CellRow, Estimate, Outcome, Section, Unit, UnitKind};
use crate::scenario::{Arm, Scenario, ServeStudy};
use crate::serve::{self, PhaseTimes, ProblemDecisions, ServeReport};
use crate::table::Value;
use crate::trace::TraceSource;
use crate::types::Bytes;
use plan::{ArmPlan, Plans, Problems};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What one arm gave.
#[derive(Clone, Debug)]
pub struct ArmResult {
    /// Its label.
    pub label: String,
    /// What happened.
    pub report: ServeReport,
    /// Digest of the log, first 16 hex digits.
    pub log_digest: String,
}

/// Serves every arm of a serving study over generated problems; nothing for one over recorded ones, which takes a trace.
///
/// # Errors
/// When its cost model cannot be made, or the engine breaks a rule.
pub fn serve_arms(scenario: &Scenario) -> Result<Vec<ArmResult>, RunError> {
    let Some(study) = &scenario.serve else { return Ok(Vec::new()) };
    let Some(sizes) = study.sizes() else { return Ok(Vec::new()) };
    let cost = study.cost()?;
    let serve = |arm: &Arm| {
        let problems = sizes.decisions(arm, cost.layers().unwrap_or(1));
        serve_problems(study, arm, &problems, cost.as_ref())
    };
    study.arms.par_iter().map(serve).collect()
}

fn serve_problems(
    study: &ServeStudy,
    arm: &Arm,
    problems: &[ProblemDecisions],
    cost: &dyn BatchCost,
) -> Result<ArmResult, RunError> {
    let mut digest = LogDigest::new();
    let report = serve::run(problems, &study.arrivals, &arm.serve, cost, &mut digest)?;
    Ok(ArmResult { label: arm.label.clone(), report, log_digest: digest.finish() })
}

fn peak_bytes(result: &ArmResult, arm: &Arm, model: &Model) -> Bytes {
    let tokens = result.report.peak_blocks * u64::from(arm.serve.scheduler.block_tokens);
    Bytes::new(tokens * model.kv_bytes_per_token().get())
}

fn generated(arm: &ArmResult) -> u64 {
    arm.report.problems.iter().map(|problem| problem.generated_tokens).sum()
}

/// Problems that were answered, by their ids.
fn bootstrap(arm: &ArmResult) -> Bootstrap {
    Bootstrap::by_item(arm.report.problems.iter().map(|problem| problem.item.as_str()))
}

/// Milliseconds from arrival to answer, `[problem]`; nothing for a refused one.
#[expect(clippy::cast_precision_loss, reason = "a rounding in the sixteenth digit")]
fn latencies(arm: &ArmResult) -> Vec<Option<f64>> {
    let millis = |problem: &serve::ProblemOutcome| {
        (!problem.is_refused).then(|| (problem.end.get() - problem.arrival.get()) as f64 / 1e6)
    };
    arm.report.problems.iter().map(millis).collect()
}

/// Mean latency of `over` over that of `of`, resampled in pairs by problem; problems that one of them refused are left out.
fn speedup(of: &ArmResult, over: &ArmResult) -> Option<Estimate> {
    let pairs: Vec<(f64, f64)> = latencies(over)
        .into_iter()
        .zip(latencies(of))
        .map(|(over, of)| over.zip(of).unwrap_or((0.0, 0.0)))
        .collect();
    bootstrap(of).ratio(&pairs)
}

/// Serves the arm called `label` (the first one where none is named) and hands every record of the engine to `observer`; the arm's label and seed in
/// words. Where a stack draws, the first seed is taken.
///
/// # Errors
/// When the scenario serves nothing, has no such arm, or the recording does not hold what its stack looks at; as [`serve_arms`] otherwise.
pub fn serve_timeline(
    scenario: &Scenario,
    source: &dyn TraceSource,
    label: Option<&str>,
    observer: &mut dyn Observer,
) -> Result<String, RunError> {
    let arms = || scenario.serve.iter().flat_map(|study| &study.arms).map(|arm| arm.label.clone());
    let missing = || RunError::NoArm { label: label.unwrap_or("-").to_owned(), known: arms().collect() };
    let study = scenario.serve.as_ref().ok_or_else(missing)?;
    let context = Context::of(scenario, source)?;
    let study = study.timed(context.shape.layers, || source.times().map_err(RunError::from))?;
    let study = study.as_ref();
    let plans = Plans::of(&context, study, &scenario.seeds)?;
    let found = plans.arms.iter().find(|plan| label.is_none_or(|label| plan.arm.label == label));
    let plan = found.ok_or_else(missing)?;
    let served = plans.work(plan, &Problems::of(&context, study)?);
    let (work, _) = served.map_err(|reason| RunError::Unserved { label: plan.label(), reason })?;
    serve::run(&work, &study.arrivals, &plan.arm.serve, plans.cost.as_ref(), observer)?;
    Ok(plan.label())
}

/// One unit an arm, times the seeds where its stack draws.
pub(super) fn units(context: &Context<'_>, study: &ServeStudy, seeds: &[u64]) -> Result<Vec<Unit>, RunError> {
    let plans = Plans::of(context, study, seeds)?;
    let cell =
        |plan: &ArmPlan<'_>| unit(plans.id(context, plan), Section::Serve, UnitKind::Cell, plan.label());
    Ok(plans.arms.iter().map(cell).collect())
}

/// What is to be said about the thresholds of the arms before anything runs, `[arm]`; nothing where problems are generated.
pub(super) fn found(
    context: &Context<'_>,
    study: &ServeStudy,
    seeds: &[u64],
) -> Result<Vec<Found>, RunError> {
    Ok(Plans::of(context, study, seeds)?.found(&Problems::of(context, study)?))
}

/// Runs the units in `batches`. What is out of scale is a mistake of the study: it stops.
pub(super) fn run(
    context: &Context<'_>,
    study: &ServeStudy,
    seeds: &[u64],
    batches: &[Vec<usize>],
    keep: Finished<'_>,
) -> Result<(), RunError> {
    let plans = Plans::of(context, study, seeds)?;
    let problems = Problems::of(context, study)?;
    // One that cannot be decided about is a row with the reason, and the others have no speed-up over it.
    let served = |at: usize| {
        let plan = &plans.arms[at];
        plans.work(plan, &problems).ok().map(|(work, _)| plans.serve(plan, &work)).transpose()
    };
    let baselines: BTreeSet<usize> = batches
        .iter()
        .flatten()
        .filter_map(|&at| plans.arms.get(at))
        .map(|plan| plans.baseline_of(plan))
        .collect();
    let over = Over {
        baseline: baselines.into_iter().map(|at| Ok((at, served(at)?))).collect::<Result<_, RunError>>()?,
        against: plans.against.iter().map(|&at| served(at)).collect::<Result<_, RunError>>()?,
    };
    let found = plans.found(&problems);
    for batch in batches {
        let wanted: Vec<(&ArmPlan<'_>, Option<&Found>)> =
            batch.iter().filter_map(|&at| Some((plans.arms.get(at)?, found.get(at)))).collect();
        let outcome = |&(plan, found): &(&ArmPlan<'_>, Option<&Found>)| {
            let mut outcome = cell(context, &plans, plan, &problems, &over)?;
            if let (Some(row), Some(found)) = (&mut outcome.cell, found) {
                found.note(row);
            }
            context.advance();
            Ok(outcome)
        };
        keep(wanted.par_iter().map(outcome).collect::<Result<_, RunError>>()?)?;
    }
    Ok(())
}

fn cell(
    context: &Context<'_>,
    plans: &Plans<'_>,
    plan: &ArmPlan<'_>,
    problems: &Problems<'_>,
    over: &Over,
) -> Result<Outcome, RunError> {
    let id = plans.id(context, plan);
    let mut row = keys(context, plans, plan);
    row.text("cell", id.clone());
    let (work, decided) = match plans.work(plan, problems) {
        Ok(work) => work,
        Err(reason) => return Ok(Outcome { id, ..unfinished(row, "skipped", reason) }),
    };
    let result = plans.serve(plan, &work)?;
    let baseline = over.baseline.get(&plans.baseline_of(plan)).and_then(Option::as_ref);
    fill(&mut row, plan, &result, baseline, plans.cost.as_ref());
    let mut more = vec![("phases", phases(&id, &result))];
    if !over.against.is_empty() {
        let others = baseline.into_iter().chain(over.against.iter().flatten());
        more.push(("speedups", others.map(|other| speedup_row(&id, &result, other)).collect()));
    }
    // A problem that was refused gives no answer, whatever was decided about it.
    let is_whole = result.report.problems.iter().all(|problem| !problem.is_refused);
    if let (true, Problems::Recorded(recorded), Some(decisions)) = (is_whole, problems, decided) {
        recorded.measures.fill(&mut row, &decisions);
        let rows = decisions.iter().zip(&recorded.trees).map(|((decision, full), facts)| {
            tree_problem(&id, (facts.index, &facts.problem.item), decision, full, recorded.model.layers)
        });
        more.push(("problems", rows.collect()));
    }
    Ok(Outcome { id, cell: Some(row), more, ..Outcome::default() })
}

/// The arms that speed-ups are over; nothing for one that the recording cannot decide about.
struct Over {
    /// By place; several where the baseline draws.
    baseline: BTreeMap<usize, Option<ArmResult>>,
    against: Vec<Option<ArmResult>>,
}

/// A row of `speedups`.
fn speedup_row(cell: &str, result: &ArmResult, over: &ArmResult) -> Vec<Value> {
    let int = |count: u64| i64::try_from(count).map_or(Value::Absent, Value::Int);
    let real = |value: Option<f64>| value.map_or(Value::Absent, Value::Real);
    let (estimate, common) = (speedup(result, over), Common::of(result, over));
    let interval = estimate.and_then(|estimate| estimate.interval);
    vec![
        Value::Text(cell.to_owned()),
        Value::Text(over.label.clone()),
        real(estimate.map(|estimate| estimate.value)),
        real(interval.map(|(low, _)| low)),
        real(interval.map(|(_, high)| high)),
        int(common.nanos.1),
        int(common.nanos.0),
        int(common.generated.1),
        int(common.generated.0),
    ]
}

/// What two arms took for the problems that both answered.
#[derive(Clone, Copy, Default)]
struct Common {
    /// From arrival to answer, of the one and of the other.
    nanos: (u64, u64),
    /// Tokens generated, likewise.
    generated: (u64, u64),
}

impl Common {
    fn of(arm: &ArmResult, other: &ArmResult) -> Self {
        let pairs = arm.report.problems.iter().zip(&other.report.problems);
        pairs.filter(|(a, b)| !a.is_refused && !b.is_refused).fold(Self::default(), |sum, (a, b)| {
            let nanos = |problem: &serve::ProblemOutcome| problem.end.get() - problem.arrival.get();
            Self {
                nanos: (sum.nanos.0 + nanos(a), sum.nanos.1 + nanos(b)),
                generated: (sum.generated.0 + a.generated_tokens, sum.generated.1 + b.generated_tokens),
            }
        })
    }
}

/// Rows of `phases`: the problems that were answered, in their order.
#[expect(clippy::cast_precision_loss, reason = "a rounding in the sixteenth digit")]
fn phases(cell: &str, result: &ArmResult) -> Vec<Vec<Value>> {
    let row = |problem: &serve::ProblemOutcome| {
        let PhaseTimes { waiting, gate, prefill, decode, verify } = problem.phases;
        let mut row = vec![Value::Text(cell.to_owned()), Value::Text(problem.item.clone())];
        row.extend([waiting, gate, prefill, decode, verify].map(|time| Value::Real(time.get() as f64 / 1e6)));
        row
    };
    result.report.problems.iter().filter(|problem| !problem.is_refused).map(row).collect()
}

fn keys(context: &Context<'_>, plans: &Plans<'_>, plan: &ArmPlan<'_>) -> CellRow {
    let mut row = context.keys("serve");
    row.int("sequences", 0);
    row.text("policy", plan.arm.label.clone());
    row.text("params", plan.params(plans.study, plans.cost.as_ref()).to_string());
    if let Some(stack) = &plan.stack {
        context.tell_drawn(&mut row);
        row.int("problems", i64::try_from(context.problems.len()).unwrap_or(i64::MAX));
        let seed = plan.seed.and_then(|seed| i64::try_from(seed).ok());
        row.set("seed", seed.map_or(Value::Absent, Value::Int));
        tree_keys(&mut row, stack);
    } else {
        row.text("source", "generated");
        row.set("synthetic", Value::Bool(true));
    }
    row
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds stay below 2^53")]
fn fill(
    row: &mut CellRow,
    plan: &ArmPlan<'_>,
    result: &ArmResult,
    baseline: Option<&ArmResult>,
    cost: &dyn BatchCost,
) {
    let (arm, is_recorded) = (plan.arm, plan.stack.is_some());
    row.text("status", "ok");
    row.text("log_digest", result.log_digest.clone());
    let report = &result.report;
    let problems = &report.problems;
    let sum = |of: fn(&serve::ProblemOutcome) -> u64| problems.iter().map(of).sum::<u64>();
    let latencies = latencies(result);
    row.mean("serve_latency_ms", bootstrap(result).mean(&latencies), latencies.iter().flatten().count());
    let mut lint = Vec::new();
    let refused = problems.iter().filter(|problem| problem.is_refused).count();
    if refused > 0 {
        let capacity = arm.serve.scheduler.capacity_blocks.unwrap_or(u32::MAX);
        let all = problems.len();
        lint.push(format!(
            "{refused} of {all} problems refused: a branch needs more than the {capacity} blocks there are"
        ));
        if refused == all {
            row.text("status", "failed");
            row.text("error", "no problem fits into the blocks");
        }
    }
    if let Some(baseline) = baseline {
        let Common { nanos, generated: (fewer, all) } = Common::of(result, baseline);
        row.rate("serve_speedup", speedup(result, baseline), nanos.1, nanos.0);
        if fewer != all {
            lint.push(format!(
                "{fewer} tokens generated, {all} by `{}`: a part of the difference is fewer tokens",
                baseline.label
            ));
        }
    }
    let verified = problems.iter().filter(|problem| problem.is_verified).count() as u64;
    let answered = (problems.len() - refused) as u64;
    if arm.serve.eviction.is_some() && is_recorded {
        lint.push(
            "evictions cost time and blocks here, answers are those of the recording, whose cache was whole"
                .to_owned(),
        );
    }
    if !lint.is_empty() {
        row.text("lint", lint.join("; "));
    }
    let rate = (answered > 0).then(|| Estimate {
        value: verified as f64 / answered as f64,
        interval: None,
        se: None,
    });
    row.rate("serve_verify_rate", rate, verified, answered);
    row.real("serve_tokens_per_second", generated(result) as f64 / (report.end.get().max(1) as f64 * 1e-9));
    row.count("serve_generated_tokens", generated(result));
    row.count("serve_computed_tokens", sum(|problem| problem.computed_tokens));
    row.count("serve_prefill_tokens", sum(|problem| problem.prefill_tokens));
    row.count("serve_gate_token_layers", sum(|problem| problem.gate_token_layers));
    row.count("serve_verify_token_layers", sum(|problem| problem.verify_token_layers));
    row.count("serve_recomputed_tokens", sum(|problem| problem.recomputed_tokens));
    row.count("serve_reused_tokens", sum(|problem| problem.reused_tokens));
    row.count("serve_refused", refused as u64);
    row.count("serve_preemptions", report.preemptions);
    row.count("serve_peak_blocks", report.peak_blocks);
    row.count("serve_copied_blocks", report.copied_blocks);
    if let Some(model) = cost.model() {
        row.count("serve_peak_kv_bytes", peak_bytes(result, arm, model).get());
    }
}
