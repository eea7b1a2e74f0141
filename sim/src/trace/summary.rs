//! What a trace holds: bytes by field, which studies it can serve, and what is missing for the others.

use super::facts_schema::TABLES;
use super::reader::Trace;
use super::shard::tensor_fields;
use super::source::TraceSource;
use super::{TraceError, field};
use crate::table::Column;
use crate::types::SeqIdx;
use serde::Serialize;
use std::collections::BTreeMap;

/// A field and its size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldSize {
    /// Its name.
    pub name: String,
    /// Its axes, outermost first.
    pub axes: Vec<String>,
    /// Its storage type.
    pub dtype: String,
    /// Its unit; empty for pure numbers.
    pub unit: String,
    /// Bytes in the files, compressed where they are.
    pub bytes: u64,
    /// What it says; empty for a field that this program does not know.
    pub doc: &'static str,
}

/// A kind of study, and whether the trace can serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StudySupport {
    /// The study.
    pub study: &'static str,
    /// What is missing for it; empty when it can be served.
    pub missing: Vec<&'static str>,
}

/// A trace at a glance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Fields by size, largest first.
    pub fields: Vec<FieldSize>,
    /// Studies.
    pub studies: Vec<StudySupport>,
    /// Bytes of all files that the manifest names.
    pub bytes: u64,
}

/// Studies, and the fields that each needs. `rope.inv_freq` stands for the manifest's frequencies.
const STUDIES: &[(&str, &[&str])] = &[
    ("eviction", &["q", "k", "v"]),
    ("eviction by what a value does to the residual stream", &["q", "k", "v", "weights.w_o"]),
    ("eviction by keys or queries before rotation", &["q", "k", "v", "rope.inv_freq"]),
    ("layer exit by entropy", &["lens.top1_token"]),
    ("layer exit by entropy without the final norm", &["lens.raw_entropy_nats"]),
    ("layer exit by likeness of states", &["hidden"]),
    (
        "lens facts checked against hidden states",
        &["lens.top1_token", "hidden", "weights.final_norm", "weights.unembedding"],
    ),
    ("prefix sharing by similarity", &["branches.depth", "branch_similarity.cos_last"]),
    ("exact prefix sharing, block caches", &["branches.depth or requests.timestamp_ms"]),
    ("verify skip", &["branches.depth"]),
    ("decode exit, confidences over answers", &["branches.depth", "branch_steps.token"]),
    ("verifier layer exit", &["branches.depth", "branch_verdicts.p_yes"]),
];

/// Sums up a trace.
///
/// # Errors
/// When a facts table is damaged.
pub fn summary(trace: &Trace) -> Result<Summary, TraceError> {
    let manifest = trace.manifest();
    let holds = |needed: &str| match needed {
        "rope.inv_freq" => manifest.rope.as_ref().is_some_and(|rope| rope.inv_freq.is_some()),
        either => either.split(" or ").any(|name| manifest.holds(name)),
    };
    let studies = STUDIES.iter().map(|(study, needed)| StudySupport {
        study,
        missing: needed.iter().copied().filter(|name| !holds(name)).collect(),
    });
    let mut fields = Vec::new();
    for info in &manifest.fields {
        fields.push(FieldSize {
            name: info.name.clone(),
            axes: info.axes.clone(),
            dtype: info.dtype.clone(),
            unit: info.unit.clone(),
            bytes: bytes(trace, &info.name)?,
            doc: field(&info.name).map_or("", |field| field.doc),
        });
    }
    fields.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    let bytes = manifest.shards.iter().map(|shard| shard.bytes).sum::<u64>()
        + manifest.tables.iter().map(|table| table.bytes).sum::<u64>()
        + manifest.weights.iter().map(|weight| weight.bytes).sum::<u64>()
        + manifest.times.as_ref().map_or(0, |times| times.bytes);
    Ok(Summary { fields, studies: studies.collect(), bytes })
}

fn bytes(trace: &Trace, name: &str) -> Result<u64, TraceError> {
    let manifest = trace.manifest();
    let Some((table, column)) = name.split_once('.') else {
        let known = tensor_fields(manifest).into_iter().find(|field| field.name == name);
        let tokens: u64 = manifest.sequences.iter().map(|info| u64::from(info.len)).sum();
        return Ok(known.map_or(0, |field| {
            let heads = field.heads(trace.shape()).map_or(1, u64::from);
            let width = field.width(trace.shape()) as u64;
            tokens * u64::from(trace.shape().layers) * heads * width * field.scalar_bytes()
        }));
    };
    if table == "weights" {
        let is_of = |path: &str| path.trim_end_matches(".safetensors").ends_with(column);
        return Ok(manifest.weights.iter().filter(|info| is_of(&info.path)).map(|info| info.bytes).sum());
    }
    match TABLES.iter().find(|known| known.name() == table) {
        Some(known) => Ok(trace.table_file(known.path)?.column_bytes(column)),
        None => Ok(0),
    }
}

/// Numbers about one field: a row a layer for tensors, one row for the rest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldStatistics {
    /// The layer, for tensors.
    pub layer: Option<u16>,
    /// Values.
    pub count: u64,
    /// Absent ones among them.
    pub absent: u64,
    /// Smallest; absent for texts.
    pub min: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Mean; of truth values, the share that is true.
    pub mean: Option<f64>,
}

/// Numbers about the field called `name`.
///
/// # Errors
/// When the trace does not hold it, or it cannot be read.
pub fn statistics(trace: &Trace, name: &str) -> Result<Vec<FieldStatistics>, TraceError> {
    let manifest = trace.manifest();
    let Some(known) = field(name).filter(|_| manifest.holds(name)) else {
        return Err(TraceError::UnknownField { field: name.to_owned(), held: manifest.field_names() });
    };
    if known.is_tensor() {
        return trace
            .shape()
            .layer_ids()
            .map(|layer| {
                let mut tally = Tally { layer: Some(layer.get()), ..Tally::default() };
                for info in &manifest.sequences {
                    let seq = SeqIdx::new(info.seq);
                    let mut start = 0;
                    while start < info.len {
                        let window = start..start.saturating_add(manifest.shard_tokens).min(info.len);
                        start = window.end;
                        match name {
                            "hidden" => tally.add(trace.hidden_window(seq, layer, window)?.iter()),
                            "q" => tally.add(trace.layer_window(seq, layer, window)?.q.iter()),
                            "k" => tally.add(trace.layer_window(seq, layer, window)?.k.iter()),
                            _ => tally.add(trace.layer_window(seq, layer, window)?.v.iter()),
                        }
                    }
                }
                Ok(tally.finish())
            })
            .collect();
    }
    if name == "weights.w_o" {
        return trace
            .shape()
            .layer_ids()
            .map(|layer| {
                let mut tally = Tally { layer: Some(layer.get()), ..Tally::default() };
                tally.add(trace.w_o(layer)?.iter());
                Ok(tally.finish())
            })
            .collect();
    }
    if let Some((table, column)) = name.split_once('.')
        && let Some(table) = TABLES.iter().find(|known| known.name() == table)
    {
        return of_column(trace, table.path, column, known.axes.contains(&"layer"));
    }
    let mut tally = Tally::default();
    match name {
        "weights.final_norm" => tally.add(trace.final_norm()?.iter()),
        "weights.unembedding" => tally.add(trace.unembedding()?.iter()),
        _ => {}
    }
    Ok(vec![tally.finish()])
}

/// A column of a table, by layer where it has one.
fn of_column(
    trace: &Trace,
    table: &'static str,
    column: &str,
    has_layers: bool,
) -> Result<Vec<FieldStatistics>, TraceError> {
    let file = trace.table_file(table)?;
    let mut tallies: BTreeMap<Option<u16>, Tally> = BTreeMap::new();
    for group in 0..file.groups() {
        let rows = file.read(file.group(group)).map_err(TraceError::table)?;
        let Some(values) = rows.column(column) else { continue };
        let layers = rows.int("layer").ok().filter(|_| has_layers);
        for row in 0..rows.rows() {
            let layer = layers.and_then(|layers| u16::try_from(layers[row]?).ok());
            tallies.entry(layer).or_insert_with(|| Tally { layer, ..Tally::default() }).value(values, row);
        }
    }
    if tallies.is_empty() {
        tallies.insert(None, Tally::default());
    }
    Ok(tallies.into_values().map(Tally::finish).collect())
}

#[derive(Default)]
struct Tally {
    layer: Option<u16>,
    count: u64,
    absent: u64,
    numbers: u64,
    sum: f64,
    bounds: Option<(f64, f64)>,
}

impl Tally {
    fn number(&mut self, value: f64) {
        self.numbers += 1;
        self.sum += value;
        let (low, high) = self.bounds.unwrap_or((value, value));
        self.bounds = Some((low.min(value), high.max(value)));
    }

    fn add<'a>(&mut self, values: impl Iterator<Item = &'a f32>) {
        for &value in values {
            self.count += 1;
            self.number(f64::from(value));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
    fn value(&mut self, column: &Column, row: usize) {
        self.count += 1;
        let number = match column {
            Column::Int(values) => values[row].map(|value| value as f64),
            Column::Real(values) => values[row],
            Column::Bool(values) => values[row].map(f64::from),
            Column::Text(values) => {
                self.absent += u64::from(values[row].is_none());
                return;
            }
        };
        match number {
            Some(number) => self.number(number),
            None => self.absent += 1,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
    fn finish(self) -> FieldStatistics {
        FieldStatistics {
            layer: self.layer,
            count: self.count,
            absent: self.absent,
            min: self.bounds.map(|(low, _)| low),
            max: self.bounds.map(|(_, high)| high),
            mean: (self.numbers > 0).then(|| self.sum / self.numbers as f64),
        }
    }
}
