//! Fitting `sinks-and-hitters` to a trace, and saying how well that went.
//!
//! Four kinds of statistics are compared: the attention mass on the first positions (sinks), on the most recent ones
//! (locality), and of the rest the share of the heaviest sixteenth (heavy hitters), each sampled over queries of some layers;
//! the ranges of values and the entropy of the lens, by layer. Value scales, tail and entropies are set from quantiles and
//! means; the three bonuses are found by bisection in turn, since each mass grows with its own. What a generator cannot
//! express (differences between heads, correlations) shows in the distances of the report.

use super::{SinksParams, SynthLength, SynthSpec, Synthetic};
use crate::num;
use crate::trace::{SequenceMeta, TraceError, TraceSource};
use crate::types::{LayerIdx, ModelShape, QHead};
use ndarray::Axis;
use serde::Serialize;

/// Sequences and layers whose attention is looked at, at most.
const MOST_SEQUENCES: usize = 3;
const MOST_LAYERS: usize = 3;
/// Queries of a head that are looked at, at most.
const MOST_QUERIES: usize = 16;
/// First positions that count as sinks.
const SINKS: usize = 4;
/// Most recent positions that count as local.
const RECENT: usize = 16;
/// Longer sequences are looked at up to here.
const MOST_TOKENS: u32 = 2048;
/// Values and entropies of a layer that are compared, at most.
const MOST_SAMPLES: usize = 1 << 14;

/// One statistic of both traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitRow {
    /// What was measured.
    pub statistic: &'static str,
    /// The layer; absent for statistics over all that were looked at.
    pub layer: Option<u16>,
    /// 10 %, 50 % and 90 % quantiles of the recorded trace.
    pub recorded: [f64; 3],
    /// The same of the generated one.
    pub synthetic: [f64; 3],
    /// Observations of each.
    pub observations: [u64; 2],
    /// Kolmogorov–Smirnov distance: the largest difference between the two distribution functions, 0 (equal) to 1.
    pub ks: f64,
}

/// The fitted parameters and how well they do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Parameters of `sinks-and-hitters`.
    pub params: SinksParams,
    /// One row a statistic.
    pub rows: Vec<FitRow>,
}

/// What is compared.
struct Statistics {
    sink_mass: Vec<f64>,
    recent_mass: Vec<f64>,
    heavy_share: Vec<f64>,
    /// `[layer]`
    ranges: Vec<Vec<f64>>,
    /// `[layer]`; empty without lens facts.
    entropies: Vec<Vec<f64>>,
}

/// Fits the generator to `source`. `seed` is that of the generated trace. The trace needs queries, keys and values; lens facts are
/// used when they are there.
///
/// # Errors
/// When the trace has no tensors or cannot be read, or no sequence is long enough to tell anything.
pub fn fit(source: &dyn TraceSource, seed: u64) -> Result<Fit, TraceError> {
    let sequences = chosen(source.sequences());
    if sequences.is_empty() {
        return Err(TraceError::Spec {
            what: "like",
            found: "no sequence of more than 32 tokens".to_owned(),
            accepted: "one at least".to_owned(),
        });
    }
    let recorded = measure(source, &sequences)?;
    let spec = SynthSpec {
        shape: *source.shape(),
        lengths: sequences
            .iter()
            .map(|meta| {
                let len = meta.len.min(MOST_TOKENS);
                SynthLength { prompt_len: meta.prompt_len.min(len), len }
            })
            .collect(),
        seed,
    };
    let mut params = SinksParams {
        sinks: 1,
        entropy_nats: recorded.entropies.iter().map(|values| mean(values)).collect(),
        value_scale: vec![1.0; recorded.ranges.len()],
        ..SinksParams::default()
    };
    fit_values(&mut params, &recorded, &spec)?;
    fit_attention(&mut params, &recorded, &spec)?;
    let synthetic = generated(&params, &spec)?;
    let synthetic = measure(&synthetic, &chosen(synthetic.sequences()))?;
    Ok(Fit { rows: rows(&recorded, &synthetic), params })
}

fn generated(params: &SinksParams, spec: &SynthSpec) -> Result<Synthetic, TraceError> {
    let params = serde_json::to_value(params).unwrap_or_default();
    Synthetic::with_params("sinks-and-hitters", spec.clone(), params)
}

/// Sequences that say something, evenly chosen.
fn chosen(sequences: &[SequenceMeta]) -> Vec<SequenceMeta> {
    let long: Vec<&SequenceMeta> = sequences.iter().filter(|meta| meta.len > 32).collect();
    every(long.len(), MOST_SEQUENCES).map(|at| long[at].clone()).collect()
}

/// At most `most` of the numbers below `count`, evenly spread.
fn every(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(most);
    (0..taken).map(move |at| at * count / taken.max(1))
}

fn measure(source: &dyn TraceSource, sequences: &[SequenceMeta]) -> Result<Statistics, TraceError> {
    let shape = source.shape();
    let layers = usize::from(shape.layers);
    let mut found = Statistics {
        sink_mass: Vec::new(),
        recent_mass: Vec::new(),
        heavy_share: Vec::new(),
        ranges: vec![Vec::new(); layers],
        entropies: vec![Vec::new(); layers],
    };
    let looked_at: Vec<usize> = every(layers, MOST_LAYERS).collect();
    for meta in sequences {
        for layer in shape.layer_ids() {
            let tensors = source.layer(meta.seq, layer)?;
            for head in tensors.v.axis_iter(Axis(0)) {
                // The sinks are no measure of the others.
                for value in head.axis_iter(Axis(0)).skip(SINKS) {
                    found.ranges[layer.idx()].push(f64::from(num::range(&value.to_vec())));
                }
            }
            if looked_at.contains(&layer.idx()) {
                attention(shape, meta.len.min(MOST_TOKENS), &tensors, &mut found);
            }
        }
        if let Ok(rows) = source.lens(meta.seq) {
            for row in rows {
                found.entropies[row.layer.idx()].push(f64::from(row.entropy_nats));
            }
        }
    }
    for values in found.ranges.iter_mut().chain(&mut found.entropies) {
        if values.len() > MOST_SAMPLES {
            *values = every(values.len(), MOST_SAMPLES).map(|at| values[at]).collect();
        }
    }
    if found.entropies.iter().all(Vec::is_empty) {
        found.entropies.clear();
    }
    Ok(found)
}

fn attention(shape: &ModelShape, len: u32, tensors: &crate::trace::LayerTensors, found: &mut Statistics) {
    let len = len as usize;
    let root = f32::from(shape.head_dim).sqrt();
    let queries: Vec<usize> =
        every(len / 2, MOST_QUERIES).map(|at| len - 1 - at).filter(|&at| at > 31).collect();
    for head in 0..shape.q_heads {
        let (q, k) = (
            tensors.q.index_axis(Axis(0), usize::from(head)),
            tensors.k.index_axis(Axis(0), shape.kv_of(QHead::new(head)).idx()),
        );
        for &at in &queries {
            let query = q.row(at).to_vec();
            let mut row: Vec<f32> =
                (0..=at).map(|key| num::dot(&query, &k.row(key).to_vec()) / root).collect();
            num::softmax(&mut row);
            let sink = num::sum(&row[..SINKS]);
            let recent = num::sum(&row[at + 1 - RECENT..]);
            let rest = &mut row[SINKS..at + 1 - RECENT];
            let total = num::sum(rest);
            rest.sort_by(|a, b| b.total_cmp(a));
            let heavy = num::sum(&rest[..rest.len().div_ceil(16)]);
            found.sink_mass.push(sink.into());
            found.recent_mass.push(recent.into());
            if total > 0.0 {
                found.heavy_share.push(f64::from(heavy / total));
            }
        }
    }
}

/// Scale by layer from medians, and the tail from how far the wide ones stick out.
fn fit_values(params: &mut SinksParams, recorded: &Statistics, spec: &SynthSpec) -> Result<(), TraceError> {
    let spread = |statistics: &Statistics| {
        let spreads =
            statistics.ranges.iter().map(|values| quantile(values, 0.95) / quantile(values, 0.5).max(1e-12));
        mean(&spreads.collect::<Vec<_>>())
    };
    let wanted = spread(recorded);
    // A longer tail is a wider spread.
    let (mut low, mut high) = (0.8_f64, 40.0_f64);
    for _ in 0..8 {
        params.value_tail = (low * high).sqrt();
        let found = values_only(params, spec)?;
        if spread(&found) > wanted { low = params.value_tail } else { high = params.value_tail }
    }
    let found = values_only(params, spec)?;
    for (scale, (wanted, found)) in
        params.value_scale.iter_mut().zip(recorded.ranges.iter().zip(&found.ranges))
    {
        *scale = quantile(wanted, 0.5) / quantile(found, 0.5).max(1e-12);
    }
    Ok(())
}

/// Ranges of a short generated trace.
fn values_only(params: &SinksParams, spec: &SynthSpec) -> Result<Statistics, TraceError> {
    let lengths = vec![SynthLength { prompt_len: 1, len: 400 }];
    let source = generated(params, &SynthSpec { lengths, ..spec.clone() })?;
    let mut ranges = Vec::new();
    for layer in spec.shape.layer_ids() {
        let values = source.layer(crate::types::SeqIdx::new(0), layer)?.v;
        let rows = values.rows().into_iter().map(|row| f64::from(num::range(&row.to_vec())));
        ranges.push(rows.collect());
    }
    let empty = Vec::new;
    Ok(Statistics {
        sink_mass: empty(),
        recent_mass: empty(),
        heavy_share: empty(),
        ranges,
        entropies: Vec::new(),
    })
}

/// Finds the three bonuses in turn, twice.
fn fit_attention(
    params: &mut SinksParams,
    recorded: &Statistics,
    spec: &SynthSpec,
) -> Result<(), TraceError> {
    let wanted = [mean(&recorded.sink_mass), mean(&recorded.recent_mass), mean(&recorded.heavy_share)];
    for _ in 0..2 {
        for (at, wanted) in wanted.into_iter().enumerate() {
            let (mut low, mut high) = (0.0, if at == 2 { 8.0 } else { 24.0 });
            for _ in 0..7 {
                let middle = f64::midpoint(low, high);
                *bonus(params, at) = middle;
                let found = attention_only(params, spec)?;
                let found = [mean(&found.sink_mass), mean(&found.recent_mass), mean(&found.heavy_share)][at];
                if found < wanted { low = middle } else { high = middle }
            }
            *bonus(params, at) = f64::midpoint(low, high);
        }
    }
    Ok(())
}

fn bonus(params: &mut SinksParams, at: usize) -> &mut f64 {
    match at {
        0 => &mut params.sink_bonus,
        1 => &mut params.locality,
        _ => &mut params.hitter_bonus,
    }
}

/// Attention of one layer of each generated sequence: layers are alike but for their noise.
fn attention_only(params: &SinksParams, spec: &SynthSpec) -> Result<Statistics, TraceError> {
    let source = generated(params, spec)?;
    let empty = Vec::new;
    let mut found = Statistics {
        sink_mass: empty(),
        recent_mass: empty(),
        heavy_share: empty(),
        ranges: Vec::new(),
        entropies: Vec::new(),
    };
    for meta in source.sequences() {
        let tensors = source.layer(meta.seq, LayerIdx::new(0))?;
        attention(&spec.shape, meta.len, &tensors, &mut found);
    }
    Ok(found)
}

fn rows(recorded: &Statistics, synthetic: &Statistics) -> Vec<FitRow> {
    let row = |statistic, layer, a: &[f64], b: &[f64]| FitRow {
        statistic,
        layer,
        recorded: [0.1, 0.5, 0.9].map(|q| quantile(a, q)),
        synthetic: [0.1, 0.5, 0.9].map(|q| quantile(b, q)),
        observations: [a.len() as u64, b.len() as u64],
        ks: ks(a, b),
    };
    let mut rows = vec![
        row("attention mass on the first 4 positions", None, &recorded.sink_mass, &synthetic.sink_mass),
        row("attention mass on the last 16 positions", None, &recorded.recent_mass, &synthetic.recent_mass),
        row("share of the heaviest 1/16 of the rest", None, &recorded.heavy_share, &synthetic.heavy_share),
    ];
    for (statistic, a, b) in [
        ("range of values", &recorded.ranges, &synthetic.ranges),
        ("lens entropy, nats", &recorded.entropies, &synthetic.entropies),
    ] {
        rows.extend((0_u16..).zip(a.iter().zip(b)).map(|(layer, (a, b))| row(statistic, Some(layer), a, b)));
    }
    rows
}

#[expect(clippy::cast_precision_loss, reason = "samples are few")]
fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The value below which a share `q` of the samples lies; 0 for none.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "samples are few and the share is in 0..=1"
)]
fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((q * (sorted.len().max(1) - 1) as f64).round() as usize).copied().unwrap_or(0.0)
}

/// Kolmogorov–Smirnov distance of two samples; 1 when one of them is empty and the other is not.
#[expect(clippy::cast_precision_loss, reason = "samples are few")]
fn ks(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return if a.is_empty() && b.is_empty() { 0.0 } else { 1.0 };
    }
    let sorted = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let (a, b) = (sorted(a), sorted(b));
    let (mut i, mut j, mut worst) = (0, 0, 0.0_f64);
    while i < a.len() && j < b.len() {
        let value = a[i].min(b[j]);
        while i < a.len() && a[i] <= value {
            i += 1;
        }
        while j < b.len() && b[j] <= value {
            j += 1;
        }
        worst = worst.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_known_samples() {
        let is = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}");
        is(ks(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), 0.0);
        is(ks(&[1.0, 2.0], &[3.0, 4.0]), 1.0);
        // Half of the first lies below all of the second.
        is(ks(&[1.0, 5.0], &[4.0, 5.0]), 0.5);
        is(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
    }

    #[test]
    fn a_trace_of_the_generator_itself_is_found_again() {
        let shape = ModelShape { layers: 2, q_heads: 2, kv_heads: 1, head_dim: 16, hidden: 16, vocab: 300 };
        let spec = SynthSpec { shape, lengths: vec![SynthLength { prompt_len: 300, len: 600 }], seed: 5 };
        let truth = SinksParams {
            sink_bonus: 8.0,
            locality: 4.5,
            hitter_bonus: 3.0,
            value_tail: 3.0,
            value_scale: vec![1.0, 4.0],
            entropy_nats: vec![4.0, 1.5],
            ..SinksParams::default()
        };
        let source = generated(&truth, &spec).unwrap();
        let fitted = fit(&source, 77).unwrap();
        let ratio = fitted.params.value_scale[1] / fitted.params.value_scale[0];
        assert!((3.2..5.0).contains(&ratio), "{ratio}");
        assert!((fitted.params.sink_bonus - 8.0).abs() < 1.5, "{:?}", fitted.params);
        for row in &fitted.rows {
            assert!(row.ks < 0.3, "{row:?}");
        }
        // The default parameters are another trace: the distance sees it.
        let other = generated(&SinksParams::default(), &spec).unwrap();
        let (a, b) = (
            measure(&source, &chosen(source.sequences())).unwrap(),
            measure(&other, &chosen(other.sequences())).unwrap(),
        );
        assert!(rows(&a, &b).iter().any(|row| row.ks > 0.5));
    }
}
