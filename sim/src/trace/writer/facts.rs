//! Facts: tokens, lens facts and the largest logits, one part a sequence in the journal, merged at the end.
//!
//! Rows are sorted by `seq`, `pos`, `layer`, `rank`, so that the rows of a sequence are a range of the table.

use super::header::{Chunk, TraceHeader};
use super::journal::Journal;
use crate::num;
use crate::table::{GroupWriter, Table, TableFile};
use crate::trace::facts_schema::{BRANCH_TOKENS, LENS, LENS_TOP, TOKENS};
use crate::trace::folder::{self, sha256_of_file};
use crate::trace::manifest::TableInfo;
use crate::trace::{LensRow, TraceError, facts_schema as schema};
use crate::types::{LayerIdx, Pos, TokenId};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// Lens facts of one position, all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct LensPosition {
    /// Position whose next token is predicted.
    pub pos: Pos,
    /// One fact a layer, `[layer]`.
    pub layers: Vec<LensFact>,
}

/// Lens facts of one layer at one position. What follows from these (probability of the first token, agreement with the
/// last layer) is computed by the writer.
#[derive(Clone, Debug, PartialEq)]
pub struct LensFact {
    /// Entropy in nats of softmax(unembed(final_norm(hidden))).
    pub entropy_nats: f32,
    /// Log-sum-exp of the logits, with the final norm.
    pub logsumexp: f32,
    /// What is seen without the final norm; nothing where the lens did not look.
    pub raw: Option<RawLensFact>,
    /// The largest logits with their ids, with the final norm, largest first, ties to the lower id: as many as the
    /// header's `lens_top`, at least one.
    pub top: Vec<(TokenId, f32)>,
}

/// What the lens sees without the final norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawLensFact {
    /// Entropy in nats of softmax(unembed(hidden)).
    pub entropy_nats: f32,
    /// Log-sum-exp of the logits.
    pub logsumexp: f32,
}

impl LensPosition {
    /// The facts as a replay reads them, with what follows from them. Layers without a logit are left out.
    pub fn rows(&self) -> impl Iterator<Item = LensRow> + '_ {
        let last = self.layers.last().and_then(|fact| fact.top.first()).map(|&(token, _)| token);
        (0_u16..).zip(&self.layers).filter_map(move |(layer, fact)| {
            let &(top1, logit) = fact.top.first()?;
            Some(LensRow {
                pos: self.pos,
                layer: LayerIdx::new(layer),
                entropy_nats: fact.entropy_nats,
                raw_entropy_nats: fact.raw.map(|raw| raw.entropy_nats),
                top1,
                top1_prob: num::exp((logit - fact.logsumexp).min(0.0)),
                agrees_with_last: Some(top1) == last,
            })
        })
    }
}

/// Writes the facts of one sequence.
#[derive(Debug)]
pub(super) struct FactsWriter {
    seq: i64,
    lens_top: bool,
    parts: Vec<Part>,
    lens_positions: u32,
    last_pos: Option<Pos>,
}

struct Part {
    table: &'static str,
    path: PathBuf,
    inside: String,
    rows: schema::Rows,
    written: u64,
    writer: GroupWriter<BufWriter<File>>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part")
            .field("path", &self.path)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

/// The tables that sequences fill, sorted by path.
fn tables(header: &TraceHeader) -> Vec<&'static str> {
    header.tables().into_iter().filter(|table| [LENS, LENS_TOP, TOKENS].contains(table)).collect()
}

impl FactsWriter {
    pub(super) fn start(root: &Path, seq: u32, header: &TraceHeader) -> Result<Self, TraceError> {
        let start_part = |table: &'static str| {
            let inside = part_path(&format!("{seq:05}"), table);
            let path = root.join(&inside);
            let file = File::create(&path).map_err(|error| TraceError::io(&path, error))?;
            let rows = schema::Rows::new(table);
            let writer = GroupWriter::start(BufWriter::new(file), &rows.prototype(), &path)
                .map_err(TraceError::table)?;
            Ok(Part { table, path, inside, rows, written: 0, writer })
        };
        let parts = tables(header).into_iter().map(start_part).collect::<Result<_, TraceError>>()?;
        Ok(Self {
            seq: i64::from(seq),
            lens_top: header.fields.lens_top > 0,
            parts,
            lens_positions: 0,
            last_pos: None,
        })
    }

    /// The last position with lens facts.
    pub(super) fn last_pos(&self) -> Option<Pos> {
        self.last_pos
    }

    /// Positions with lens facts.
    pub(super) fn lens_positions(&self) -> u32 {
        self.lens_positions
    }

    /// Appends `count` positions of a checked chunk, from its position `from`, which is position `first` of the sequence.
    pub(super) fn append(&mut self, chunk: &Chunk<'_>, first: Pos, from: u32, count: u32, prompt_len: u32) {
        let positions = first.get()..first.get() + count;
        let tokens = &chunk.tokens[from as usize..(from + count) as usize];
        let lens: Vec<&LensPosition> =
            chunk.lens.iter().filter(|fact| positions.contains(&fact.pos.get())).collect();
        self.lens_positions += lens.iter().map(|_| 1).sum::<u32>();
        self.last_pos = lens.last().map(|fact| fact.pos).or(self.last_pos);
        for part in &mut self.parts {
            match part.table {
                TOKENS => {
                    for (pos, token) in positions.clone().zip(tokens) {
                        part.rows.int(0, self.seq);
                        part.rows.int(1, pos);
                        part.rows.int(2, token.get());
                        part.rows.bool(3, pos < prompt_len);
                    }
                }
                LENS => lens.iter().for_each(|fact| lens_rows(&mut part.rows, self.seq, fact)),
                _ if self.lens_top => {
                    lens.iter().for_each(|fact| lens_top_rows(&mut part.rows, self.seq, fact))
                }
                _ => {}
            }
        }
    }

    /// Writes what is buffered as a row group a table.
    pub(super) fn flush(&mut self) -> Result<(), TraceError> {
        for part in &mut self.parts {
            let table = part.rows.take().map_err(TraceError::table)?;
            part.written += table.rows() as u64;
            part.writer.write_group(&table).map_err(TraceError::table)?;
        }
        Ok(())
    }

    /// Closes and syncs the parts; gives their sizes and digests.
    pub(super) fn finish(self) -> Result<Vec<TableInfo>, TraceError> {
        self.parts.into_iter().map(|part| close(part.writer, &part.path, part.inside, part.written)).collect()
    }
}

fn lens_rows(rows: &mut schema::Rows, seq: i64, position: &LensPosition) {
    for (fact, row) in position.layers.iter().zip(position.rows()) {
        rows.int(0, seq);
        rows.int(1, row.pos.get());
        rows.int(2, row.layer.get());
        rows.real(3, row.entropy_nats);
        rows.optional_real(4, row.raw_entropy_nats);
        rows.real(5, fact.logsumexp);
        rows.optional_real(6, fact.raw.map(|raw| raw.logsumexp));
        rows.int(7, row.top1.get());
        rows.real(8, fact.top[0].1);
        rows.real(9, row.top1_prob);
        rows.bool(10, row.agrees_with_last);
    }
}

fn lens_top_rows(rows: &mut schema::Rows, seq: i64, position: &LensPosition) {
    for (layer, fact) in (0_u16..).zip(&position.layers) {
        for (rank, (token, logit)) in (0_u16..).zip(&fact.top) {
            rows.int(0, seq);
            rows.int(1, position.pos.get());
            rows.int(2, layer);
            rows.int(3, rank);
            rows.int(4, token.get());
            rows.real(5, *logit);
        }
    }
}

fn close(
    writer: GroupWriter<BufWriter<File>>,
    path: &Path,
    inside: String,
    rows: u64,
) -> Result<TableInfo, TraceError> {
    let io = |error| TraceError::io(path, error);
    let buffer = writer.finish().map_err(TraceError::table)?;
    let file = buffer.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    let mut file = File::open(path).map_err(io)?;
    let (bytes, sha256) = sha256_of_file(&mut file, path)?;
    Ok(TableInfo { path: inside, rows, bytes, sha256 })
}

/// Where the rows of a journal entry called `name` for a table wait.
fn part_path(name: &str, table: &str) -> String {
    format!("{}/{name}.{}", super::journal::JOURNAL, table.strip_prefix("facts/").unwrap_or(table))
}

/// Writes and syncs the rows of a journal entry called `name`, a part a table.
pub(super) fn write_parts(
    root: &Path,
    name: &str,
    tables: Vec<(&'static str, Table)>,
) -> Result<Vec<TableInfo>, TraceError> {
    let write = |(table, rows): (&'static str, Table)| {
        let inside = part_path(name, table);
        let path = root.join(&inside);
        let file = File::create(&path).map_err(|error| TraceError::io(&path, error))?;
        let mut writer = GroupWriter::start(BufWriter::new(file), &rows, &path).map_err(TraceError::table)?;
        writer.write_group(&rows).map_err(TraceError::table)?;
        close(writer, &path, inside, rows.rows() as u64)
    };
    tables.into_iter().map(write).collect()
}

/// Merges the parts of all journal entries into the tables of the trace, a row group at a time.
pub(super) fn merge(
    root: &Path,
    journal: &Journal,
    header: &TraceHeader,
) -> Result<Vec<TableInfo>, TraceError> {
    let merge_table = |table: &'static str| {
        let path = root.join(table);
        let file = File::create(&path).map_err(|error| TraceError::io(&path, error))?;
        let prototype = schema::Rows::new(table).prototype();
        let mut writer =
            GroupWriter::start(BufWriter::new(file), &prototype, &path).map_err(TraceError::table)?;
        let suffix = part_path("", table).rsplit('/').next().unwrap_or_default().to_owned();
        let mut rows = 0;
        for part in journal.parts().filter(|part| part.path.ends_with(&suffix)) {
            for_each_group(root, &part.path, |group| {
                rows += group.rows() as u64;
                writer.write_group(&group).map_err(TraceError::table)
            })?;
        }
        close(writer, &path, table.to_owned(), rows)
    };
    header.tables().into_iter().map(merge_table).collect()
}

/// The tokens of the branches' prompts of all finished problems, one after the other.
pub(super) fn branch_tokens(root: &Path, journal: &Journal) -> Result<Vec<u32>, TraceError> {
    let name = part_path("", BRANCH_TOKENS).rsplit('/').next().unwrap_or_default().to_owned();
    let parts = journal.parts().map(|part| part.path.as_str()).filter(|path| path.ends_with(&name));
    // Once the manifest is written they are where they stay.
    let parts: Vec<&str> = if journal.sealed.is_some() { vec![BRANCH_TOKENS] } else { parts.collect() };
    let mut tokens = Vec::new();
    for inside in parts {
        for_each_group(root, inside, |group| {
            let column = group.int("token").map_err(TraceError::table)?;
            tokens.extend(
                column.iter().map(|token| token.and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX)),
            );
            Ok(())
        })?;
    }
    Ok(tokens)
}

fn for_each_group(
    root: &Path,
    inside: &str,
    mut each: impl FnMut(Table) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let (_, path) = folder::open_inside(root, inside)?;
    let bytes = std::fs::read(&path).map_err(|error| TraceError::io(&path, error))?;
    let file = TableFile::open(bytes.into(), &path).map_err(TraceError::table)?;
    (0..file.groups()).try_for_each(|group| each(file.read(file.group(group)).map_err(TraceError::table)?))
}
