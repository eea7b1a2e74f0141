//! Rows about what is read and held: attended tokens, bytes in the representation of the store, and what that loses.

use super::context::Context;
use crate::observe::MemoryReport;
use crate::policy::store::Moments;
use crate::replay::{SequenceOutcome, SequenceReading};
use crate::results::{CellRow, SeriesRow};
use crate::scenario::EvictionStudy;

/// What decode steps of one sequence read and hold, whichever way it was replayed.
struct Sums {
    decode_steps: f64,
    /// Over decode steps, layers and query heads.
    attended: f64,
    read_bytes: f64,
    peak_bytes: u64,
    byte_steps: u64,
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
impl Sums {
    fn of_reading(reading: &SequenceReading) -> Self {
        let (held, read) = (&reading.all.held_bits, &reading.all.read_bits);
        Self {
            decode_steps: read.len() as f64,
            attended: reading.all.attended as f64,
            read_bytes: read.iter().sum::<u64>() as f64 / 8.0,
            peak_bytes: held.iter().max().map_or(0, |bits| bits.div_ceil(8)),
            byte_steps: held.iter().sum::<u64>().div_ceil(8),
        }
    }
}

/// Sets the columns of one cell; `outcomes` is `[sequence]`.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn metrics(
    row: &mut CellRow,
    context: &Context<'_>,
    study: &EvictionStudy,
    outcomes: &[&SequenceOutcome],
    report: &MemoryReport,
) {
    let shape = context.shape;
    let heads = f64::from(shape.q_heads) * f64::from(shape.layers);
    let entry = shape.kv_bytes_per_entry(u64::from(study.bytes_per_scalar)).get() as f64;
    let streams = f64::from(shape.kv_heads) * f64::from(shape.layers);
    let plain = |at: usize| {
        // Every resident token as it was made: what the ledger counted, less the step at the end of the prompt.
        let (memory, meta) = (&report.sequences[at], &context.sequences[at]);
        let bytes = memory.kv_byte_steps.get() as f64 - f64::from(meta.prompt_len) * streams * entry;
        Sums {
            decode_steps: f64::from(memory.decode_steps),
            attended: bytes / entry / streams * heads,
            read_bytes: bytes,
            peak_bytes: memory.peak_kv_bytes.get(),
            byte_steps: memory.kv_byte_steps.get(),
        }
    };
    let sums: Vec<Sums> = outcomes
        .iter()
        .enumerate()
        .map(|(at, outcome)| outcome.reading.as_ref().map_or_else(|| plain(at), Sums::of_reading))
        .collect();
    let mut mean = |metric: &str, values: Vec<Option<f64>>| {
        if values.iter().any(Option::is_some) {
            row.mean(metric, context.bootstrap.mean(&values), values.iter().flatten().count());
        }
    };
    let by_step = |of: &dyn Fn(&Sums) -> f64| -> Vec<Option<f64>> {
        sums.iter().map(|sums| (sums.decode_steps > 0.0).then(|| of(sums) / sums.decode_steps)).collect()
    };
    mean("attended_tokens", by_step(&|sums| sums.attended / heads));
    mean("read_kv_bytes_per_step", by_step(&|sums| sums.read_bytes));
    let lost = |of: fn(&SequenceReading) -> f64| -> Vec<Option<f64>> {
        let share = |reading: &SequenceReading| {
            let tokens = reading.all.stored_tokens;
            (tokens > 0).then(|| of(reading) / tokens as f64)
        };
        outcomes.iter().map(|outcome| outcome.reading.as_ref().and_then(share)).collect()
    };
    mean("key_reconstruction_error", lost(|reading| reading.all.key_error_sum));
    mean("value_reconstruction_error", lost(|reading| reading.all.value_error_sum));
    row.count("peak_stored_kv_bytes", sums.iter().map(|sums| sums.peak_bytes).max().unwrap_or(0));
    row.count("stored_kv_byte_steps", sums.iter().map(|sums| sums.byte_steps).sum());
}

/// The correlation of the range of a value with the squared error of what is read back of it, by layer.
pub(super) fn range_error_series(cell: &str, outcomes: &[&SequenceOutcome]) -> Vec<SeriesRow> {
    let layers = outcomes
        .iter()
        .filter_map(|outcome| outcome.reading.as_ref())
        .map(|reading| reading.range_error.len())
        .max()
        .unwrap_or(0);
    let of_layer = |layer: u16| {
        let mut all = Moments::default();
        for reading in outcomes.iter().filter_map(|outcome| outcome.reading.as_ref()) {
            reading.range_error.get(usize::from(layer)).into_iter().for_each(|moments| all.merge(moments));
        }
        Some(SeriesRow {
            cell: cell.into(),
            metric: "range_error_correlation",
            stat: "mean",
            layer: Some(layer),
            x: f64::from(layer),
            x_hi: None,
            value: all.correlation()?,
            n: all.count(),
        })
    };
    (0u16..).take(layers).filter_map(of_layer).collect()
}
