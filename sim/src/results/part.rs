//! A part of a study: the rows of some of its units, with the content hash of each.
//!
//! A part knows nothing of the study it was run for: two studies that have a cell in common have its unit in common. On disk it is one JSON
//! file in the folder `parts` beside the tables, named after its own SHA-256: a file whose name and content disagree is damaged, and
//! two processes that finish the same units write the same file.

use super::{
    CELL_KEYS, CellRow, MORE_TABLES, RESULTS_VERSION, ResultsError, ResultsVersion, SeriesRow, sha256_hex,
};
use super::{part_cells_table, series_of, table_of};
use crate::table::{Table, TableError, Value, write_whole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Folder of the parts, inside that of the results.
const FOLDER: &str = "parts";
/// Hex digits of the digest in a part's name.
const NAME_DIGITS: usize = 24;

/// What one unit of a study gave: at most one cell, and the rows that belong to it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The unit's content hash.
    pub id: String,
    /// Its row of `cells`; absent for what is no cell.
    pub cell: Option<CellRow>,
    /// Its rows of `series`.
    pub series: Vec<SeriesRow>,
    /// Its rows of the tables of [`MORE_TABLES`], by name.
    pub more: Vec<(&'static str, Vec<Vec<Value>>)>,
}

/// Rows of some units of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    version: ResultsVersion,
    /// Name of the trace in the rows: no part of a cell's identity, so whoever puts parts together says it anew.
    source: String,
    units: Vec<PartUnit>,
    tables: Vec<(String, Table)>,
}

/// One unit of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartUnit {
    id: String,
    /// Rows of the unit in each of the part's tables: units lie one after the other in all of them.
    rows: Vec<usize>,
}

impl Part {
    /// The part of these outcomes over the trace called `source`.
    ///
    /// # Errors
    /// When a value is not finite.
    pub fn of(source: &str, outcomes: &[Outcome]) -> Result<Self, TableError> {
        let cells: Vec<CellRow> = outcomes.iter().filter_map(|outcome| outcome.cell.clone()).collect();
        let series: Vec<&SeriesRow> = outcomes.iter().flat_map(|outcome| &outcome.series).collect();
        let mut tables =
            vec![("cells".to_owned(), part_cells_table(&cells)?), ("series".to_owned(), series_of(&series)?)];
        let rows_of = |outcome: &Outcome, name: &str| -> usize {
            outcome.more.iter().filter(|(known, _)| *known == name).map(|(_, rows)| rows.len()).sum()
        };
        for (name, columns) in MORE_TABLES {
            let rows = outcomes.iter().flat_map(|o| &o.more).filter(|(known, _)| known == name);
            let rows: Vec<&Vec<Value>> = rows.flat_map(|(_, rows)| rows).collect();
            tables.push(((*name).to_owned(), table_of(columns, &rows)?));
        }
        let unit = |outcome: &Outcome| {
            let mut rows = vec![usize::from(outcome.cell.is_some()), outcome.series.len()];
            rows.extend(MORE_TABLES.iter().map(|(name, _)| rows_of(outcome, name)));
            PartUnit { id: outcome.id.clone(), rows }
        };
        Ok(Self {
            version: RESULTS_VERSION,
            source: source.to_owned(),
            units: outcomes.iter().map(unit).collect(),
            tables,
        })
    }

    /// Content hashes of its units, in their order.
    pub fn units(&self) -> impl Iterator<Item = &str> {
        self.units.iter().map(|unit| unit.id.as_str())
    }

    /// Status and reason of every cell: `ok`, `failed` or `skipped`.
    pub fn statuses(&self) -> impl Iterator<Item = (&str, Value, Value)> {
        let cells = self.table("cells");
        let mut row = 0;
        self.units.iter().filter(|unit| unit.rows.first() == Some(&1)).map(move |unit| {
            let value = |column| cells.map_or(Value::Absent, |cells| cells.value(column, row));
            let found = (unit.id.as_str(), value("status"), value("error"));
            row += 1;
            found
        })
    }

    fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|(known, _)| known == name).map(|(_, table)| table)
    }

    /// Whether units and tables agree.
    fn is_whole(&self) -> bool {
        let fits = |(at, (_, table)): (usize, &(String, Table))| {
            let rows = self.units.iter().map(|unit| unit.rows.get(at).copied().unwrap_or(0)).sum::<usize>();
            rows == table.rows() || (rows == 0 && table.rows() == 0)
        };
        self.tables.iter().enumerate().all(fits)
    }
}

/// The rows of `parts`, gathered in the order of `units`. Each unit is taken from the first part that has it.
///
/// Text columns of `cells` that say what was studied are set to what `named` says, since parts may come from other studies.
///
/// # Errors
/// When parts hold columns of different kinds.
pub(crate) fn gather(
    units: &[&str],
    mut parts: Vec<Part>,
    named: &Named<'_>,
) -> Result<BTreeMap<&'static str, Table>, TableError> {
    let mut place: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (at, part) in parts.iter().enumerate() {
        for (unit, id) in part.units().enumerate() {
            place.entry(id.to_owned()).or_insert((at, unit));
        }
    }
    let names = ["cells", "series"].into_iter().chain(MORE_TABLES.iter().map(|(name, _)| *name));
    let mut gathered = BTreeMap::new();
    for name in names {
        let (mut all, mut starts) = (Table::new(), Vec::with_capacity(parts.len()));
        for part in &mut parts {
            let mut at = all.rows();
            let column = part.tables.iter().position(|(known, _)| known == name);
            let mut of_part = Vec::with_capacity(part.units.len());
            for unit in &part.units {
                let rows = column.and_then(|column| unit.rows.get(column)).copied().unwrap_or(0);
                of_part.push(at..at + rows);
                at += rows;
            }
            starts.push(of_part);
            let Some(table) = column.map(|column| std::mem::take(&mut part.tables[column].1)) else {
                continue;
            };
            let table = match name {
                _ if table.rows() == 0 => continue,
                "cells" => named.renamed(part, &table)?,
                _ => table,
            };
            // What comes first need not be copied.
            if all.rows() == 0 { all = table } else { all.append(&table)? }
        }
        let rows: Vec<usize> = units
            .iter()
            .filter_map(|id| place.get(*id))
            .flat_map(|&(part, unit)| starts[part][unit].clone())
            .collect();
        // As a rule they stand in their order already.
        let is_ordered = rows.len() == all.rows() && rows.iter().copied().eq(0..rows.len());
        gathered.insert(name, if is_ordered { all } else { all.take(&rows) });
    }
    Ok(gathered)
}

/// What the study calls itself and its trace.
pub(crate) struct Named<'a> {
    pub(crate) scenario: &'a str,
    pub(crate) source: &'a str,
}

impl Named<'_> {
    fn renamed(&self, part: &Part, table: &Table) -> Result<Table, TableError> {
        let mut renamed = Table::new();
        for (name, column) in table.names().iter().zip(table.columns()) {
            let said = |value: Value| match (name.as_str(), value) {
                ("scenario", Value::Text(_)) => Value::Text(self.scenario.to_owned()),
                ("source", Value::Text(source)) if source == part.source => {
                    Value::Text(self.source.to_owned())
                }
                (_, value) => value,
            };
            match name.as_str() {
                "scenario" | "source" => {
                    let values = (0..table.rows()).map(|row| said(table.value(name, row)));
                    renamed.push(name, crate::table::Column::of_kind("text", values))?;
                }
                _ => renamed.push(name, column.clone())?,
            }
        }
        debug_assert!(CELL_KEYS.iter().any(|(name, _, _)| *name == "scenario"));
        Ok(renamed)
    }
}

/// What is in the folder of parts.
#[derive(Debug, Default)]
pub struct Parts {
    /// Parts whose digest is right, in the order of their names.
    pub whole: Vec<Part>,
    /// Files that are not what their name says, with what is wrong.
    pub damaged: Vec<(PathBuf, String)>,
    /// Parts of another version of the tables.
    pub others: usize,
}

impl Parts {
    /// Reads the parts beside the results in `dir`; none when there is no such folder.
    ///
    /// # Errors
    /// When the folder cannot be listed or a file in it cannot be read.
    pub fn read(dir: &Path) -> Result<Self, ResultsError> {
        let folder = dir.join(FOLDER);
        let io = |path: &Path, source| ResultsError::Io { path: path.to_owned(), source };
        let listed = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            listed => listed.map_err(|error| io(&folder, error))?,
        };
        let mut paths = Vec::new();
        for entry in listed {
            let path = entry.map_err(|error| io(&folder, error))?.path();
            // Temporary files of a writer that is at work, or was killed, end otherwise.
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut found = Self::default();
        for path in paths {
            let bytes = match fs::read(&path) {
                // Another shard may put a damaged file aside at the same time.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                read => read.map_err(|error| io(&path, error))?,
            };
            match checked(&path, &bytes) {
                Ok(Some(part)) => found.whole.push(part),
                Ok(None) => found.others += 1,
                Err(reason) => found.damaged.push((path, reason)),
            }
        }
        Ok(found)
    }

    /// Removes the parts beside the results in `dir`, of whatever study.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(dir: &Path) -> Result<(), ResultsError> {
        let folder = dir.join(FOLDER);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ResultsError::Io { path: folder, source: error })
            }
            _ => Ok(()),
        }
    }

    /// Puts damaged files aside, so that they are told once and never taken for a part.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_aside(&self) -> Result<(), ResultsError> {
        for (path, _) in &self.damaged {
            match fs::rename(path, path.with_extension("damaged")) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                renamed => {
                    renamed.map_err(|source| ResultsError::Io { path: path.clone(), source })?;
                }
            }
        }
        Ok(())
    }
}

/// The part in `bytes`; nothing when it is of another version; the reason when it is damaged.
fn checked(path: &Path, bytes: &[u8]) -> Result<Option<Part>, String> {
    #[derive(Deserialize)]
    struct Versioned {
        version: ResultsVersion,
    }
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let digest = sha256_hex(bytes);
    if digest[..NAME_DIGITS] != name {
        return Err(format!("its SHA-256 begins with {}, its name says otherwise", &digest[..NAME_DIGITS]));
    }
    let version = serde_json::from_slice::<Versioned>(bytes).map_err(|error| error.to_string())?.version;
    if version != RESULTS_VERSION {
        return Ok(None);
    }
    let part: Part = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if part.is_whole() { Ok(Some(part)) } else { Err("its units and tables do not agree".to_owned()) }
}

/// Writes `part` into the folder of parts beside the results in `dir`: whole or not at all, also when the process is killed.
///
/// # Errors
/// When the system refuses.
pub fn save(dir: &Path, part: &Part) -> Result<(), ResultsError> {
    let folder = dir.join(FOLDER);
    let io = |path: &Path, source| ResultsError::Io { path: path.to_owned(), source };
    fs::create_dir_all(&folder).map_err(|error| io(&folder, error))?;
    let bytes =
        serde_json::to_vec(part).map_err(|source| ResultsError::Manifest { path: folder.clone(), source })?;
    let path = folder.join(format!("{}.json", &sha256_hex(&bytes)[..NAME_DIGITS]));
    write_whole(&path, &bytes).map_err(|error| io(&path, error))
}
