//! The exit half of a study: every pair of thresholds over the recorded lens facts.

use super::RunError;
use super::lint::{self, Observed};
use super::study::Context;
use crate::policy::exit::entropy::{Entropy, Lens};
use crate::replay::{ExitOutcome, replay_exit};
use crate::results::{CellRow, SeriesRow, cell_id, sha256_hex};
use crate::scenario::{ExitPlan, ExitStudy};
use crate::trace::LensRow;
use rayon::prelude::*;

/// Rows and series of the exit cells. `lens` has the decode rows of each sequence.
pub(super) fn run(
    context: &Context<'_>,
    study: &ExitStudy,
    plans: &[ExitPlan],
    lens: &[Vec<LensRow>],
) -> Result<(Vec<CellRow>, Vec<SeriesRow>), RunError> {
    let layers = context.shape.layers;
    let all: Vec<LensRow> = lens.iter().flatten().copied().collect();
    let observed: Vec<(Lens, Option<Observed>)> = study
        .lenses
        .iter()
        .map(|&which| (which, Observed::of(&all, layers, study.min_layer, which, context.shape.vocab)))
        .collect();
    let cells: Vec<(CellRow, Vec<SeriesRow>)> = plans
        .par_iter()
        .map(|plan| {
            let seen = observed.iter().find(|(which, _)| *which == plan.lens).and_then(|(_, seen)| *seen);
            cell(context, plan, lens, seen)
        })
        .collect();
    let (rows, series): (Vec<_>, Vec<_>) = cells.into_iter().unzip();
    Ok((rows, series.into_iter().flatten().collect()))
}

fn cell(
    context: &Context<'_>,
    plan: &ExitPlan,
    lens: &[Vec<LensRow>],
    observed: Option<Observed>,
) -> (CellRow, Vec<SeriesRow>) {
    let mut row = context.keys("exit");
    let params = serde_json::to_value(plan.params).unwrap_or_default();
    let id = cell_id(&serde_json::json!({
        "source": context.digest,
        "sequences": context.sequences.len(),
        "study": "exit",
        "params": params,
        "unit": plan.unit.word(),
    }));
    row.text("cell", id.clone());
    row.text("policy", "entropy");
    row.text("params", params.to_string());
    row.text("lens", plan.lens.word());
    row.real("theta", plan.theta);
    row.real("epsilon", plan.epsilon);
    row.text("theta_unit", plan.unit.word());
    let exit = match Entropy::checked(plan.params) {
        Ok(exit) => exit,
        Err(error) => {
            row.text("status", "skipped");
            row.text("error", error.to_string());
            return (row, Vec::new());
        }
    };
    let outcomes: Vec<ExitOutcome> =
        lens.iter().map(|rows| replay_exit(&exit, rows, context.shape.layers, context.shape.vocab)).collect();
    row.text("status", "ok");
    let log: Vec<u8> =
        outcomes.iter().flat_map(|o| &o.layers_run).flat_map(|run| run.to_le_bytes()).collect();
    row.text("log_digest", &sha256_hex(&log)[..16]);
    let finding = match observed {
        Some(observed) if lint::can_exit(&plan.params, context.shape.layers) => {
            lint::thresholds(&plan.params, &observed)
        }
        Some(_) => Some(lint::too_patient(&plan.params, context.shape.layers)),
        None => Some(lint::nothing_observed(plan.params.min_layer, context.shape.layers)),
    };
    if let Some(finding) = finding {
        row.text("lint", finding);
    }
    metrics(&mut row, context, &outcomes);
    (row, histogram(&id, context.shape.layers, &outcomes))
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn metrics(row: &mut CellRow, context: &Context<'_>, outcomes: &[ExitOutcome]) {
    let layers = u64::from(context.shape.layers);
    let mut rate = |metric: &str, num: fn(&ExitOutcome) -> u64, per_position: u64| {
        let terms: Vec<(u64, u64)> =
            outcomes.iter().map(|o| (num(o), o.positions() * per_position)).collect();
        let floats: Vec<(f64, f64)> = terms.iter().map(|&(n, d)| (n as f64, d as f64)).collect();
        let (num, den) = terms.iter().fold((0, 0), |(n, d), term| (n + term.0, d + term.1));
        row.rate(metric, context.bootstrap.ratio(&floats), num, den);
    };
    rate("skip_rate", ExitOutcome::skipped, layers);
    rate("net_skip_rate", |o| o.skipped() - o.holes(), layers);
    rate("kv_hole_rate", ExitOutcome::holes, layers);
    rate("exit_rate", ExitOutcome::exited, 1);
    rate("exit_agreement", |o| o.agreeing, 1);
    let means: Vec<Option<f64>> =
        outcomes.iter().map(|o| (o.positions() > 0).then(|| o.run() as f64 / o.positions() as f64)).collect();
    row.mean("mean_layers_run", context.bootstrap.mean(&means), means.iter().flatten().count());
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn histogram(id: &str, layers: u16, outcomes: &[ExitOutcome]) -> Vec<SeriesRow> {
    let positions: u64 = outcomes.iter().map(ExitOutcome::positions).sum();
    (1..=layers)
        .map(|run| SeriesRow {
            cell: id.to_owned(),
            metric: "exit_layer_count",
            stat: "count",
            layer: None,
            x: f64::from(run),
            x_hi: None,
            value: outcomes.iter().map(|o| o.count(run)).sum::<u64>() as f64,
            n: positions,
        })
        .collect()
}
