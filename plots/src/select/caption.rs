//! The lines below a figure: evidence, how much is behind it, what bands are.

use super::Reader;
use crate::number;
use kvlab_sim::metrics::metric;
use kvlab_sim::results::Results;

/// What the bands of cell metrics are.
pub(crate) const BAND: &str = "Band: 95 % bootstrap interval over recorded problems.";

/// The evidence words of `metrics`, each once, in that order.
pub(crate) fn evidence(metrics: &[&str]) -> Vec<&'static str> {
    let mut words: Vec<&str> = Vec::new();
    for word in metrics.iter().filter_map(|id| metric(id)).map(|metric| metric.evidence.word()) {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words
}

/// The axis label of a metric with its unit; the id when the registry does not know it.
pub(crate) fn label(id: &str) -> String {
    match metric(id) {
        // A label that names its unit already is complete.
        Some(metric) if metric.label.ends_with(metric.unit) => metric.label.to_owned(),
        Some(metric) => format!("{} ({})", metric.label, metric.unit),
        None => id.to_owned(),
    }
}

/// Whether any source, or any of the rows, was generated.
pub(crate) fn is_synthetic(results: &Results) -> bool {
    let column = Reader::new(&results.cells, "synthetic");
    results.manifest.sources.iter().any(|source| source.synthetic)
        || (0..results.cells.rows()).any(|row| column.truth(row) == Some(true))
}

/// `proxy · 12 sequences`, with the watermark when data were generated.
pub(crate) fn opening(results: &Results, metrics: &[&str], sequences: Option<String>) -> String {
    let mut parts = vec![evidence(metrics).join(" and ")];
    parts.extend(sequences);
    if is_synthetic(results) {
        parts.push("synthetic trace: generated, not recorded from a model".to_owned());
    }
    let line = parts.join(" \u{b7} ");
    let mut chars = line.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect::<String>() + ".").unwrap_or_default()
}

/// How many sequences are behind the cells of `rows`.
pub(crate) fn sequences_of(results: &Results, rows: impl IntoIterator<Item = usize>) -> Option<String> {
    let column = Reader::new(&results.cells, "sequences");
    let counts: Vec<i64> = rows.into_iter().filter_map(|row| column.int(row)).collect();
    let (least, most) = (*counts.iter().min()?, *counts.iter().max()?);
    Some(match (least == most, most) {
        (_, 0) => return None,
        (true, 1) => "1 sequence".to_owned(),
        (true, _) => format!("{} sequences", number::count(most)),
        (false, _) => format!("{} to {} sequences", number::count(least), number::count(most)),
    })
}

/// That only the first of so many recorded sequences is shown, or another one.
pub(crate) fn one_sequence(results: &Results, which: &str) -> Option<String> {
    let all = sequences_recorded(results)?;
    Some(if all.starts_with("1 ") { all } else { format!("{which} of {all}") })
}

/// How many sequences the recording has.
pub(crate) fn sequences_recorded(results: &Results) -> Option<String> {
    let total: i64 = results.manifest.sources.iter().map(|source| i64::from(source.sequences)).sum();
    match total {
        0 => None,
        1 => Some("1 sequence".to_owned()),
        _ => Some(format!("{} sequences", number::count(total))),
    }
}
