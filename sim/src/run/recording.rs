//! Series about the recording itself: entropies by layer, ranges of values.

use crate::num;
use crate::policy::exit::entropy::Lens;
use crate::replay::entropy_quantiles;
use crate::results::{RECORDING, SeriesRow};
use crate::trace::LensRow;
use std::collections::BTreeMap;

const BINS: usize = 40;

/// Quantiles of the entropy by layer, both lenses.
pub(super) fn entropy_series(rows: &[LensRow], layers: u16) -> Vec<SeriesRow> {
    let mut series = Vec::new();
    for (metric, lens) in [("lens_entropy_nats", Lens::FinalNorm), ("raw_lens_entropy_nats", Lens::Raw)] {
        for layer in 0..layers {
            let Some(quantiles) = entropy_quantiles(rows, layer, lens) else {
                continue;
            };
            for (stat, value) in ["p10", "p50", "p90"].into_iter().zip(quantiles) {
                series.push(SeriesRow {
                    cell: RECORDING.into(),
                    metric,
                    stat,
                    layer: Some(layer),
                    x: f64::from(layer),
                    x_hi: None,
                    value,
                    n: rows.len() as u64 / u64::from(layers.max(1)),
                });
            }
        }
    }
    series
}

/// Columns of the map of entropies: of a longer sequence, neighbouring positions are joined.
const MOST_COLUMNS: usize = 160;

/// The entropy by layer and position of one sequence, with the final norm. `rows` are its decode rows, positions ascending.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn token_entropy_series(rows: &[LensRow], layers: u16) -> Vec<SeriesRow> {
    let mut positions: Vec<u32> = rows.iter().map(|row| row.pos.get()).collect();
    positions.sort_unstable();
    positions.dedup();
    let width = positions.len().div_ceil(MOST_COLUMNS).max(1);
    // (sum, count) by layer and column.
    let mut sums: BTreeMap<(u16, usize), (f64, u64)> = BTreeMap::new();
    for row in rows {
        let column = positions.partition_point(|pos| *pos < row.pos.get()) / width;
        let (sum, count) = sums.entry((row.layer.get(), column)).or_default();
        *sum += f64::from(row.entropy_nats);
        *count += 1;
    }
    let columns: Vec<&[u32]> = positions.chunks(width).collect();
    sums.into_iter()
        .filter(|((layer, _), _)| *layer < layers)
        .filter_map(|((layer, column), (sum, count))| {
            let positions = columns.get(column)?;
            Some(SeriesRow {
                cell: RECORDING.into(),
                metric: "token_entropy_nats",
                stat: "mean",
                layer: Some(layer),
                x: f64::from(*positions.first()?),
                x_hi: Some(f64::from(*positions.last()?) + 1.0),
                value: sum / count as f64,
                n: count,
            })
        })
        .collect()
}

/// Ranges of the values of one layer, one list for each (sequence, KV head).
pub(super) type LayerRanges = Vec<Vec<f32>>;

/// Histogram of the ranges by layer, and the range at each N_v in use.
pub(super) fn range_series(layers: &[LayerRanges], reserved: &[u32]) -> Vec<SeriesRow> {
    let mut series = Vec::new();
    for (layer, lists) in (0u16..).zip(layers) {
        series.extend(histogram(layer, lists));
        if reserved.iter().all(|count| *count == 0) {
            continue;
        }
        let mut falling = lists.clone();
        falling.iter_mut().for_each(|list| list.sort_unstable_by(|a, b| b.total_cmp(a)));
        series.extend(reserved.iter().filter_map(|&count| cut(layer, &falling, count)));
    }
    series
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "bins are few and the share is in 0..=1"
)]
fn histogram(layer: u16, lists: &LayerRanges) -> Vec<SeriesRow> {
    let largest = lists.iter().map(|list| num::max(list)).fold(0.0, f32::max);
    if !(largest.is_finite() && largest > 0.0) {
        return Vec::new();
    }
    let width = f64::from(largest) / BINS as f64;
    let mut counts = [0u64; BINS];
    for &range in lists.iter().flatten() {
        counts[((f64::from(range) / width) as usize).min(BINS - 1)] += 1;
    }
    let total = counts.iter().sum();
    (0u32..)
        .zip(counts)
        .map(|(bin, count)| SeriesRow {
            cell: RECORDING.into(),
            metric: "value_range_count",
            stat: "count",
            layer: Some(layer),
            x: f64::from(bin) * width,
            x_hi: Some(f64::from(bin + 1) * width),
            value: count as f64,
            n: total,
        })
        .collect()
}

/// The range of the `count`-th widest token, mean over the lists that are long enough; each falls.
#[expect(clippy::cast_precision_loss, reason = "lists are few")]
fn cut(layer: u16, falling: &LayerRanges, count: u32) -> Option<SeriesRow> {
    let at = (count as usize).checked_sub(1)?;
    let cuts: Vec<f64> = falling.iter().filter_map(|list| list.get(at)).map(|cut| f64::from(*cut)).collect();
    (!cuts.is_empty()).then(|| SeriesRow {
        cell: RECORDING.into(),
        metric: "value_range_cut",
        stat: "mean",
        layer: Some(layer),
        x: f64::from(count),
        x_hi: None,
        value: cuts.iter().sum::<f64>() / cuts.len() as f64,
        n: cuts.len() as u64,
    })
}
