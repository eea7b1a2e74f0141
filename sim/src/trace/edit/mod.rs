//! Making a trace from others: a part of one, several joined, another storage type. The result is written and sealed like
//! a recording, names what it was made from, and is read in pieces of one shard.

mod copy;
mod jsonl;

pub use jsonl::to_jsonl;

use super::facts_schema::RAW_LENS;
use super::verify::check_digests;
use super::{
    DerivedFrom, Dtype, Leftover, LensForms, Trace, TraceError, TraceHeader, TraceSource, TraceWriter,
};
use super::{StoredBranches, StoredFields, StoredRequests, StoredWeights};
use crate::types::LayerIdx;
use serde::Serialize;
use std::path::Path;

/// What of a trace is taken. Everything, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Sequences, in this order; all when absent.
    pub sequences: Option<Vec<u32>>,
    /// Layers, in this order; all when absent. Branch facts are left out then, and lens facts unless the last layer is last.
    pub layers: Option<Vec<u16>>,
    /// At most so many positions of each sequence, from its first. What was found in the text that is cut off (answer, why it
    /// ended) is left out.
    pub first: Option<u32>,
    /// Problems with branch trees, in this order; all when absent.
    pub problems: Option<Vec<u32>>,
}

/// How things are stored; as they were, where absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Storage type of queries, keys, values and weight matrices: `F32` or `F16`.
    pub dtype: Option<Dtype>,
    /// Positions a shard holds.
    pub shard_tokens: Option<u32>,
}

/// What became of an edit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EditReport {
    /// SHA-256 (hex) of the new manifest.
    pub digest: String,
    /// Sequences written.
    pub sequences: u32,
    /// Tokens over all of them.
    pub tokens: u64,
    /// Problems written.
    pub problems: u32,
    /// What the source had and the result has not, with the reason.
    pub left_out: Vec<String>,
    /// What rounding to a smaller storage type cost, when there was any.
    pub loss: Option<Loss>,
}

/// What rounding cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Loss {
    /// Values that were rounded.
    pub values: u64,
    /// Those that changed.
    pub changed: u64,
    /// Those that became zero.
    pub to_zero: u64,
    /// Largest absolute change.
    pub max_abs: f32,
    /// Largest change relative to the value, over values of at least 2⁻¹⁴ (normal half floats).
    pub max_rel: f32,
}

impl Loss {
    fn add(&mut self, value: f32) {
        let rounded = half::f16::from_f32(value).to_f32();
        self.values += 1;
        if rounded.to_bits() == value.to_bits() {
            return;
        }
        self.changed += 1;
        self.to_zero += u64::from(rounded == 0.0 && value != 0.0);
        let change = (rounded - value).abs();
        self.max_abs = self.max_abs.max(change);
        if value.abs() >= 6.103_515_6e-5 {
            self.max_rel = self.max_rel.max(change / value.abs());
        }
    }
}

/// Writes the part `selection` of `trace` to `target`, stored as `storage` says. `how` is what was asked for, for the manifest.
///
/// # Errors
/// When there is no such part, a value does not fit the storage type, or as [`TraceWriter`].
pub fn slice(
    trace: &Trace,
    selection: &Selection,
    storage: Storage,
    target: &Path,
    how: &str,
) -> Result<EditReport, TraceError> {
    write(&[(trace, selection.clone())], storage, target, how)
}

/// Joins traces of the same model and settings: the sequences and problems of the first, then of the second, and so on.
///
/// # Errors
/// When they do not belong together, with the first part of their headers that differs, or as [`TraceWriter`].
pub fn merge(traces: &[&Trace], target: &Path, how: &str) -> Result<EditReport, TraceError> {
    let parts: Vec<_> = traces.iter().map(|trace| (*trace, Selection::default())).collect();
    write(&parts, Storage::default(), target, how)
}

fn write(
    parts: &[(&Trace, Selection)],
    storage: Storage,
    target: &Path,
    how: &str,
) -> Result<EditReport, TraceError> {
    let Some(((first, selection), others)) = parts.split_first() else {
        return Err(TraceError::chunk("merge", "no trace", "at least one"));
    };
    for (other, _) in others {
        check_same(first, other)?;
    }
    for (trace, selection) in parts {
        check_selection(trace, selection)?;
    }
    // What is written gets digests of its own: damage would be sealed with it.
    for (trace, _) in parts {
        check_digests(trace)?;
    }
    let mut left_out = Vec::new();
    let mut header = header(first, selection, storage, &mut left_out);
    if header.times && !others.is_empty() {
        header.times = false;
        left_out.push("measured times: each trace has its own".to_owned());
    }
    let is_of_one_seed = others.iter().all(|(other, _)| seeds(other) == seeds(first));
    let derived = |trace: &Trace| {
        let (seed, generator) = seeds(trace);
        let how = match generator {
            _ if is_of_one_seed => how.to_owned(),
            Some(generator) => format!("{how} (seed {generator})"),
            None => format!("{how} (seed {seed})"),
        };
        DerivedFrom { digest: trace.digest(), how }
    };
    header.derived_from = parts.iter().map(|(trace, _)| derived(trace)).collect();
    if others.iter().any(|(other, _)| other.manifest().workload != header.workload) {
        let names = parts.iter().map(|(trace, _)| trace.manifest().workload.name.as_str());
        header.workload.name = names.collect::<Vec<_>>().join("+");
        header.workload.file_sha256 = None;
    }
    let writer = TraceWriter::create(target, header, Leftover::Refuse)?;
    let mut copy = copy::Copy::new(writer, storage.dtype == Some(Dtype::F16));
    let mut fill = || {
        copy.weights(first, selection)?;
        copy.times(first)?;
        parts.iter().try_for_each(|(trace, selection)| copy.part(trace, selection, &mut left_out))
    };
    let outcome = match fill() {
        Ok(()) => copy.finish(left_out),
        Err(error) => {
            drop(copy);
            Err(error)
        }
    };
    if outcome.is_err() {
        super::folder::discard_unfinished(target);
    }
    outcome
}

/// The seed of a recording, and that of its generator.
fn seeds(trace: &Trace) -> (u64, Option<u64>) {
    (trace.manifest().seed, trace.manifest().synthetic.as_ref().map(|synthetic| synthetic.seed))
}

/// Refuses what cannot be taken before anything is written.
fn check_selection(trace: &Trace, selection: &Selection) -> Result<(), TraceError> {
    fn below(what: &'static str, mut given: impl Iterator<Item = u64>, count: u64) -> Result<(), TraceError> {
        match given.find(|at| *at >= count) {
            Some(given) => Err(TraceError::OutOfRange { what, given, count }),
            None => Ok(()),
        }
    }
    let manifest = trace.manifest();
    below(
        "sequence",
        selection.sequences.iter().flatten().map(|&seq| u64::from(seq)),
        manifest.sequences.len() as u64,
    )?;
    below(
        "layer",
        selection.layers.iter().flatten().map(|&layer| u64::from(layer)),
        u64::from(manifest.shape.layers),
    )?;
    below(
        "problem",
        selection.problems.iter().flatten().map(|&problem| u64::from(problem)),
        u64::from(trace.problems()),
    )?;
    for (what, list) in [
        ("layers", selection.layers.as_ref().map(|list| distinct(list))),
        ("sequences", selection.sequences.as_ref().map(|list| distinct(list))),
        ("problems", selection.problems.as_ref().map(|list| distinct(list))),
    ] {
        if list == Some(false) {
            return Err(TraceError::chunk(what, "one twice", "each once"));
        }
    }
    if selection.layers.as_ref().is_some_and(Vec::is_empty) || selection.first == Some(0) {
        return Err(TraceError::chunk("selection", "no layer or no position", "at least one"));
    }
    Ok(())
}

fn distinct<T: Ord + Copy>(list: &[T]) -> bool {
    list.iter().copied().collect::<std::collections::BTreeSet<T>>().len() == list.len()
}

/// Refuses to join what was not made alike.
fn check_same(first: &Trace, other: &Trace) -> Result<(), TraceError> {
    let (a, b) = (first.manifest(), other.manifest());
    let differs = |part: &str| {
        let found = format!("another `{part}` in {}", other.path().display());
        Err(TraceError::chunk("merge", found, format!("that of {}", first.path().display())))
    };
    let synthetic =
        |manifest: &super::Manifest| manifest.synthetic.as_ref().map(|info| info.generator.clone());
    for (part, same) in [
        ("model", a.model == b.model),
        ("shape", a.shape == b.shape),
        ("rope", a.rope == b.rope),
        ("synthetic", synthetic(a) == synthetic(b)),
        ("runtime", a.runtime == b.runtime),
        ("decoding", a.decoding == b.decoding),
        ("fields", a.fields == b.fields),
        ("lens_top", a.lens_top == b.lens_top),
        ("final_norm", a.final_norm == b.final_norm),
        ("weights", a.weights == b.weights),
        (
            "requests",
            a.requests.as_ref().map(|info| info.block_tokens)
                == b.requests.as_ref().map(|info| info.block_tokens),
        ),
        (
            "branches",
            a.branches.as_ref().map(|info| (info.yes_token, info.no_token))
                == b.branches.as_ref().map(|info| (info.yes_token, info.no_token)),
        ),
    ] {
        if !same {
            return differs(part);
        }
    }
    Ok(())
}

/// The header of the result, and what it cannot hold.
fn header(trace: &Trace, selection: &Selection, storage: Storage, left_out: &mut Vec<String>) -> TraceHeader {
    let manifest = trace.manifest();
    let dtype = |name: &str| {
        let stored =
            [Dtype::F32, Dtype::F16].into_iter().find(|dtype| manifest.dtype(name) == Some(dtype.word()));
        stored.map(|stored| storage.dtype.unwrap_or(stored))
    };
    let mut shape = manifest.shape;
    let mut keeps_last = true;
    if let Some(layers) = &selection.layers {
        shape.layers = u16::try_from(layers.len()).unwrap_or(u16::MAX);
        keeps_last = layers.last() == Some(&(manifest.shape.layers - 1));
    }
    let all_layers = selection.layers.is_none();
    let forms = manifest
        .holds("lens.top1_token")
        .then(|| if manifest.holds(RAW_LENS[0]) { LensForms::Both } else { LensForms::Normed });
    if forms.is_some() && !keeps_last {
        left_out
            .push("lens facts: they agree or not with the last layer, which is not taken last".to_owned());
    }
    if manifest.branches.is_some() && !all_layers {
        left_out.push("branch facts: they are about all layers".to_owned());
    }
    if manifest.times.is_some() && !all_layers {
        left_out.push("measured times: they are about all layers".to_owned());
    }
    for field in manifest.fields.iter().filter(|field| super::field(&field.name).is_none()) {
        left_out.push(format!("{}: this program does not know it", field.name));
    }
    TraceHeader {
        synthetic: manifest.synthetic.clone(),
        tool: super::ToolInfo {
            name: "kvlab".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: None,
        },
        model: manifest.model.clone(),
        shape,
        rope: manifest.rope.clone(),
        runtime: manifest.runtime.clone(),
        decoding: manifest.decoding.clone(),
        workload: manifest.workload.clone(),
        seed: manifest.seed,
        shard_tokens: storage.shard_tokens.unwrap_or(manifest.shard_tokens),
        fields: StoredFields {
            hidden: manifest.holds("hidden"),
            attention: dtype("q"),
            lens: forms.filter(|_| keeps_last),
            lens_top: if keeps_last { manifest.lens_top } else { 0 },
        },
        weights: StoredWeights {
            w_o: dtype("weights.w_o"),
            final_norm: manifest.final_norm.clone(),
            unembedding: dtype("weights.unembedding"),
        },
        branches: manifest.branches.as_ref().filter(|_| all_layers).map(|branches| StoredBranches {
            similarity: manifest.holds("branch_similarity.cos_last"),
            steps: manifest.holds("branch_steps.token"),
            verdicts: manifest.holds("branch_verdicts.p_yes"),
            yes_token: branches.yes_token,
            no_token: branches.no_token,
        }),
        requests: manifest
            .requests
            .as_ref()
            .map(|requests| StoredRequests { block_tokens: requests.block_tokens }),
        derived_from: Vec::new(),
        times: manifest.times.is_some() && all_layers,
    }
}

/// The layers taken, in the order of the result.
fn layers(trace: &Trace, selection: &Selection) -> Vec<LayerIdx> {
    match &selection.layers {
        Some(layers) => layers.iter().copied().map(LayerIdx::new).collect(),
        None => trace.shape().layer_ids().collect(),
    }
}
