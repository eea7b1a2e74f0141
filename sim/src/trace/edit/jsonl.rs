//! Facts as JSON lines, one object a row, for tools that read nothing else.

use crate::table::{Column, Table};
use crate::trace::facts_schema::TABLES;
use crate::trace::{Trace, TraceError};
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Rows read in one go.
const ROWS: usize = 1 << 14;

/// Writes `sequences.jsonl` and a file for each facts table into the new folder `target`, which is whole or not there. Gives
/// the number of lines.
///
/// # Errors
/// When `target` exists, the trace is damaged, or the system refuses.
pub fn to_jsonl(trace: &Trace, target: &Path) -> Result<u64, TraceError> {
    if fs::symlink_metadata(target).is_ok() {
        return Err(TraceError::Exists { path: target.to_owned() });
    }
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let unfinished = target.with_file_name(name);
    let io = |path: &Path, error| TraceError::io(path, error);
    fs::create_dir_all(&unfinished).map_err(|error| io(&unfinished, error))?;
    let written = write_all(trace, &unfinished);
    let moved = written.and_then(|lines| {
        fs::rename(&unfinished, target).map_err(|error| io(target, error))?;
        Ok(lines)
    });
    if moved.is_err() {
        // The first error is the one to report.
        drop(fs::remove_dir_all(&unfinished));
    }
    moved
}

fn write_all(trace: &Trace, folder: &Path) -> Result<u64, TraceError> {
    let sequences =
        trace.manifest().sequences.iter().map(|info| serde_json::to_value(info).unwrap_or_default());
    let mut lines = write(&folder.join("sequences.jsonl"), |each| sequences.clone().try_for_each(each))?;
    for table in TABLES.iter().filter(|table| trace.manifest().table(table.path).is_some()) {
        let file = trace.table_file(table.path)?;
        let path = folder.join(format!("{}.jsonl", table.name()));
        lines += write(&path, |each| {
            (0..file.rows()).step_by(ROWS).try_for_each(|start| {
                let rows = file.read(start..(start + ROWS).min(file.rows())).map_err(TraceError::table)?;
                (0..rows.rows()).try_for_each(|row| each(object(&rows, row)))
            })
        })?;
    }
    Ok(lines)
}

fn object(table: &Table, row: usize) -> Value {
    let value = |column: &Column| match column {
        Column::Text(values) => values[row].as_deref().map_or(Value::Null, Value::from),
        Column::Int(values) => values[row].map_or(Value::Null, Value::from),
        Column::Real(values) => values[row].map_or(Value::Null, Value::from),
        Column::Bool(values) => values[row].map_or(Value::Null, Value::from),
    };
    let fields = table.names().iter().cloned().zip(table.columns().iter().map(value));
    Value::Object(fields.collect::<Map<_, _>>())
}

type Each<'a> = &'a mut dyn FnMut(Value) -> Result<(), TraceError>;

fn write(path: &Path, fill: impl FnOnce(Each<'_>) -> Result<(), TraceError>) -> Result<u64, TraceError> {
    let io = |error| TraceError::io(path, error);
    let mut file = BufWriter::new(File::create(path).map_err(io)?);
    let mut lines = 0;
    fill(&mut |value| {
        lines += 1;
        writeln!(file, "{value}").map_err(io)
    })?;
    file.into_inner().map_err(|error| io(error.into_error()))?.sync_all().map_err(io)?;
    Ok(lines)
}
