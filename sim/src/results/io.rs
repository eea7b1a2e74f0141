//! The results folder: `results.json`, `cells.parquet`, `series.parquet`, further tables where a study has them, and all as
//! CSV or JSON Lines on request.
//!
//! Equal results give equal bytes. The manifest is written last and removed first, and holds the SHA-256 of the Parquet tables, so
//! a folder with a manifest has the tables that belong to it. What cannot be written in full is not written at all.

use super::{
    CELL_KEYS, MORE_TABLES, Results, ResultsError, ResultsManifest, ResultsVersion, SERIES_COLUMNS,
    sha256_hex,
};
use crate::table::{Table, parquet_from_bytes, parquet_to_bytes, to_csv, to_jsonl, write_together};
use serde::{Deserialize, de::DeserializeOwned};
use std::fs;
use std::path::{Path, PathBuf};

const MANIFEST: &str = "results.json";
const CELLS: &str = "cells";
const SERIES: &str = "series";
/// Key of the tables' digests in the manifest.
const TABLES: &str = "tables";

/// Which files hold the tables beside Parquet. Files of an earlier run in the same folder that are not asked for are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    /// CSV.
    pub csv: bool,
    /// JSON Lines, one object a row.
    pub jsonl: bool,
}

impl Formats {
    /// Parquet alone.
    pub const PARQUET: Self = Self { csv: false, jsonl: false };
    /// Parquet, and the same tables as CSV.
    pub const WITH_CSV: Self = Self { csv: true, jsonl: false };
}

/// Writes `results` into the folder `dir`, which is made when it is not there.
///
/// # Errors
/// When a required column is missing or of another kind, or when the system refuses.
pub fn write(dir: &Path, results: &Results, formats: Formats) -> Result<(), ResultsError> {
    check_columns(CELLS, &results.cells, CELL_KEYS)?;
    check_columns(SERIES, &results.series, SERIES_COLUMNS)?;
    let manifest = dir.join(MANIFEST);
    let (mut files, mut obsolete, mut digests) = (Vec::new(), Vec::new(), serde_json::Map::new());
    let mut tables = vec![(CELLS, &results.cells), (SERIES, &results.series)];
    for (name, columns) in MORE_TABLES {
        match results.more(name) {
            Some(table) => {
                check_columns(name, table, columns)?;
                tables.push((name, table));
            }
            None => obsolete.extend(["parquet", "csv", "jsonl"].map(|ending| format!("{name}.{ending}"))),
        }
    }
    for (name, table) in tables {
        let parquet = parquet_to_bytes(table)?;
        digests.insert(format!("{name}.parquet"), sha256_hex(&parquet).into());
        files.push((format!("{name}.parquet"), parquet));
        let mut beside = |ending: &str, text: Option<String>| {
            let file = format!("{name}.{ending}");
            match text {
                Some(text) => files.push((file, text.into_bytes())),
                None => obsolete.push(file),
            }
        };
        beside("csv", formats.csv.then(|| to_csv(table)));
        beside("jsonl", formats.jsonl.then(|| to_jsonl(table)));
    }
    let refused = |source| ResultsError::Manifest { path: manifest.clone(), source };
    let mut value = serde_json::to_value(&results.manifest).map_err(refused)?;
    value[TABLES] = digests.into();
    let mut json = serde_json::to_vec_pretty(&value).map_err(refused)?;
    json.push(b'\n');
    files.push((MANIFEST.to_owned(), json));
    write_together(dir, &files, &obsolete).map_err(|(path, source)| ResultsError::Io { path, source })
}

/// Reads the results in the folder `dir`. Columns beyond the required ones are kept as they are.
///
/// # Errors
/// When there are none, they are damaged or of another major version, or a required column is missing or of another
/// kind.
pub fn read(dir: &Path) -> Result<Results, ResultsError> {
    let path = dir.join(MANIFEST);
    if !path.exists() {
        return Err(ResultsError::NotResults { path: dir.to_owned(), found: instead(dir) });
    }
    let text = fs::read(&path).map_err(|source| ResultsError::Io { path: path.clone(), source })?;
    let refused = |source| ResultsError::Manifest { path: path.clone(), source };
    serde_json::from_slice::<Versioned>(&text).map_err(refused)?.version.check_readable()?;
    let mut value: serde_json::Value = serde_json::from_slice(&text).map_err(refused)?;
    let digests = value.as_object_mut().and_then(|keys| keys.remove(TABLES)).unwrap_or_default();
    let manifest: ResultsManifest = serde_json::from_value(value).map_err(refused)?;
    let cells = read_table(dir, CELLS, CELL_KEYS, &digests)?;
    let series = read_table(dir, SERIES, SERIES_COLUMNS, &digests)?;
    let mut more = Vec::new();
    for (name, columns) in MORE_TABLES {
        if digests.get(format!("{name}.parquet")).is_some() {
            more.push(((*name).to_owned(), read_table(dir, name, columns, &digests)?));
        }
    }
    Ok(Results { manifest, cells, series, more })
}

/// What is at `dir`, where no results are.
fn instead(dir: &Path) -> &'static str {
    let holds = |name: &str| dir.join(name).exists();
    match () {
        () if !dir.exists() => "nothing of that name",
        () if !dir.is_dir() => "a file",
        () if holds("manifest.json") => "a trace; `kvlab replay` and `kvlab sweep` make results of one",
        () if holds("plan.json") => {
            "a sweep without tables; `kvlab status` says what is missing, `kvlab merge` makes them"
        }
        () if holds("tune.json") => "what `kvlab tune` recommends",
        () => "a folder without it",
    }
}

/// Files in the folder `dir` that bear the names of tables of results and that [`write()`] would replace or remove.
#[must_use]
pub fn tables_in(dir: &Path) -> Vec<String> {
    let names = [CELLS, SERIES].into_iter().chain(MORE_TABLES.iter().map(|(name, _)| *name));
    names
        .flat_map(|name| ["parquet", "csv", "jsonl"].map(|ending| format!("{name}.{ending}")))
        .filter(|name| dir.join(name).exists())
        .collect()
}

/// How the results in the folder `dir`, of whatever version, were made; nothing when there are none.
///
/// # Errors
/// When what is there cannot be read, or does not say it.
pub fn command_in(dir: &Path) -> Result<Option<String>, ResultsError> {
    #[derive(Deserialize)]
    struct Made {
        command: String,
    }
    Ok(said_in(dir)?.map(|made: Made| made.command))
}

/// Id of the scenario whose results, of whatever version, are in the folder `dir`; nothing when there are none.
///
/// # Errors
/// When what is there cannot be read, or does not say it.
pub fn scenario_in(dir: &Path) -> Result<Option<String>, ResultsError> {
    #[derive(Deserialize)]
    struct Of {
        scenario: String,
    }
    Ok(said_in(dir)?.map(|of: Of| of.scenario))
}

/// Some of what the manifest in `dir` says; nothing when there is none.
fn said_in<T: DeserializeOwned>(dir: &Path) -> Result<Option<T>, ResultsError> {
    let path = dir.join(MANIFEST);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|source| ResultsError::Io { path: path.clone(), source })?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|source| ResultsError::Manifest { path, source })
}

/// The version is looked at before anything else: another major version may have another manifest.
#[derive(Deserialize)]
struct Versioned {
    version: ResultsVersion,
}

type Required = &'static [(&'static str, &'static str, &'static str)];

fn read_table(
    dir: &Path,
    name: &'static str,
    required: Required,
    digests: &serde_json::Value,
) -> Result<Table, ResultsError> {
    let path = parquet_path(dir, name);
    let bytes = fs::read(&path).map_err(|source| ResultsError::Io { path: path.clone(), source })?;
    // Folders written before digests were kept have none.
    if let Some(expected) = digests.get(format!("{name}.parquet")) {
        let found = sha256_hex(&bytes);
        if expected.as_str() != Some(&found) {
            let expected = expected.as_str().unwrap_or("no text").to_owned();
            return Err(ResultsError::Checksum { path, expected, found });
        }
    }
    let table = parquet_from_bytes(bytes.into(), &path)?;
    check_columns(name, &table, required)?;
    Ok(table)
}

fn check_columns(name: &'static str, table: &Table, required: Required) -> Result<(), ResultsError> {
    for &(column, expected, _) in required {
        match table.column(column) {
            None => {
                return Err(ResultsError::MissingColumn { table: name, column });
            }
            Some(found) if found.kind() != expected => {
                return Err(ResultsError::ColumnKind { table: name, column, expected, found: found.kind() });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn parquet_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.parquet"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::RESULTS_VERSION;
    use crate::table::{Column, write_parquet};

    fn column(kind: &str) -> Column {
        match kind {
            "text" => Column::Text(vec![Some("a".into()), None]),
            "int" => Column::Int(vec![Some(-1), None]),
            "real" => Column::Real(vec![Some(0.5), None]),
            _ => Column::Bool(vec![Some(true), None]),
        }
    }

    fn table(columns: Required) -> Table {
        let mut table = Table::new();
        for (name, kind, _) in columns {
            table.push(name, column(kind)).unwrap();
        }
        table
    }

    fn results() -> Results {
        let mut cells = table(CELL_KEYS);
        cells.push("some_metric", Column::Real(vec![None, Some(3.25)])).unwrap();
        let manifest = ResultsManifest {
            version: RESULTS_VERSION,
            tool: "kvlab 0.1.0".to_owned(),
            scenario: "smoke".to_owned(),
            why: "to see".to_owned(),
            scenario_digest: "00".to_owned(),
            scenario_text: "id: smoke\n".to_owned(),
            sources: Vec::new(),
            command: "kvlab replay".to_owned(),
        };
        Results { manifest, cells, series: table(SERIES_COLUMNS), more: Vec::new() }
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|found| found.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &results(), Formats::WITH_CSV).unwrap();
        assert_eq!(read(dir.path()).unwrap(), results());
        assert_eq!(
            names(dir.path()),
            ["cells.csv", "cells.parquet", "results.json", "series.csv", "series.parquet"]
        );
    }

    #[test]
    fn a_second_run_leaves_no_table_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &results(), Formats::WITH_CSV).unwrap();
        write(dir.path(), &results(), Formats::PARQUET).unwrap();
        assert_eq!(names(dir.path()), ["cells.parquet", "results.json", "series.parquet"]);
    }

    #[test]
    fn equal_results_give_equal_bytes() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&first, &second] {
            write(dir.path(), &results(), Formats::WITH_CSV).unwrap();
        }
        for name in names(first.path()) {
            assert_eq!(
                fs::read(first.path().join(&name)).unwrap(),
                fs::read(second.path().join(&name)).unwrap(),
                "{name}"
            );
        }
    }

    #[test]
    fn a_missing_or_mistyped_column_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let without = Results { cells: table(&CELL_KEYS[1..]), ..results() };
        let error = write(dir.path(), &without, Formats::PARQUET).unwrap_err();
        assert_eq!(error.to_string(), "cells: no column `cell`");
        write(dir.path(), &results(), Formats::PARQUET).unwrap();
        let mut cells = Table::new();
        for (name, _, _) in CELL_KEYS {
            cells.push(name, Column::Bool(vec![None])).unwrap();
        }
        write_parquet(&cells, &dir.path().join("cells.parquet")).unwrap();
        assert!(matches!(read(dir.path()).unwrap_err(), ResultsError::Checksum { .. }));
        // A folder without digests is read as it is.
        let path = dir.path().join(MANIFEST);
        let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        manifest.as_object_mut().unwrap().remove(TABLES).unwrap();
        fs::write(&path, manifest.to_string()).unwrap();
        let error = read(dir.path()).unwrap_err();
        assert_eq!(error.to_string(), "cells: column `cell` holds bool values, not text");
    }

    #[test]
    fn another_major_version_is_refused_and_a_later_minor_one_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let versioned = |major, minor| {
            let manifest = ResultsManifest { version: ResultsVersion { major, minor }, ..results().manifest };
            Results { manifest, ..results() }
        };
        write(dir.path(), &versioned(2, 0), Formats::PARQUET).unwrap();
        assert!(matches!(read(dir.path()), Err(ResultsError::Version { .. })));
        write(dir.path(), &versioned(1, 9), Formats::PARQUET).unwrap();
        assert_eq!(read(dir.path()).unwrap(), versioned(1, 9));
    }
}
