//! Writing a trace: streaming, bounded by one shard and the facts of its positions, never half there.
//!
//! Everything is written into `<target>.partial/`. Each finished sequence is synced and entered in a journal, so an
//! interrupted recording can be continued after the last finished sequence. [`TraceWriter::finish`] merges the facts,
//! writes the manifest and renames the folder. Until then there is nothing at `<target>`.

mod buffer;
mod facts;
mod header;
mod journal;
mod place;

pub use facts::{LensFact, LensPosition, RawLensFact};
pub use header::{Chunk, LayerChunk, LensForms, SequenceEnd, SequenceStart, StoredFields, TraceHeader};

use super::folder;
use super::manifest::{Manifest, ProblemInfo, SequenceInfo};
use super::{Dtype, Problem, Request, TraceError, Weight, branches, manifest, requests, times, weights};
use crate::cost::Measurement;
use crate::table::{Table, sync_folder};
use crate::types::{Pos, SeqIdx};
use buffer::ShardBuffer;
use facts::FactsWriter;
use journal::{Batch, Entry, Journal, RequestBatch};
use std::path::{Path, PathBuf};

/// What to do when an earlier recording to the same target was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Stop with [`TraceError::Leftover`].
    Refuse,
    /// Delete it and begin anew.
    Discard,
    /// As [`Leftover::Discard`], and a finished trace at the target is replaced when the new one is whole.
    Replace,
    /// Continue after its last finished sequence; begin anew when there is none.
    Resume,
}

/// A trace that was written to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedTrace {
    /// The folder.
    pub path: PathBuf,
    /// SHA-256 (hex) of the manifest, which covers every other file.
    pub digest: String,
}

/// Writes one trace. Dropping it without [`TraceWriter::finish`] leaves an unfinished recording that can be resumed.
///
/// Calls come in the order `begin_sequence`, `push`…, `end_sequence`, again for each sequence, then `finish`. A call
/// that is refused changes nothing, except when the system failed: then only `Leftover::Resume` helps.
#[derive(Debug)]
pub struct TraceWriter {
    target: PathBuf,
    root: PathBuf,
    header: TraceHeader,
    leftover: Leftover,
    journal: Journal,
    open: Option<OpenSequence>,
}

#[derive(Debug)]
struct OpenSequence {
    seq: u32,
    start: SequenceStart,
    len: u32,
    shard: ShardBuffer,
    facts: FactsWriter,
    shards: Vec<manifest::ShardInfo>,
}

impl TraceWriter {
    /// Begins or continues a recording that will end up at `target`.
    ///
    /// # Errors
    /// When `target` exists and is not to be replaced or is no trace, when a leftover is not to be touched or does not fit, when another process records to
    /// the same target, when the header is not acceptable, or when the system refuses.
    pub fn create(target: &Path, header: TraceHeader, leftover: Leftover) -> Result<Self, TraceError> {
        header.check()?;
        place::check(target, leftover)?;
        let root = folder::unfinished(target);
        let journal = Journal::open(&root, &header, leftover)?;
        Ok(Self { target: target.to_owned(), root, header, leftover, journal, open: None })
    }

    /// Refuses a place that [`TraceWriter::create`] refuses, before there is a header.
    ///
    /// # Errors
    /// When something is at `target` that is not to be replaced, or was moved away from there.
    pub fn check_place(target: &Path, leftover: Leftover) -> Result<(), TraceError> {
        place::check(target, leftover)
    }

    /// Sequences that are finished, those of an interrupted recording included. The next one begun has this index.
    #[must_use]
    pub fn finished(&self) -> impl ExactSizeIterator<Item = &SequenceInfo> {
        self.journal.entries.iter().map(|entry| &entry.sequence)
    }

    /// Whether lens facts are stored.
    pub(in crate::trace) fn stores_lens(&self) -> bool {
        self.header.fields.lens.is_some()
    }

    /// Problems that are finished, those of an interrupted recording included. The next one has this index.
    #[must_use]
    pub fn finished_problems(&self) -> u32 {
        self.problems().map(|_| 1).sum()
    }

    /// The finished problems, in order.
    pub fn problems(&self) -> impl Iterator<Item = &ProblemInfo> {
        self.journal.batches.iter().filter_map(|batch| batch.problem.as_ref())
    }

    /// The tokens of their branches' prompts, roots included, one after the other.
    ///
    /// # Errors
    /// When they cannot be read again.
    pub fn branch_tokens(&self) -> Result<Vec<u32>, TraceError> {
        facts::branch_tokens(&self.root, &self.journal)
    }

    /// Requests that are written, those of an interrupted recording included.
    #[must_use]
    pub fn finished_requests(&self) -> u64 {
        self.journal.batches.iter().filter_map(|batch| batch.requests).map(|requests| requests.count).sum()
    }

    /// Writes the next problem with its branches, syncs it and enters it in the journal. Gives its index.
    ///
    /// # Errors
    /// When the header names no branches, the problem is not acceptable, or the system refuses.
    pub fn push_problem(&mut self, problem: &Problem) -> Result<u32, TraceError> {
        let Some(stored) = self.header.branches.clone() else {
            return Err(TraceError::chunk("problem", "branch facts", "none: the header does not name them"));
        };
        self.refuse_sealed("push_problem")?;
        let index = self.finished_problems();
        let info = branches::count(problem, index, &stored, &self.header.shape)?;
        let mut rows = branches::BranchRows::new(&stored);
        rows.push(index, problem);
        self.enter_batch(rows.take()?, |parts| Batch { problem: Some(info), requests: None, parts })?;
        Ok(index)
    }

    /// Writes the next requests, in order of arrival, and enters them in the journal. A call is a unit of resumption.
    ///
    /// # Errors
    /// When the header names no requests, one is not acceptable, or the system refuses.
    pub fn push_requests(&mut self, requests: &[Request]) -> Result<(), TraceError> {
        let Some(stored) = self.header.requests else {
            return Err(TraceError::chunk("requests", "requests", "none: the header does not name them"));
        };
        self.refuse_sealed("push_requests")?;
        let (first, last) = self
            .journal
            .batches
            .iter()
            .filter_map(|batch| batch.requests)
            .fold((0, 0), |(count, _), batch| (count + batch.count, batch.last_ms));
        let blocks = requests::check(first, last, requests, stored)?;
        let batch = RequestBatch {
            count: requests.len() as u64,
            blocks,
            last_ms: requests.last().map_or(last, |request| request.timestamp_ms),
        };
        let rows = requests::encode(first, requests)?;
        self.enter_batch(rows, |parts| Batch { problem: None, requests: Some(batch), parts })
    }

    fn refuse_sealed(&self, call: &str) -> Result<(), TraceError> {
        if self.journal.sealed.is_none() {
            return Ok(());
        }
        let found = "a recording that only has to be moved to its target";
        Err(TraceError::chunk(call, found, "a recording with something left"))
    }

    fn enter_batch(
        &mut self,
        rows: Vec<(&'static str, Table)>,
        batch: impl FnOnce(Vec<manifest::TableInfo>) -> Batch,
    ) -> Result<(), TraceError> {
        let name = journal::batch_name(self.journal.batches.len());
        let parts = facts::write_parts(&self.root, &name, rows)?;
        self.journal.enter_batch(batch(parts))
    }

    /// The weights that the header names and that are not written yet, in the order in which they are to come.
    #[must_use]
    pub fn missing_weights(&self) -> Vec<Weight> {
        self.header.weights.list(&self.header.shape).split_off(self.journal.weights.len())
    }

    /// Writes the first of [`TraceWriter::missing_weights`]: `values`, row-major, in the shape that the format gives it.
    ///
    /// # Errors
    /// When it is another weight's turn, the number of values is not that of the shape, a value is not finite or does
    /// not fit its storage type, or the system refuses.
    pub fn put_weight(&mut self, weight: Weight, values: &[f32]) -> Result<(), TraceError> {
        let missing = self.missing_weights();
        if missing.first() != Some(&weight) {
            let accepted = missing.first().map_or("no further weight".to_owned(), |next| next.path());
            return Err(TraceError::chunk("weight", weight.path(), accepted));
        }
        let dtype = self.header.weights.dtype(weight.field()).unwrap_or(Dtype::F32);
        let info = weights::write(&self.root, weight, dtype, &self.header.shape, values)?;
        self.journal.enter_weight(info)
    }

    /// Whether the header names measured times and they are not written yet.
    #[must_use]
    pub fn misses_times(&self) -> bool {
        self.header.times && self.journal.times.is_none()
    }

    /// Writes the measured times.
    ///
    /// # Errors
    /// When the header names none, they are there, none are given, or the system refuses.
    pub fn put_times(&mut self, times: &[Measurement]) -> Result<(), TraceError> {
        if !self.misses_times() {
            return Err(TraceError::chunk("times", "measured times", "none, or none any more"));
        }
        let info = times::write(&self.root, times)?;
        self.journal.enter_times(info)
    }

    /// Begins the next sequence and gives its index.
    ///
    /// # Errors
    /// When a sequence is open, the start is not acceptable, or the system refuses.
    pub fn begin_sequence(&mut self, start: SequenceStart) -> Result<SeqIdx, TraceError> {
        if let Some(open) = &self.open {
            return Err(TraceError::chunk(
                "begin_sequence",
                format!("sequence {} open", open.seq),
                "no open sequence",
            ));
        }
        self.refuse_sealed("begin_sequence")?;
        if start.prompt_len == 0 || start.bos_len > start.prompt_len {
            let found =
                format!("{} prompt tokens of which {} begin the sequence", start.prompt_len, start.bos_len);
            return Err(TraceError::chunk(
                "begin_sequence",
                found,
                "at least one prompt token, no fewer than `bos_len`",
            ));
        }
        let seq = u32::try_from(self.journal.entries.len())
            .map_err(|_| TraceError::chunk("begin_sequence", "2^32 sequences", "fewer"))?;
        let facts = FactsWriter::start(&self.root, seq, &self.header)?;
        let shard = ShardBuffer::new(&self.header, seq);
        self.open = Some(OpenSequence { seq, start, len: 0, shard, facts, shards: Vec::new() });
        Ok(SeqIdx::new(seq))
    }

    /// Appends the positions of `chunk` to the open sequence.
    ///
    /// # Errors
    /// When no sequence is open, shapes do not fit, a value is not finite or does not fit its storage type, lens facts
    /// are not as they must be, or the system refuses.
    pub fn push(&mut self, chunk: &Chunk<'_>) -> Result<(), TraceError> {
        let Some(open) = &mut self.open else {
            return Err(TraceError::chunk("push", "no open sequence", "one open sequence"));
        };
        let added = header::check_chunk(chunk, &self.header, open.seq, open.len, open.facts.last_pos())?;
        let mut done = 0;
        while done < added {
            let count = (added - done).min(open.shard.room());
            open.shard.append(chunk, done, count);
            let prompt_len = open.start.prompt_len;
            open.facts.append(chunk, Pos::new(open.len), done, count, prompt_len);
            open.len += count;
            done += count;
            if open.shard.room() == 0 {
                open.flush(&self.root)?;
            }
        }
        Ok(())
    }

    /// Ends the open sequence: syncs its files and enters it in the journal.
    ///
    /// # Errors
    /// When no sequence is open, it is shorter than its prompt, or the system refuses.
    pub fn end_sequence(&mut self, end: SequenceEnd) -> Result<(), TraceError> {
        match &self.open {
            None => {
                return Err(TraceError::chunk("end_sequence", "no open sequence", "one open sequence"));
            }
            Some(open) if open.len < open.start.prompt_len => {
                let found = format!("{} positions", open.len);
                return Err(TraceError::chunk(
                    "end_sequence",
                    found,
                    format!("at least the prompt's {}", open.start.prompt_len),
                ));
            }
            Some(_) => {}
        }
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        open.flush(&self.root)?;
        let lens_positions = open.facts.lens_positions();
        let parts = open.facts.finish()?;
        let sequence = open.start.info(open.seq, open.len, lens_positions, end);
        self.journal.enter(Entry { sequence, shards: open.shards, parts })
    }

    /// Merges the facts, writes the manifest, and moves the trace to its target.
    ///
    /// # Errors
    /// When a sequence is open, nothing was recorded, a weight is missing, or the system refuses. The finished sequences stay then, and the
    /// recording can be resumed.
    pub fn finish(self) -> Result<FinishedTrace, TraceError> {
        if let Some(weight) = self.missing_weights().first() {
            return Err(TraceError::chunk(
                "finish",
                format!("no {}", weight.path()),
                "every weight of the header",
            ));
        }
        if self.misses_times() {
            return Err(TraceError::chunk("finish", "no times", "the measured times that the header names"));
        }
        if let Some(open) = &self.open {
            return Err(TraceError::chunk(
                "finish",
                format!("sequence {} open", open.seq),
                "no open sequence",
            ));
        }
        let Self { target, root, header, leftover, journal, .. } = self;
        if journal.entries.is_empty() && journal.batches.is_empty() && journal.sealed.is_none() {
            return Err(TraceError::chunk(
                "finish",
                "nothing",
                "a sequence, a problem or a request at least",
            ));
        }
        let digest = match &journal.sealed {
            Some(digest) => digest.clone(),
            None => seal(&root, &header, &journal)?,
        };
        place::check(&target, leftover)?;
        // The lock goes first: not every system renames a folder with an open file in it.
        drop(journal);
        journal::remove(&root)?;
        place::take(&root, &target)?;
        Ok(FinishedTrace { path: target, digest })
    }
}

/// Merges the facts, writes the manifest, and syncs the folder; gives the manifest's digest.
fn seal(root: &Path, header: &TraceHeader, journal: &Journal) -> Result<String, TraceError> {
    let entries = &journal.entries;
    let tables = facts::merge(root, journal, header)?;
    let (sequences, shards): (Vec<_>, Vec<_>) =
        entries.iter().map(|entry| (entry.sequence.clone(), entry.shards.clone())).unzip();
    let mut manifest = Manifest {
        sequences,
        shards: shards.concat(),
        tables,
        weights: journal.weights.clone(),
        times: journal.times.clone(),
        ..header.manifest()
    };
    if manifest.sequences.is_empty() {
        manifest.requires.push(manifest::NO_SEQUENCES.to_owned());
    }
    if let Some(branches) = &mut manifest.branches {
        branches.problems = journal.batches.iter().filter_map(|batch| batch.problem.clone()).collect();
    }
    if let Some(requests) = &mut manifest.requests {
        for batch in journal.batches.iter().filter_map(|batch| batch.requests) {
            requests.count += batch.count;
            requests.blocks += batch.blocks;
        }
    }
    let digest = folder::write_manifest(root, &manifest)?;
    for inside in journal.folders() {
        let path = root.join(inside);
        sync_folder(&path).map_err(|error| TraceError::io(&path, error))?;
    }
    Ok(digest)
}

impl OpenSequence {
    fn flush(&mut self, root: &Path) -> Result<(), TraceError> {
        self.facts.flush()?;
        if let Some(shard) = self.shard.flush(root)? {
            self.shards.push(shard);
        }
        Ok(())
    }
}
