//! The journal of an unfinished recording: its header, and an entry for each finished sequence.
//!
//! An entry is written after the files it names are synced, so what the journal says is there. Anything else in the
//! folder belongs to a sequence that was cut off, and is removed when the recording goes on. Once the manifest is
//! written the journal has done its work: a recording that was interrupted then only has to be moved to its target.

use super::{Leftover, TraceHeader};
use crate::table::{sync_folder, write_whole};
use crate::trace::folder::{open_inside, parse_json, read_manifest_in, sha256_of_file, to_json};
use crate::trace::manifest::{
    BranchesInfo, MANIFEST, MANIFEST_DIGEST, Manifest, NO_SEQUENCES, ProblemInfo, RequestsInfo, SequenceInfo,
    ShardInfo, TableInfo, WeightInfo,
};
use crate::trace::{TraceError, Weight};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The folder of the journal inside an unfinished recording.
pub(crate) const JOURNAL: &str = "journal";
const HEADER: &str = "journal/header.json";
const LOCK: &str = "journal/lock";
const TIMES_ENTRY: &str = "journal/times.json";

/// The folders of an unfinished recording with this header.
fn folders(header: &TraceHeader) -> Vec<&'static str> {
    let mut folders = vec![JOURNAL, "facts", "tensors"];
    if !header.weights.list(&header.shape).is_empty() {
        folders.push("weights");
    }
    folders
}

/// A finished sequence and its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) sequence: SequenceInfo,
    pub(super) shards: Vec<ShardInfo>,
    /// Its facts, a table each, sorted by the table's name.
    pub(super) parts: Vec<TableInfo>,
}

/// Facts that belong to no sequence: a problem with its branches, or some requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    pub(super) problem: Option<ProblemInfo>,
    pub(super) requests: Option<RequestBatch>,
    pub(super) parts: Vec<TableInfo>,
}

/// Requests of one call.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestBatch {
    pub(super) count: u64,
    pub(super) blocks: u64,
    /// Arrival of the last one.
    pub(super) last_ms: u64,
}

#[derive(Debug)]
pub(super) struct Journal {
    root: PathBuf,
    folders: Vec<&'static str>,
    pub(super) entries: Vec<Entry>,
    pub(super) batches: Vec<Batch>,
    /// Weights that are written, in order.
    pub(super) weights: Vec<WeightInfo>,
    /// The measured times, when they are written.
    pub(super) times: Option<TableInfo>,
    /// Digest of the manifest, when the recording was interrupted after writing it.
    pub(super) sealed: Option<String>,
    /// Held while the recording runs.
    _lock: File,
}

/// Whether a writer can have left `root`: a real folder with a journal or a manifest, or nothing but the folders it begins with.
fn is_ours(root: &Path) -> bool {
    let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    let holds_folders_only = || {
        fs::read_dir(root)
            .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|e| is_folder(&e.path()))))
    };
    // A sealed recording has its manifest and needs no journal any more.
    let is_sealed = || root.join(MANIFEST).is_file();
    is_folder(root) && (is_folder(&root.join(JOURNAL)) || is_sealed() || holds_folders_only())
}

impl Journal {
    pub(super) fn open(root: &Path, header: &TraceHeader, leftover: Leftover) -> Result<Self, TraceError> {
        let has_leftover = fs::symlink_metadata(root).is_ok();
        if has_leftover && leftover == Leftover::Refuse {
            return Err(TraceError::Leftover { path: root.to_owned() });
        }
        if has_leftover && !is_ours(root) {
            return Err(TraceError::Exists { path: root.to_owned() });
        }
        let folders = folders(header);
        for folder in &folders {
            let path = root.join(folder);
            fs::create_dir_all(&path).map_err(|error| TraceError::io(&path, error))?;
        }
        let lock = lock(root)?;
        if has_leftover
            && leftover == Leftover::Resume
            && let Some((entries, batches, weights, times, digest)) = sealed_entries(root, header)?
        {
            let (root, sealed) = (root.to_owned(), Some(digest));
            return Ok(Self { root, folders, entries, batches, weights, times, sealed, _lock: lock });
        }
        let header_path = root.join(HEADER);
        let (entries, batches, weights, times) =
            if has_leftover && leftover == Leftover::Resume && header_path.exists() {
                check_header(&header_path, header)?;
                let (weights, times) = (finished_weights(root, header), finished_times(root));
                (finished_entries(root), finished_batches(root), weights, times)
            } else {
                (Vec::new(), Vec::new(), Vec::new(), None)
            };
        let parts: Vec<&TableInfo> = batches.iter().flat_map(|batch: &Batch| &batch.parts).collect();
        let batch_files =
            (0..batches.len()).map(batch_path).chain(parts.iter().map(|part| part.path.clone()));
        let times_files = times.iter().flat_map(|times| [TIMES_ENTRY.to_owned(), times.path.clone()]);
        remove_strangers(root, &folders, &entries, &weights, batch_files.chain(times_files).collect())?;
        if entries.is_empty() && batches.is_empty() && weights.is_empty() && times.is_none() {
            let bytes = to_json(header, &header_path)?;
            write_whole(&header_path, &bytes).map_err(|error| TraceError::io(&header_path, error))?;
        }
        let (root, sealed) = (root.to_owned(), None);
        Ok(Self { root, folders, entries, batches, weights, times, sealed, _lock: lock })
    }

    /// The folders whose names must be durable before the trace is: what is in it, and itself.
    pub(super) fn folders(&self) -> impl Iterator<Item = &'static str> {
        self.folders.iter().copied().filter(|folder| *folder != JOURNAL).chain([""])
    }

    /// Enters a sequence whose files are synced.
    pub(super) fn enter(&mut self, entry: Entry) -> Result<(), TraceError> {
        self.write(&entry_path(self.entries.len()), &entry)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Enters facts whose files are synced.
    pub(super) fn enter_batch(&mut self, batch: Batch) -> Result<(), TraceError> {
        self.write(&batch_path(self.batches.len()), &batch)?;
        self.batches.push(batch);
        Ok(())
    }

    /// All parts of facts tables, in the order of their rows.
    pub(super) fn parts(&self) -> impl Iterator<Item = &TableInfo> {
        let sequences = self.entries.iter().flat_map(|entry| &entry.parts);
        sequences.chain(self.batches.iter().flat_map(|batch| &batch.parts))
    }

    /// Enters the next file of weights, which is synced.
    pub(super) fn enter_weight(&mut self, weight: WeightInfo) -> Result<(), TraceError> {
        self.write(&weight_path(self.weights.len()), &weight)?;
        self.weights.push(weight);
        Ok(())
    }

    /// Enters the file of measured times, which is synced.
    pub(super) fn enter_times(&mut self, times: TableInfo) -> Result<(), TraceError> {
        self.write(TIMES_ENTRY, &times)?;
        self.times = Some(times);
        Ok(())
    }

    fn write(&self, inside: &str, entry: &impl Serialize) -> Result<(), TraceError> {
        for folder in &self.folders {
            let path = self.root.join(folder);
            sync_folder(&path).map_err(|error| TraceError::io(&path, error))?;
        }
        let path = self.root.join(inside);
        let bytes = to_json(entry, &path)?;
        write_whole(&path, &bytes).map_err(|error| TraceError::io(&path, error))
    }
}

/// Removes the journal of a recording whose manifest is written.
pub(super) fn remove(root: &Path) -> Result<(), TraceError> {
    let path = root.join(JOURNAL);
    fs::remove_dir_all(&path).map_err(|error| TraceError::io(&path, error))
}

fn entry_path(seq: usize) -> String {
    format!("{JOURNAL}/{seq:05}.json")
}

/// The name of the next batch's files.
pub(super) fn batch_name(at: usize) -> String {
    format!("batch{at:05}")
}

fn batch_path(at: usize) -> String {
    format!("{JOURNAL}/{}.json", batch_name(at))
}

fn weight_path(at: usize) -> String {
    format!("{JOURNAL}/weight{at:05}.json")
}

fn lock(root: &Path) -> Result<File, TraceError> {
    let path = root.join(LOCK);
    let file = File::create(&path).map_err(|error| TraceError::io(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(TraceError::Busy { path: root.to_owned() }),
        // A file system without locks: two recordings at once are the user's to avoid.
        Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(error)) => Err(TraceError::io(&path, error)),
    }
}

fn check_header(path: &Path, header: &TraceHeader) -> Result<(), TraceError> {
    let begun = fs::read(path).map_err(|error| TraceError::io(path, error))?;
    let continued = to_json(header, path)?;
    if begun == continued {
        return Ok(());
    }
    let root = path.parent().unwrap_or(path);
    let begun: serde_json::Value = serde_json::from_slice(&begun).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let accepted = "the header that the recording was begun with (`--force` begins anew)";
        TraceError::malformed(path, place, "no whole JSON text", accepted)
    })?;
    Err(mismatch(root, &begun, &parse_json(&continued, path)?))
}

/// What people choose, as paths inside the header: other parts follow from it, and are looked at last.
const CHOSEN: &[&[&str]] = &[
    &["model", "source_file"],
    &["model", "name"],
    &["model", "weights_sha256"],
    &["branches"],
    &["decoding", "protocol"],
    &["workload"],
    &["seed"],
    &["runtime", "requested_provider"],
    &["runtime", "threads"],
];

/// The first difference between what a recording was begun with and what is asked for now, what people choose first.
fn mismatch(root: &Path, begun: &serde_json::Value, now: &serde_json::Value) -> TraceError {
    fn at<'a>(value: &'a serde_json::Value, path: &[&str]) -> Option<&'a serde_json::Value> {
        path.iter().try_fold(value, |value, key| value.get(key))
    }
    let chosen = CHOSEN.iter().find(|path| at(begun, path) != at(now, path));
    let nothing = serde_json::Value::Null;
    let mut part: Vec<&str> = chosen.map_or(Vec::new(), |path| path.to_vec());
    let mut begun = at(begun, &part).unwrap_or(&nothing);
    let mut now = at(now, &part).unwrap_or(&nothing);
    while let (Some(before), Some(after)) = (begun.as_object(), now.as_object()) {
        // What was left out afterwards is a difference too.
        let keys = after.keys().chain(before.keys());
        let Some(key) = keys.into_iter().find(|key| before.get(*key) != after.get(*key)) else { break };
        part.push(key.as_str());
        (begun, now) = (before.get(key).unwrap_or(&nothing), after.get(key).unwrap_or(&nothing));
    }
    let part = if part.is_empty() { "header".to_owned() } else { part.join(".") };
    // What only one of the two has is named, not spelt out.
    let shown = |value: &serde_json::Value| match value {
        serde_json::Value::Object(_) => "given".to_owned(),
        other => other.to_string(),
    };
    TraceError::ResumeMismatch { path: root.to_owned(), part, begun: shown(begun), now: shown(now) }
}

/// Sequences, other facts, weights, times and the manifest's digest.
type Sealed = (Vec<Entry>, Vec<Batch>, Vec<WeightInfo>, Option<TableInfo>, String);

/// The content of a recording that was interrupted after its manifest was written.
fn sealed_entries(root: &Path, header: &TraceHeader) -> Result<Option<Sealed>, TraceError> {
    let Ok((manifest, digest)) = read_manifest_in(root) else { return Ok(None) };
    let tables = manifest.tables.iter().map(|table| (&table.path, table.bytes, &table.sha256));
    let shards = manifest.shards.iter().map(|shard| (&shard.path, shard.bytes, &shard.sha256));
    let weights = manifest.weights.iter().map(|weight| (&weight.path, weight.bytes, &weight.sha256));
    let times = manifest.times.iter().map(|times| (&times.path, times.bytes, &times.sha256));
    if !is_intact(root, tables.chain(shards).chain(weights).chain(times)) {
        return Ok(None);
    }
    let requires = manifest.requires.iter().filter(|word| *word != NO_SEQUENCES).cloned().collect();
    let begun = Manifest {
        requires,
        branches: manifest.branches.clone().map(|branches| BranchesInfo { problems: Vec::new(), ..branches }),
        requests: manifest.requests.clone().map(|requests| RequestsInfo { count: 0, blocks: 0, ..requests }),
        sequences: Vec::new(),
        shards: Vec::new(),
        tables: Vec::new(),
        weights: Vec::new(),
        times: None,
        ..manifest.clone()
    };
    let value = |manifest: &Manifest| {
        serde_json::to_value(manifest).map_err(|error| TraceError::io(root, std::io::Error::other(error)))
    };
    if begun != header.manifest() {
        return Err(mismatch(root, &value(&begun)?, &value(&header.manifest())?));
    }
    let (begun, now) = (manifest.times.is_some(), header.times);
    if begun != now {
        let (part, begun, now) = ("times".to_owned(), begun.to_string(), now.to_string());
        return Err(TraceError::ResumeMismatch { path: root.to_owned(), part, begun, now });
    }
    let entry = |sequence: SequenceInfo| Entry {
        shards: manifest.shards.iter().filter(|shard| shard.seq == sequence.seq).cloned().collect(),
        sequence,
        parts: Vec::new(),
    };
    let problems = manifest.branches.iter().flat_map(|branches| &branches.problems);
    let problems =
        problems.map(|info| Batch { problem: Some(info.clone()), requests: None, parts: Vec::new() });
    let requests = manifest.requests.iter().map(|requests| {
        let batch = RequestBatch { count: requests.count, blocks: requests.blocks, last_ms: u64::MAX };
        Batch { problem: None, requests: Some(batch), parts: Vec::new() }
    });
    let batches = problems.chain(requests).collect();
    let entries = manifest.sequences.iter().cloned().map(entry).collect();
    Ok(Some((entries, batches, manifest.weights.clone(), manifest.times.clone(), digest)))
}

/// Whether files have the size and digest on record.
fn is_intact<'a>(root: &Path, mut files: impl Iterator<Item = (&'a String, u64, &'a String)>) -> bool {
    files.all(|(inside, bytes, sha256)| {
        open_inside(root, inside)
            .and_then(|(mut file, path)| sha256_of_file(&mut file, &path))
            .is_ok_and(|found| found == (bytes, sha256.clone()))
    })
}

/// The entries from the first on whose files are all as they were; those behind a damaged one are recorded again.
fn finished_entries(root: &Path) -> Vec<Entry> {
    let mut entries = Vec::new();
    while let Some(entry) = read_entry(root, entries.len()) {
        entries.push(entry);
    }
    entries
}

/// The batches from the first on whose files are all as they were.
fn finished_batches(root: &Path) -> Vec<Batch> {
    let read = |at: usize| {
        let (_, path) = open_inside(root, &batch_path(at)).ok()?;
        let batch: Batch = parse_json(&fs::read(&path).ok()?, &path).ok()?;
        let parts = batch.parts.iter().map(|part| (&part.path, part.bytes, &part.sha256));
        is_intact(root, parts).then_some(batch)
    };
    (0..).map_while(read).collect()
}

fn read_entry(root: &Path, seq: usize) -> Option<Entry> {
    let (_, path) = open_inside(root, &entry_path(seq)).ok()?;
    let entry: Entry = parse_json(&fs::read(&path).ok()?, &path).ok()?;
    let shards = entry.shards.iter().map(|shard| (&shard.path, shard.bytes, &shard.sha256));
    let parts = entry.parts.iter().map(|part| (&part.path, part.bytes, &part.sha256));
    let is_intact = is_intact(root, shards.chain(parts));
    (is_intact && usize::try_from(entry.sequence.seq) == Ok(seq)).then_some(entry)
}

/// The weights from the first on whose files are as they were.
fn finished_weights(root: &Path, header: &TraceHeader) -> Vec<WeightInfo> {
    let read = |(at, weight): (usize, Weight)| {
        let (_, path) = open_inside(root, &weight_path(at)).ok()?;
        let info: WeightInfo = parse_json(&fs::read(&path).ok()?, &path).ok()?;
        let is_right = info.path == weight.path()
            && is_intact(root, [(&info.path, info.bytes, &info.sha256)].into_iter());
        is_right.then_some(info)
    };
    header.weights.list(&header.shape).into_iter().enumerate().map_while(read).collect()
}

/// The measured times, when their file is as it was.
fn finished_times(root: &Path) -> Option<TableInfo> {
    let (_, path) = open_inside(root, TIMES_ENTRY).ok()?;
    let info: TableInfo = parse_json(&fs::read(&path).ok()?, &path).ok()?;
    is_intact(root, [(&info.path, info.bytes, &info.sha256)].into_iter()).then_some(info)
}

/// Removes every file that belongs neither to the journal nor to a finished sequence, and any manifest.
fn remove_strangers(
    root: &Path,
    folders: &[&str],
    entries: &[Entry],
    weights: &[WeightInfo],
    mut kept: BTreeSet<String>,
) -> Result<(), TraceError> {
    let is_begun = !entries.is_empty() || !weights.is_empty() || !kept.is_empty();
    kept.insert(LOCK.to_owned());
    for (at, weight) in weights.iter().enumerate() {
        kept.insert(weight_path(at));
        kept.insert(weight.path.clone());
    }
    if is_begun {
        kept.insert(HEADER.to_owned());
    }
    for (seq, entry) in entries.iter().enumerate() {
        kept.insert(entry_path(seq));
        kept.extend(entry.shards.iter().map(|shard| shard.path.clone()));
        kept.extend(entry.parts.iter().map(|part| part.path.clone()));
    }
    for manifest in [MANIFEST, MANIFEST_DIGEST] {
        let path = root.join(manifest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(TraceError::io(&path, error));
            }
            _ => {}
        }
    }
    for folder in folders {
        let path = root.join(folder);
        for found in fs::read_dir(&path).map_err(|error| TraceError::io(&path, error))? {
            let found = found.map_err(|error| TraceError::io(&path, error))?;
            let inside = format!("{folder}/{}", found.file_name().to_string_lossy());
            if !kept.contains(&inside) {
                fs::remove_file(found.path()).map_err(|error| TraceError::io(&found.path(), error))?;
            }
        }
    }
    Ok(())
}
