//! The eviction half of a study: tensor replay of all cells, then one engine run a cell.

use super::RunError;
use super::lint;
use super::plan_columns::plan_columns;
use super::recording::LayerRanges;
use super::study::Context;
use crate::engine::{self, Eviction, Request, UnitCost, Workload};
use crate::ledger::Kept;
use crate::observe::{Fanout, LogDigest, Memory, MemoryReport, OccupancyPoint};
use crate::policy::compose::Stack;
use crate::replay::{EvictionCell, LayerOutcome, Settings, replay_layer, value_ranges};
use crate::results::{Bootstrap, CellRow, SeriesRow, cell_id};
use crate::scenario::{EvictionPlan, EvictionStudy};
use crate::table::Value;
use crate::trace::SequenceMeta;
use crate::types::{LayerIdx, Nanos, ReqId};
use rayon::prelude::*;

/// Rows and series of the eviction cells, and the value ranges by layer.
pub(super) struct EvictionResults {
    pub(super) cells: Vec<CellRow>,
    pub(super) series: Vec<SeriesRow>,
    pub(super) ranges: Vec<LayerRanges>,
}

/// What one (sequence, layer) gave: an outcome for each runnable cell, and the ranges of each KV head.
struct Unit {
    outcomes: Vec<LayerOutcome>,
    ranges: LayerRanges,
}

pub(super) fn run(
    context: &Context<'_>,
    study: &EvictionStudy,
    plans: &[EvictionPlan],
) -> Result<EvictionResults, RunError> {
    let runnable: Vec<(&EvictionPlan, &Stack)> =
        plans.iter().filter_map(|plan| plan.stack.as_ref().ok().map(|stack| (plan, stack))).collect();
    let cells: Vec<EvictionCell<'_>> =
        runnable.iter().map(|(plan, stack)| EvictionCell { stack, seed: plan.seed.unwrap_or(0) }).collect();
    let settings = Settings { output_error_every: study.output_error_every };
    let layers = usize::from(context.shape.layers);
    let ids: Vec<(usize, LayerIdx)> = (0..context.sequences.len())
        .flat_map(|seq| context.shape.layer_ids().map(move |layer| (seq, layer)))
        .collect();
    let units: Vec<Unit> = ids
        .par_iter()
        .map(|&(seq, layer)| {
            let meta = &context.sequences[seq];
            let tensors = context.source.layer(meta.seq, layer)?;
            let outcomes = replay_layer(context.shape, meta, layer, &tensors, &cells, settings)?;
            let ranges = context.shape.kv_head_ids().map(|head| value_ranges(&tensors, head)).collect();
            context.advance();
            Ok(Unit { outcomes, ranges })
        })
        .collect::<Result<_, RunError>>()?;

    let simulated: Vec<(CellRow, Vec<SeriesRow>)> = runnable
        .par_iter()
        .enumerate()
        .map(|(at, (plan, stack))| {
            let by_sequence: Vec<Vec<&LayerOutcome>> = units
                .chunks(layers)
                .map(|layers| layers.iter().map(|unit| &unit.outcomes[at]).collect())
                .collect();
            cell(context, study, plan, stack, &by_sequence)
        })
        .collect::<Result<_, RunError>>()?;

    let mut results = EvictionResults { cells: Vec::new(), series: Vec::new(), ranges: Vec::new() };
    let mut simulated = simulated.into_iter();
    for plan in plans {
        if let Err(error) = &plan.stack {
            let mut row = keys(context, plan, study);
            row.text("status", "skipped");
            row.text("error", error.to_string());
            results.cells.push(row);
        } else if let Some((row, series)) = simulated.next() {
            results.cells.push(row);
            results.series.extend(series);
        }
    }
    let mut ranges: Vec<LayerRanges> = vec![Vec::new(); layers];
    for (unit, (_, layer)) in units.into_iter().zip(ids) {
        ranges[layer.idx()].extend(unit.ranges);
    }
    results.ranges = ranges;
    Ok(results)
}

/// The key columns of a cell.
fn keys(context: &Context<'_>, plan: &EvictionPlan, study: &EvictionStudy) -> CellRow {
    let mut row = context.keys("eviction");
    let params = plan.stack.as_ref().map_or(serde_json::Value::Null, Stack::params);
    row.text(
        "cell",
        cell_id(&serde_json::json!({
            "source": context.digest,
            "sequences": context.sequences.len(),
            "study": "eviction",
            "policy": plan.label,
            "params": params,
            "budget": plan.budget,
            "seed": plan.seed,
            "output_error_every": study.output_error_every,
            "block_tokens": study.block_tokens,
            "bytes_per_scalar": study.bytes_per_scalar,
        })),
    );
    plan_columns(plan, &mut row);
    row
}

/// One cell: the engine's account of its evictions and the replay's proxies. `outcomes` is `[sequence][layer]`.
fn cell(
    context: &Context<'_>,
    study: &EvictionStudy,
    plan: &EvictionPlan,
    stack: &Stack,
    outcomes: &[Vec<&LayerOutcome>],
) -> Result<(CellRow, Vec<SeriesRow>), RunError> {
    let workload = Workload {
        requests: context
            .sequences
            .iter()
            .zip(outcomes)
            .map(|(meta, layers)| request(meta, layers))
            .collect(),
        shape: *context.shape,
        block_tokens: study.block_tokens,
        bytes_per_scalar: u64::from(study.bytes_per_scalar),
        capacity_blocks: None,
    };
    let (mut digest, mut memory) = (LogDigest::new(), Memory::new(&workload));
    let mut observers = Fanout::new(vec![&mut digest, &mut memory]);
    engine::run(&workload, &engine::Settings::default(), &UnitCost::default(), &mut observers)?;
    let (digest, report) = (digest.finish(), memory.report());

    let mut row = keys(context, plan, study);
    row.text("status", "ok");
    row.text("log_digest", digest);
    if report.evictions == 0 && stack.can_evict() {
        let longest = context.sequences.iter().map(|meta| meta.len).max().unwrap_or(0);
        row.text("lint", lint::never_triggered(plan.budget, longest));
    }
    memory_metrics(&mut row, &report, &context.bootstrap);
    proxy_metrics(&mut row, context, outcomes, report.evictions);
    let Value::Text(id) = row.get("cell") else {
        return Ok((row, Vec::new()));
    };
    let series = occupancy_series(&id, &report).chain(recall_series(&id, context, outcomes)).collect();
    Ok((row, series))
}

fn request(meta: &SequenceMeta, layers: &[&LayerOutcome]) -> Request {
    // All layers follow one schedule, so the first tells when.
    let first = layers.first().map_or(&[][..], |outcome| &outcome.evictions);
    let evictions = first
        .iter()
        .enumerate()
        .map(|(at, eviction)| Eviction {
            seen: eviction.seen,
            kept: Kept::Sets(
                layers.iter().flat_map(|layer| layer.evictions[at].heads.iter().copied()).collect(),
            ),
        })
        .collect();
    Request {
        req: ReqId::new(meta.seq.get()),
        prompt_len: meta.prompt_len,
        len: meta.len,
        arrival: Nanos::ZERO,
        evictions,
        forks: Vec::new(),
    }
}

fn memory_metrics(row: &mut CellRow, report: &MemoryReport, bootstrap: &Bootstrap) {
    row.count("evictions", report.evictions);
    row.count("kv_byte_steps", report.kv_byte_steps.get());
    row.count("peak_kv_bytes", report.peak_kv_bytes.get());
    row.count("peak_allocated_kv_bytes", report.peak_allocated_kv_bytes.get());
    let ratios: Vec<Option<f64>> = report.sequences.iter().map(|sequence| sequence.mean_keep_ratio).collect();
    row.mean("mean_keep_ratio", bootstrap.mean(&ratios), ratios.iter().flatten().count());
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn proxy_metrics(row: &mut CellRow, context: &Context<'_>, outcomes: &[Vec<&LayerOutcome>], evictions: u64) {
    let bootstrap = &context.bootstrap;
    let heads = f64::from(context.shape.q_heads) * f64::from(context.shape.layers);
    let recalls: Vec<Option<f64>> = outcomes
        .iter()
        .map(|layers| {
            let steps = layers.first().map_or(0, |layer| layer.recall.len());
            let total: f64 = layers.iter().map(|layer| layer.recall.iter().sum::<f64>()).sum();
            (steps > 0).then(|| total / (steps as f64 * heads))
        })
        .collect();
    row.mean("attn_mass_recall", bootstrap.mean(&recalls), recalls.iter().flatten().count());
    let errors: Vec<Option<f64>> = outcomes
        .iter()
        .map(|layers| {
            let terms: u64 = layers.iter().map(|layer| layer.error_terms).sum();
            let total: f64 = layers.iter().map(|layer| layer.error_sum).sum();
            (terms > 0).then(|| total / terms as f64)
        })
        .collect();
    if errors.iter().any(Option::is_some) {
        row.mean("attn_output_error", bootstrap.mean(&errors), errors.iter().flatten().count());
    }
    let sums = |of: fn(&LayerOutcome) -> u64| -> Vec<u64> {
        outcomes.iter().map(|layers| layers.iter().map(|layer| of(layer)).sum()).collect()
    };
    let mut rate = |metric: &str, num: Vec<u64>, den: Vec<u64>| {
        let terms: Vec<(f64, f64)> = num.iter().zip(&den).map(|(&n, &d)| (n as f64, d as f64)).collect();
        row.rate(metric, bootstrap.ratio(&terms), num.iter().sum(), den.iter().sum());
    };
    rate("wide_value_coverage", sums(|layer| layer.wide_kept), sums(|layer| layer.wide_total));
    if evictions > 0 {
        let head_evictions =
            sums(|layer| layer.evictions.iter().map(|eviction| eviction.heads.len() as u64).sum());
        rate("boundary_tie_rate", sums(|layer| layer.ties), head_evictions);
    }
}

fn occupancy_series<'a>(
    cell: &'a str,
    report: &'a MemoryReport,
) -> impl Iterator<Item = SeriesRow> + use<'a> {
    let of = move |metric: &'static str, value: fn(&OccupancyPoint) -> f64| {
        report.curve.iter().map(move |point| SeriesRow {
            cell: cell.to_owned(),
            metric,
            stat: "mean",
            layer: None,
            x: f64::from(point.seen),
            x_hi: None,
            value: value(point),
            n: u64::from(point.sequences),
        })
    };
    of("live_kv_tokens", |point| point.live_kv_tokens)
        .chain(of("allocated_kv_tokens", |point| point.allocated_kv_tokens))
}

fn recall_series<'a>(
    cell: &'a str,
    context: &Context<'_>,
    outcomes: &[Vec<&LayerOutcome>],
) -> impl Iterator<Item = SeriesRow> + use<'a> {
    let heads = f64::from(context.shape.q_heads) * f64::from(context.shape.layers);
    let mut by_seen: std::collections::BTreeMap<u32, (f64, u32)> = std::collections::BTreeMap::new();
    for (meta, layers) in context.sequences.iter().zip(outcomes) {
        for (step, seen) in (meta.prompt_len + 1..=meta.len).enumerate() {
            let total: f64 = layers.iter().map(|layer| layer.recall[step]).sum();
            let point = by_seen.entry(seen).or_default();
            point.0 += total / heads;
            point.1 += 1;
        }
    }
    by_seen.into_iter().map(move |(seen, (total, sequences))| SeriesRow {
        cell: cell.to_owned(),
        metric: "step_mass_recall",
        stat: "mean",
        layer: None,
        x: f64::from(seen),
        x_hi: None,
        value: total / f64::from(sequences),
        n: u64::from(sequences),
    })
}
