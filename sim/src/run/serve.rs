//! The serving half of a study: every arm on the same problems, in simulated time.

use super::RunError;
use super::context::Context;
use super::study::{Finished, unit};
use crate::cost::{BatchCost, Model};
use crate::observe::LogDigest;
use crate::results::{Bootstrap, CellRow, Estimate, Outcome, Section, Unit, UnitKind, cell_id};
use crate::scenario::{Arm, Claim, Measure, Scenario, ServeStudy};
use crate::serve::{self, PhaseTimes, ServeReport};
use crate::table::Value;
use crate::types::Bytes;
use rayon::prelude::*;

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

/// What is said about one published figure.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimResult {
    /// The claim.
    pub claim: Claim,
    /// The figure under the published protocol.
    pub as_published: Option<Measured>,
    /// The figure without the protocol's defects.
    pub corrected: Option<Measured>,
}

/// A figure that follows from arms, or from arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// As text, with interval and what has to be said with it.
    pub text: String,
    /// The number in the unit of its kind; absent where it cannot be had.
    pub value: Option<f64>,
    /// 95 % interval.
    pub interval: Option<(f64, f64)>,
}

impl Measured {
    fn of(estimate: Estimate, text: String) -> Self {
        Self { text, value: Some(estimate.value), interval: estimate.interval }
    }

    fn exactly(value: f64, text: String) -> Self {
        Self { text, value: Some(value), interval: None }
    }
}

/// Serves every arm of a serving study.
///
/// # Errors
/// When the scenario has none, its cost model cannot be made, or the engine breaks a rule.
pub fn serve_arms(scenario: &Scenario) -> Result<Vec<ArmResult>, RunError> {
    let Some(study) = &scenario.serve else { return Ok(Vec::new()) };
    let cost = study.cost()?;
    study.arms.par_iter().map(|arm| serve_arm(study, arm, cost.as_ref())).collect()
}

fn serve_arm(study: &ServeStudy, arm: &Arm, cost: &dyn BatchCost) -> Result<ArmResult, RunError> {
    let problems = study.decisions(arm, cost.layers().unwrap_or(1));
    let mut digest = LogDigest::new();
    let report = serve::run(&problems, &study.arrivals, &arm.serve, cost, &mut digest)?;
    Ok(ArmResult { label: arm.label.clone(), report, log_digest: digest.finish() })
}

/// The figures of every claim.
///
/// # Errors
/// As [`serve_arms`].
pub fn claims(scenario: &Scenario) -> Result<Vec<ClaimResult>, RunError> {
    let Some(study) = &scenario.serve else { return Ok(Vec::new()) };
    let arms = serve_arms(scenario)?;
    let cost = study.cost()?;
    let text = |measure: &Option<Measure>| {
        measure.as_ref().map(|measure| measured(study, &arms, cost.model(), measure))
    };
    let result = |claim: &Claim| ClaimResult {
        claim: claim.clone(),
        as_published: text(&claim.as_published),
        corrected: text(&claim.corrected),
    };
    Ok(study.claims.iter().map(result).collect())
}

fn measured(study: &ServeStudy, arms: &[ArmResult], model: Option<&Model>, measure: &Measure) -> Measured {
    let find = |label: &str| arms.iter().find(|arm| arm.label == label);
    let interval = |estimate: Estimate, digits: usize| match estimate.interval {
        Some((low, high)) if high - low > 5e-4 => format!(" [{low:.digits$}, {high:.digits$}]"),
        _ => String::new(),
    };
    let found = match measure {
        Measure::Speedup { of, over } => find(of).zip(find(over)).and_then(|(of, over)| {
            let estimate = speedup(of, over)?;
            let (fewer, all) = (generated(of), generated(over));
            let tokens = if fewer == all {
                String::new()
            } else {
                format!("; {fewer} tokens generated against {all}")
            };
            let text = format!("{:.2}×{}{tokens}", estimate.value, interval(estimate, 2));
            Some(Measured::of(estimate, text))
        }),
        Measure::PeakGib { arm } => find(arm).zip(model).and_then(|(result, model)| {
            let arm = study.arms.iter().find(|other| other.label == *arm)?;
            let held = gib(peak_bytes(result, arm, model).get() + 2 * model.params());
            Some(Measured::exactly(held, format!("{held:.1} GiB")))
        }),
        Measure::Millis { arm } => find(arm).and_then(|arm| {
            let estimate = bootstrap(arm).mean(&latencies(arm))?;
            Some(Measured::of(estimate, format!("{:.0} ms", estimate.value)))
        }),
        Measure::Share { num, den } => Some(share(*num, *den)),
    };
    found.unwrap_or_else(|| Measured { text: "-".to_owned(), value: None, interval: None })
}

#[expect(clippy::cast_precision_loss, reason = "rounded to a tenth anyway")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn peak_bytes(result: &ArmResult, arm: &Arm, model: &Model) -> Bytes {
    let tokens = result.report.peak_blocks * u64::from(arm.serve.scheduler.block_tokens);
    Bytes::new(tokens * model.kv_bytes_per_token().get())
}

/// A share with its 95 % Wilson interval.
#[expect(clippy::cast_precision_loss, reason = "counts of problems")]
fn share(num: u64, den: u64) -> Measured {
    const Z: f64 = 1.959_964;
    let (n, p) = (den as f64, num as f64 / den as f64);
    let middle = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let (low, high) = ((middle - half).max(0.0), (middle + half).min(1.0));
    let text = format!("{num}/{den} = {:.2} % [{:.2}, {:.2}]", 100.0 * p, 100.0 * low, 100.0 * high);
    Measured { text, value: Some(p), interval: Some((low, high)) }
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

/// One unit an arm.
pub(super) fn units(study: &ServeStudy) -> Result<Vec<Unit>, RunError> {
    let cost = study.cost()?;
    let cell =
        |arm: &Arm| unit(id_of(study, arm, cost.as_ref()), Section::Serve, UnitKind::Cell, arm.label.clone());
    Ok(study.arms.iter().map(cell).collect())
}

/// Content hash of an arm: the baseline is a part of it, since the row holds a speed-up over it.
fn id_of(study: &ServeStudy, arm: &Arm, cost: &dyn BatchCost) -> String {
    let baseline = study.arms.iter().find(|arm| arm.label == study.baseline);
    let params = params(study, arm, cost);
    cell_id(&serde_json::json!({ "study": "serve", "params": params, "baseline": baseline }))
}

fn params(study: &ServeStudy, arm: &Arm, cost: &dyn BatchCost) -> serde_json::Value {
    serde_json::json!({
        "arm": arm, "problems": study.problems, "arrivals": study.arrivals, "cost": cost.params(),
    })
}

/// Runs the units in `batches`. What is out of scale is a mistake of the study: it stops.
pub(super) fn run(
    context: &Context<'_>,
    study: &ServeStudy,
    batches: &[Vec<usize>],
    keep: Finished<'_>,
) -> Result<(), RunError> {
    let cost = study.cost()?;
    let baseline = study.arms.iter().find(|arm| arm.label == study.baseline);
    let baseline = baseline.map(|arm| serve_arm(study, arm, cost.as_ref())).transpose()?;
    for batch in batches {
        let wanted: Vec<&Arm> = batch.iter().filter_map(|&at| study.arms.get(at)).collect();
        let outcome = |arm: &&Arm| {
            let id = id_of(study, arm, cost.as_ref());
            let mut row = keys(context, study, arm, cost.as_ref());
            row.text("cell", id.clone());
            let result = serve_arm(study, arm, cost.as_ref())?;
            fill(&mut row, arm, &result, baseline.as_ref(), cost.as_ref());
            context.advance();
            let more = vec![("phases", phases(&id, &result))];
            Ok(Outcome { id, cell: Some(row), more, ..Outcome::default() })
        };
        keep(wanted.par_iter().map(outcome).collect::<Result<_, RunError>>()?)?;
    }
    Ok(())
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

fn keys(context: &Context<'_>, study: &ServeStudy, arm: &Arm, cost: &dyn BatchCost) -> CellRow {
    let mut row = context.keys("serve");
    row.text("source", "generated");
    row.set("synthetic", Value::Bool(true));
    row.int("sequences", 0);
    row.text("policy", arm.label.clone());
    row.text("params", params(study, arm, cost).to_string());
    row
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds stay below 2^53")]
fn fill(
    row: &mut CellRow,
    arm: &Arm,
    result: &ArmResult,
    baseline: Option<&ArmResult>,
    cost: &dyn BatchCost,
) {
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
        let millis =
            |arm: &ArmResult| arm.report.problems.iter().map(|p| p.end.get() - p.arrival.get()).sum::<u64>();
        row.rate("serve_speedup", speedup(result, baseline), millis(baseline), millis(result));
        let (fewer, all) = (generated(result), generated(baseline));
        if fewer != all {
            lint.push(format!(
                "{fewer} tokens generated, {all} by `{}`: a part of the difference is fewer tokens",
                baseline.label
            ));
        }
    }
    let verified = problems.iter().filter(|problem| problem.is_verified).count() as u64;
    let answered = (problems.len() - refused) as u64;
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
