//! The exit half of a study: every pair of thresholds over the recorded lens facts.

use super::RunError;
use super::context::Context;
use super::eviction::unfinished;
use super::items;
use super::lint::{ExitLint, Found};
use super::recording::{entropy_series, token_entropy_series};
use super::study::{Finished, unit};
use crate::policy::exit::HolePolicy;
use crate::policy::exit::entropy::Entropy;
use crate::replay::{ExitOutcome, lens_decode_rows, replay_exit};
use crate::results::{CellRow, Outcome, Section, SeriesRow, Unit, UnitKind, cell_id, sha256_hex};
use crate::scenario::ExitPlan;
use crate::table::Value;
use crate::trace::{LensRow, SequenceMeta};
use rayon::prelude::*;

/// The unit of the recording's own series, then one unit a cell.
pub(super) fn units(context: &Context<'_>, plans: &[ExitPlan]) -> Vec<Unit> {
    let id = cell_id(&serde_json::json!({
        "source": context.digest,
        "sequences": context.sequences_key(),
        "study": "entropies by layer",
    }));
    let entropies = unit(id, Section::Exit, UnitKind::Recording, "entropies by layer".to_owned());
    let cell = |plan: &ExitPlan| {
        let (lens, unit_word) = (plan.lens.word(), plan.unit.word());
        let label = format!("{lens}  theta {} {unit_word}  epsilon {} {unit_word}", plan.theta, plan.epsilon);
        let refused = Entropy::checked(plan.params).err().map(|error| error.to_string());
        Unit { refused, ..unit(id_of(context, plan), Section::Exit, UnitKind::Cell, label) }
    };
    std::iter::once(entropies).chain(plans.iter().map(cell)).collect()
}

fn id_of(context: &Context<'_>, plan: &ExitPlan) -> String {
    let mut key = serde_json::json!({
        "source": context.digest,
        "sequences": context.sequences_key(),
        "study": "exit",
        "params": serde_json::to_value(plan.params).unwrap_or_default(),
        "unit": plan.unit.word(),
    });
    if context.has_exit_items {
        key["by_item"] = true.into();
    }
    if plan.hole_policy != HolePolicy::default() {
        key["hole_policy"] = plan.hole_policy.word().into();
    }
    cell_id(&key)
}

/// The decode rows of each sequence.
fn read(context: &Context<'_>) -> Result<Vec<Vec<LensRow>>, RunError> {
    let read = |meta: &SequenceMeta| {
        let rows = context.source.lens(meta.seq)?;
        context.advance();
        Ok(lens_decode_rows(rows, meta))
    };
    context.sequences.par_iter().map(read).collect()
}

/// What is to be said about the thresholds of `plans` before anything runs, `[plan]`.
pub(super) fn found(context: &Context<'_>, plans: &[ExitPlan]) -> Result<Vec<Found>, RunError> {
    let all: Vec<LensRow> = read(context)?.into_iter().flatten().collect();
    let lint = ExitLint::of(plans, &all, context.shape.layers, context.shape.vocab);
    Ok(plans.iter().map(|plan| lint.found(plan)).collect())
}

/// Runs the units in `batches`; lens facts are read once for all of them.
pub(super) fn run(
    context: &Context<'_>,
    plans: &[ExitPlan],
    batches: &[Vec<usize>],
    keep: Finished<'_>,
) -> Result<(), RunError> {
    let lens = read(context)?;
    let layers = context.shape.layers;
    let all: Vec<LensRow> = lens.iter().flatten().copied().collect();
    let lint = ExitLint::of(plans, &all, layers, context.shape.vocab);
    let units = units(context, plans);
    for batch in batches {
        let outcome = |&at: &usize| {
            // Place 0 is the recording.
            let mut outcome = match at.checked_sub(1).and_then(|at| plans.get(at)) {
                None => {
                    let mut series = entropy_series(&all, layers);
                    series.extend(lens.first().map_or(Vec::new(), |rows| token_entropy_series(rows, layers)));
                    Outcome { series, ..Outcome::default() }
                }
                Some(plan) => cell(context, plan, &lens, &lint.found(plan)),
            };
            outcome.id.clone_from(&units[at].id);
            context.advance();
            outcome
        };
        keep(batch.par_iter().map(outcome).collect())?;
    }
    Ok(())
}

fn cell(context: &Context<'_>, plan: &ExitPlan, lens: &[Vec<LensRow>], found: &Found) -> Outcome {
    let mut row = context.keys("exit");
    context.tell_drawn(&mut row);
    let params = serde_json::to_value(plan.params).unwrap_or_default();
    let id = id_of(context, plan);
    row.text("cell", id.clone());
    row.text("policy", "entropy");
    row.text("params", params.to_string());
    row.text("lens", plan.lens.word());
    row.real("theta", plan.theta);
    row.real("epsilon", plan.epsilon);
    row.text("theta_unit", plan.unit.word());
    row.text("hole_policy", plan.hole_policy.word());
    let exit = match Entropy::checked(plan.params) {
        Ok(exit) => exit,
        Err(error) => return unfinished(row, "skipped", error.to_string()),
    };
    if let Some(refused) = unseen(plan, lens.iter().flatten()) {
        return unfinished(row, "skipped", refused);
    }
    let outcomes: Vec<ExitOutcome> =
        lens.iter().map(|rows| replay_exit(&exit, rows, context.shape.layers, context.shape.vocab)).collect();
    if let Some(refused) = refused(plan, &outcomes) {
        return unfinished(row, "skipped", refused);
    }
    row.text("status", "ok");
    let log: Vec<u8> =
        outcomes.iter().flat_map(|o| &o.layers_run).flat_map(|run| run.to_le_bytes()).collect();
    row.text("log_digest", &sha256_hex(&log)[..16]);
    found.note(&mut row);
    metrics(&mut row, context, &outcomes);
    holes(&mut row, context, plan.hole_policy, &outcomes);
    let series = histogram(&id, context.shape.layers, &outcomes);
    let items = if context.has_exit_items { items(&id, context, &outcomes) } else { Vec::new() };
    Outcome { cell: Some(row), series, more: vec![("items", items)], ..Outcome::default() }
}

/// Why a cell cannot be had over a recording whose lens did not look as the cell does.
pub(super) fn unseen<'a>(plan: &ExitPlan, rows: impl IntoIterator<Item = &'a LensRow>) -> Option<String> {
    let is_unseen = rows.into_iter().any(|row| plan.lens.entropy_nats(row).is_none());
    is_unseen.then(|| {
        format!(
            "`entropy` with `lens: {}` reads `lens.raw_entropy_nats`, which this recording left out; accepted: lens: final-norm, or a recording with `kvlab record --lens both`",
            plan.lens.word()
        )
    })
}

/// Why a cell cannot be had where exits must leave no holes.
fn refused(plan: &ExitPlan, outcomes: &[ExitOutcome]) -> Option<String> {
    let sum = |of: fn(&ExitOutcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let (tokens, pairs) = (sum(ExitOutcome::hole_positions), sum(ExitOutcome::holes));
    (plan.hole_policy == HolePolicy::Forbid && pairs > 0).then(|| {
        format!(
            "exits while decoding leave {pairs} pairs of a token and a layer without keys and values, of {tokens} tokens among {}, although a later token runs the layer; \
             accepted: hole_policy verify-only, copy-state or recompute",
            sum(ExitOutcome::positions)
        )
    })
}

/// What exits leave out, and what it takes to deal with it.
fn holes(row: &mut CellRow, context: &Context<'_>, policy: HolePolicy, outcomes: &[ExitOutcome]) {
    let sum = |of: fn(&ExitOutcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let (pairs, skipped) = (sum(ExitOutcome::holes), sum(ExitOutcome::skipped));
    let pair_bytes = u64::from(context.shape.kv_heads) * context.shape.kv_bytes_per_entry(2).get();
    row.count("kv_hole_tokens", sum(ExitOutcome::hole_positions));
    row.count("kv_hole_bytes", pairs * pair_bytes);
    let (passes, projections) = match policy {
        HolePolicy::VerifyOnly | HolePolicy::Forbid => (0, 0),
        HolePolicy::CopyState => (0, skipped),
        HolePolicy::Recompute => (pairs, 0),
    };
    row.count("hole_layer_passes", passes);
    row.count("hole_projections", projections);
    row.count("hole_filled_bytes", (passes + projections) * pair_bytes);
    if policy == HolePolicy::CopyState && pairs > 0 {
        let found = Found {
            findings: vec![format!(
                "copy-state: {pairs} keys and values that later tokens attend to are made from the state at an exit; decisions here are those of the recorded states"
            )],
            places: Vec::new(),
        };
        found.note(row);
    }
}

/// What the cell gives by problem; `outcomes` is `[sequence]`.
fn items(id: &str, context: &Context<'_>, outcomes: &[ExitOutcome]) -> Vec<Vec<Value>> {
    let layers = u64::from(context.shape.layers);
    let of = |metric: &str, num: fn(&ExitOutcome) -> u64, per_position: u64| {
        let term = |(meta, outcome): (&SequenceMeta, &ExitOutcome)| {
            (meta.item.clone(), num(outcome), outcome.positions() * per_position)
        };
        let terms: Vec<(String, u64, u64)> = context.sequences.iter().zip(outcomes).map(term).collect();
        items::rates(id, metric, terms.iter().map(|(item, num, den)| (item.as_str(), *num, *den)))
    };
    [
        of("exit_agreement", |outcome| outcome.agreeing, 1),
        of("mean_layers_run", ExitOutcome::run, 1),
        of("net_skip_rate", |outcome| outcome.skipped() - outcome.holes(), layers),
        of("skip_rate", ExitOutcome::skipped, layers),
    ]
    .concat()
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
            cell: id.into(),
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
