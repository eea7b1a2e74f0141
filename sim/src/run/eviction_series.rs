//! Series and rows by item of an eviction cell.

use super::context::Context;
use crate::observe::{MemoryReport, OccupancyPoint};
use crate::replay::{SURVIVAL_BINS, SequenceOutcome};
use crate::results::SeriesRow;
use crate::table::Value;
use std::collections::BTreeMap;

/// Attention-mass recall of one sequence: over decode steps, layers and query heads.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn recall(context: &Context<'_>, outcome: &SequenceOutcome) -> Option<f64> {
    let heads = f64::from(context.shape.q_heads) * f64::from(context.shape.layers);
    let terms = outcome.recall.len() as f64 * heads;
    (terms > 0.0).then(|| outcome.recall.iter().sum::<f64>() / terms)
}

/// Relative error of the attention output of one sequence, over the sampled steps.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn output_error(outcome: &SequenceOutcome) -> Option<f64> {
    (outcome.error_terms > 0).then(|| outcome.error_sum / outcome.error_terms as f64)
}

/// Rows of `items`: the primary metrics of every item, over its sequences.
#[expect(clippy::cast_precision_loss, reason = "sequences of an item are few")]
pub(super) fn items(cell: &str, context: &Context<'_>, outcomes: &[&SequenceOutcome]) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for metric in ["attn_mass_recall", "attn_output_error"] {
        let of = |outcome: &SequenceOutcome| match metric {
            "attn_mass_recall" => recall(context, outcome),
            _ => output_error(outcome),
        };
        // In the order of the items' first sequences.
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        let mut items: Vec<(&str, Vec<f64>)> = Vec::new();
        for (meta, outcome) in context.sequences.iter().zip(outcomes) {
            let Some(value) = of(outcome) else { continue };
            let place = *places.entry(&meta.item).or_insert(items.len());
            match items.get_mut(place) {
                Some((_, values)) => values.push(value),
                None => items.push((&meta.item, vec![value])),
            }
        }
        rows.extend(items.into_iter().map(|(item, values)| {
            let n = values.len();
            vec![
                Value::Text(cell.to_owned()),
                Value::Text(item.to_owned()),
                Value::Text(metric.to_owned()),
                Value::Real(values.iter().sum::<f64>() / n as f64),
                Value::Int(i64::try_from(n).unwrap_or(i64::MAX)),
            ]
        }));
    }
    rows
}

/// Which part of a sequence is still there at its end.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn survival_series<'a>(
    cell: &'a str,
    outcomes: &'a [&SequenceOutcome],
) -> impl Iterator<Item = SeriesRow> + use<'a> {
    let edge = |bin: usize| bin as f64 / SURVIVAL_BINS as f64;
    (0..SURVIVAL_BINS).filter_map(move |bin| {
        let sum = |of: fn(&SequenceOutcome) -> &[u64; SURVIVAL_BINS]| {
            outcomes.iter().map(|outcome| of(outcome)[bin]).sum::<u64>()
        };
        let (kept, all) = (sum(|o| &o.survivors), sum(|o| &o.candidates));
        (all > 0).then(|| SeriesRow {
            cell: cell.into(),
            metric: "survival",
            stat: "mean",
            layer: None,
            x: edge(bin),
            x_hi: Some(edge(bin + 1)),
            value: kept as f64 / all as f64,
            n: all,
        })
    })
}

pub(super) fn occupancy_series<'a>(
    cell: &'a str,
    report: &'a MemoryReport,
) -> impl Iterator<Item = SeriesRow> + use<'a> {
    let of = move |metric: &'static str, value: fn(&OccupancyPoint) -> f64| {
        report.curve.iter().map(move |point| SeriesRow {
            cell: cell.into(),
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

/// Attention-mass recall of each KV head, over its query heads, decode steps and sequences.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn head_recall_series<'a>(
    cell: &'a str,
    context: &Context<'_>,
    outcomes: &[&SequenceOutcome],
) -> impl Iterator<Item = SeriesRow> + use<'a> {
    let (heads, group) = (context.shape.kv_heads, context.shape.q_heads / context.shape.kv_heads.max(1));
    let steps: u64 = outcomes.iter().map(|outcome| outcome.recall.len() as u64).sum();
    let terms = steps * u64::from(group);
    let places = usize::from(context.shape.layers) * usize::from(heads);
    let mut sums = vec![0.0; if terms > 0 { places } else { 0 }];
    for outcome in outcomes {
        sums.iter_mut().zip(&outcome.head_recall).for_each(|(sum, recall)| *sum += recall);
    }
    let place = move |at: u16| (at / heads, at % heads);
    (0..).zip(sums).map(move |(at, sum)| {
        let (layer, head) = place(at);
        SeriesRow {
            cell: cell.into(),
            metric: "head_mass_recall",
            stat: "mean",
            layer: Some(layer),
            x: f64::from(head),
            x_hi: None,
            value: sum / terms as f64,
            n: terms,
        }
    })
}

pub(super) fn recall_series<'a>(
    cell: &'a str,
    context: &Context<'_>,
    outcomes: &[&SequenceOutcome],
) -> impl Iterator<Item = SeriesRow> + use<'a> {
    let heads = f64::from(context.shape.q_heads) * f64::from(context.shape.layers);
    let mut by_seen: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
    for (meta, outcome) in context.sequences.iter().zip(outcomes) {
        for (recall, seen) in outcome.recall.iter().zip(meta.prompt_len + 1..=meta.len) {
            let point = by_seen.entry(seen).or_default();
            point.0 += recall / heads;
            point.1 += 1;
        }
    }
    by_seen.into_iter().map(move |(seen, (total, sequences))| SeriesRow {
        cell: cell.into(),
        metric: "step_mass_recall",
        stat: "mean",
        layer: None,
        x: f64::from(seen),
        x_hi: None,
        value: total / f64::from(sequences),
        n: u64::from(sequences),
    })
}
