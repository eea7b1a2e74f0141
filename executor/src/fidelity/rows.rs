//! From comparisons to tables, rank correlations and a prediction.

use kvlab_sim::{
    fidelity::{
        CellKey, Observations, PredictError, Predictor, calibration_rows, cross_validated, rank_agreement,
    },
    metrics::{Better, Metric},
    results::{
        Bootstrap, CALIBRATION_COLUMNS, CellRow, Estimate, FIDELITY_COLUMNS, Results, SeriesRow, cell_id,
        cells_table, series_table, table_of,
    },
    table::Value,
};

use super::{
    CellFidelity, Fidelity, FidelityPlan,
    run::{Compared, Part, estimates, is_done},
};
use crate::{
    closed_loop::{
        ExecPlan, Mode, rows,
        study::{Executed, Measured},
    },
    error::ExecutorError,
    items::ItemSet,
    model::Model,
};

/// What runs gave, by name, with the sign that makes larger better.
const OUTCOMES: [(&str, f64); 3] = [("accuracy", 1.0), ("next_token_kl", -1.0), ("top1_agreement", 1.0)];
/// Outcomes that a curve may predict: those between 0 and 1.
const PREDICTED: [&str; 2] = ["accuracy", "top1_agreement"];

/// Tables and what they say.
pub(super) fn fidelity(
    model: &Model,
    set: &ItemSet,
    plan: &FidelityPlan<'_>,
    compared: &[Compared<'_>],
    (forced, free): (&Executed<'_>, &Executed<'_>),
) -> Result<Fidelity, ExecutorError> {
    let problems = forced.items.len();
    let bootstrap = Bootstrap::by_item(forced.items.iter().map(|item| item.item.as_str()));
    let with_mode = |mode| ExecPlan { mode, ..plan.exec.clone() };
    let (source, mut forced_rows) = rows::real_rows(model, set, &with_mode(Mode::Forced), forced)?;
    let mut free_rows = Vec::new();
    if plan.with_answers {
        free_rows = rows::real_rows(model, set, &with_mode(Mode::Free), free)?.1;
    }
    let mut series = Vec::new();
    for (row, (cell, run)) in forced_rows.iter_mut().zip(compared.iter().zip(&forced.cells)) {
        if is_done(run, problems) {
            identity_rates(row, cell);
            series.extend(drift(row, cell));
        }
    }
    let mut replay_rows: Vec<CellRow> =
        forced_rows.iter().zip(compared).map(|(real, cell)| replay_row(real, cell, &bootstrap)).collect();

    let measures = Measures { compared, forced, free, problems };
    let model_id = format!("{} {}", source.model, &source.digest[..12.min(source.digest.len())]);
    let mut table = Vec::new();
    let mut chosen: Vec<(&str, &'static Metric, f64)> = Vec::new();
    for (outcome, sign) in OUTCOMES {
        let ranked = measures.ranked(outcome, sign);
        let best = ranked
            .iter()
            .filter(|(metric, _, error)| error.is_some() && metric.id != "mean_keep_ratio")
            .min_by(|a, b| a.2.unwrap_or(f64::MAX).total_cmp(&b.2.unwrap_or(f64::MAX)));
        let best = best.map(|(metric, sign, _)| (*metric, *sign));
        if let Some((metric, sign)) = best {
            chosen.push((outcome, metric, sign));
        }
        table.extend(measures.rows(outcome, sign, best.map(|(metric, _)| metric.id)));
    }
    let predictor = PREDICTED.iter().find_map(|wanted| {
        let (outcome, metric, sign) = chosen.iter().find(|(outcome, _, _)| outcome == wanted)?;
        let (_, outcome_sign) = OUTCOMES.iter().find(|(known, _)| known == outcome)?;
        let observed = measures.observed(metric, *sign, outcome, *outcome_sign)?;
        Some(Predictor::fit(&observed, (metric.id, *sign), outcome, &model_id))
    });
    let predictor = match predictor {
        Some(Ok(predictor)) => Some(predictor),
        Some(Err(PredictError::TooFew { .. })) | None => None,
        Some(Err(error)) => return Err(super::FidelityError::from(error).into()),
    };
    if let Some(predictor) = predictor.as_ref().filter(|predictor| predictor.outcome == "accuracy") {
        replay_rows.iter_mut().zip(compared).for_each(|(row, cell)| predicted(row, cell, predictor));
    }
    let mut all = replay_rows;
    all.extend(forced_rows);
    all.extend(free_rows);
    let calibration = predictor
        .as_ref()
        .map(|predictor| table_of(CALIBRATION_COLUMNS, &calibration_rows(predictor)))
        .transpose()?
        .map(|table| ("calibration".to_owned(), table));
    let results = Results {
        manifest: rows::manifest(&plan.exec, source),
        cells: cells_table(&all)?,
        series: series_table(&series)?,
        more: std::iter::once(("fidelity".to_owned(), table_of(FIDELITY_COLUMNS, &table)?))
            .chain(calibration)
            .collect(),
    };
    let cells = compared.iter().zip(&forced.cells).map(|(cell, run)| {
        let CellKey { policy, budget, seed } = key(cell);
        let identity = is_done(run, problems).then(|| cell.identity.clone());
        CellFidelity { policy, budget, seed, identity, failure: cell.failure.clone() }
    });
    Ok(Fidelity { results, cells: cells.collect(), predictor })
}

fn key(cell: &Compared<'_>) -> CellKey {
    CellKey { policy: cell.plan.label.clone(), budget: cell.plan.budget, seed: cell.plan.seed }
}

fn identity_rates(row: &mut CellRow, cell: &Compared<'_>) {
    let identity = &cell.identity;
    identity_rate(row, "reproduced_rate", identity.equal, identity.sets);
    identity_rate(row, "ulp_flipped_set_rate", identity.flipped_sets, identity.sets);
    identity_rate(row, "ulp_flipped_token_rate", identity.flipped_residents, identity.residents);
    if let Some(first) = &identity.first {
        row.text("lint", format!("not reproduced: {first}"));
    }
}

/// A count over all problems at once: which problem it came from says nothing about another, so there is no interval.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn identity_rate(row: &mut CellRow, metric: &str, num: u64, den: u64) {
    let value = (den > 0).then(|| num as f64 / den as f64);
    let estimate = value.map(|value| Estimate { value, interval: None, se: None });
    row.rate(metric, estimate, num, den);
}

fn drift(row: &CellRow, cell: &Compared<'_>) -> Vec<SeriesRow> {
    match row.get("cell") {
        Value::Text(id) => cell.drift.rows(&id).collect(),
        _ => Vec::new(),
    }
}

/// The row of the replay: the keys of the executed one, and every estimate.
fn replay_row(real: &CellRow, cell: &Compared<'_>, bootstrap: &Bootstrap) -> CellRow {
    let mut row = CellRow::default();
    let keys = kvlab_sim::results::CELL_KEYS.iter().chain(kvlab_sim::results::MORE_CELL_KEYS);
    for (name, _, _) in keys.filter(|(name, _, _)| !matches!(*name, "lint" | "log_digest" | "error")) {
        row.set(name, real.get(name));
    }
    row.text("arm", "replay");
    let id = match real.get("cell") {
        Value::Text(id) => id,
        _ => String::new(),
    };
    row.text("cell", cell_id(&serde_json::json!({ "replay of": id })));
    if let Err(error) = &cell.plan.stack {
        row.text("status", "skipped");
        row.text("error", error.to_string());
        return row;
    }
    row.text("status", "ok");
    for (at, metric) in estimates().enumerate() {
        let parts: Vec<Option<Part>> = cell.estimates.iter().map(|by_metric| by_metric[at]).collect();
        let rates: Vec<(u64, u64)> = parts
            .iter()
            .map(|part| if let Some(Part::Rate(num, den)) = part { (*num, *den) } else { (0, 0) })
            .collect();
        let den: u64 = rates.iter().map(|(_, den)| den).sum();
        if den > 0 {
            #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
            let terms: Vec<(f64, f64)> = rates.iter().map(|(n, d)| (*n as f64, *d as f64)).collect();
            row.rate(metric.id, bootstrap.ratio(&terms), rates.iter().map(|(num, _)| num).sum(), den);
            continue;
        }
        let means: Vec<Option<f64>> = parts.iter().map(|part| part.and_then(Part::value)).collect();
        if means.iter().any(Option::is_some) {
            row.mean(metric.id, bootstrap.mean(&means), means.iter().flatten().count());
        }
    }
    row
}

/// What the predictor says of a cell. A cell that it was fitted on is predicted by the curve that was fitted without its policy.
fn predicted(row: &mut CellRow, cell: &Compared<'_>, predictor: &Predictor) {
    let CellKey { policy, budget, seed } = key(cell);
    let fitted = predictor.rows.iter().find(|r| r.policy == policy && r.budget == budget && r.seed == seed);
    let prediction = match (fitted, row.get(&predictor.proxy)) {
        (Some(fitted), _) => fitted.residual.map(|residual| {
            let value = fitted.executed + residual;
            (value, (value - predictor.half_width).max(0.0), (value + predictor.half_width).min(1.0))
        }),
        (None, Value::Real(proxy)) => predictor.predict(proxy).ok().map(|p| (p.value, p.low, p.high)),
        _ => None,
    };
    if let Some((value, low, high)) = prediction {
        row.real("predicted_accuracy", value);
        row.real("predicted_accuracy_lo", low);
        row.real("predicted_accuracy_hi", high);
        row.int("predicted_accuracy_n", i64::try_from(predictor.rows.len()).unwrap_or(i64::MAX));
    }
}

/// Estimates and outcomes by cell and problem.
struct Measures<'a> {
    compared: &'a [Compared<'a>],
    forced: &'a Executed<'a>,
    free: &'a Executed<'a>,
    problems: usize,
}

impl Measures<'_> {
    /// An estimate and an outcome; nothing when no cell has both.
    fn observed(&self, metric: &Metric, sign: f64, outcome: &str, outcome_sign: f64) -> Option<Observations> {
        let at = estimates().position(|known| known.id == metric.id)?;
        let mut observed = Observations::default();
        for (index, cell) in self.compared.iter().enumerate() {
            let proxy = cell.estimates.iter().map(|by_metric| Some(by_metric[at]?.value()? * sign)).collect();
            let outcome = self.outcome(index, outcome).into_iter().map(|v| Some(v? * outcome_sign)).collect();
            observed.cells.push(key(cell));
            observed.proxy.push(proxy);
            observed.outcome.push(outcome);
        }
        let has = |values: &[Vec<Option<f64>>]| values.iter().flatten().any(Option::is_some);
        (has(&observed.proxy) && has(&observed.outcome)).then_some(observed)
    }

    /// What running a cell gave on each problem; nothing where it did not run.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    fn outcome(&self, index: usize, outcome: &str) -> Vec<Option<f64>> {
        let executed = if outcome == "accuracy" { self.free } else { self.forced };
        let cell = &executed.cells[index];
        if !is_done(cell, self.problems) {
            return vec![None; self.problems];
        }
        let of = |measured: &Measured| match (measured, outcome) {
            (Measured::Free { is_correct, .. }, "accuracy") => {
                is_correct.map(|is_correct| f64::from(u8::from(is_correct)))
            }
            (Measured::Forced(run), "next_token_kl") if !run.divergences.is_empty() => {
                Some(run.divergences.iter().sum::<f64>() / run.divergences.len() as f64)
            }
            (Measured::Forced(run), "top1_agreement") if !run.divergences.is_empty() => {
                Some(run.agreements as f64 / run.divergences.len() as f64)
            }
            _ => None,
        };
        cell.measured.iter().map(of).collect()
    }

    /// Every estimate that some cell has, with its sign and its error on policies that a fit has not seen.
    fn ranked(&self, outcome: &str, outcome_sign: f64) -> Vec<(&'static Metric, f64, Option<f64>)> {
        let of = |metric: &'static Metric| {
            let sign = sign(metric);
            let observed = self.observed(metric, sign, outcome, outcome_sign)?;
            Some((metric, sign, cross_validated(&observed).leave_policy_out))
        };
        estimates().filter_map(of).collect()
    }

    /// Rows of the table `fidelity`.
    fn rows(&self, outcome: &str, outcome_sign: f64, chosen: Option<&str>) -> Vec<Vec<Value>> {
        let mut budgets: Vec<Option<u32>> = self.compared.iter().map(|cell| cell.plan.budget).collect();
        budgets.sort_unstable();
        budgets.dedup();
        budgets.retain(Option::is_some);
        // With one budget, all of them is the same again.
        let scopes = if budgets.len() > 1 { budgets } else { Vec::new() };
        let mut rows = Vec::new();
        for (metric, sign, _) in self.ranked(outcome, outcome_sign) {
            let Some(observed) = self.observed(metric, sign, outcome, outcome_sign) else { continue };
            for scope in std::iter::once(None).chain(scopes.iter().copied()) {
                let within = observed.filtered(|cell| scope.is_none() || cell.budget == scope);
                let is_chosen = scope.is_none() && chosen == Some(metric.id);
                rows.extend(row(&within, metric, outcome, scope, is_chosen));
            }
        }
        rows
    }
}

/// 1 where a larger value promises a better outcome, else -1. Keeping more promises more.
fn sign(metric: &Metric) -> f64 {
    match metric.better {
        _ if metric.id == "mean_keep_ratio" => 1.0,
        Better::Higher => 1.0,
        Better::Lower | Better::Neither => -1.0,
    }
}

fn row(
    observed: &Observations,
    metric: &Metric,
    outcome: &str,
    budget: Option<u32>,
    is_chosen: bool,
) -> Option<Vec<Value>> {
    let ranked = rank_agreement(observed)?;
    let checked = cross_validated(observed);
    let real = |value: Option<f64>| value.map_or(Value::Absent, Value::Real);
    let count = |value: usize| Value::Int(i64::try_from(value).unwrap_or(i64::MAX));
    Some(vec![
        Value::Text(metric.id.to_owned()),
        Value::Text(outcome.to_owned()),
        budget.map_or(Value::Absent, |budget| Value::Int(i64::from(budget))),
        Value::Real(ranked.tau_b),
        real(ranked.by_problem.map(|(low, _)| low)),
        real(ranked.by_problem.map(|(_, high)| high)),
        real(ranked.by_policy.map(|(low, _)| low)),
        real(ranked.by_policy.map(|(_, high)| high)),
        count(ranked.cells),
        count(ranked.policies),
        count(ranked.problems),
        real(checked.leave_policy_out),
        real(checked.mean_alone),
        real(checked.leave_problems_out),
        Value::Bool(is_chosen),
    ])
}
