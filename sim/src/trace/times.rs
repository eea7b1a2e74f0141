//! `facts/times.jsonl`: how long the parts of a pass took on the machine that recorded. Data for cost models; nothing else reads it.
//!
//! Such times differ from one recording to the next, so they are there on demand only.

use super::folder::{open_inside, sha256};
use super::manifest::TableInfo;
use super::reader::Trace;
use super::{Manifest, TraceError};
use crate::cost::{Measurement, parse_times};
use crate::table::write_whole;
use std::path::Path;

/// Path of the file inside a trace.
pub(crate) const TIMES: &str = "facts/times.jsonl";

/// Writes and syncs the file.
pub(super) fn write(root: &Path, times: &[Measurement]) -> Result<TableInfo, TraceError> {
    if times.is_empty() {
        return Err(TraceError::chunk("times", "none", "at least one"));
    }
    let path = root.join(TIMES);
    let mut bytes = Vec::new();
    for time in times {
        let json = |source| TraceError::Manifest { path: path.clone(), place: ".".to_owned(), source };
        serde_json::to_writer(&mut bytes, time).map_err(json)?;
        bytes.push(b'\n');
    }
    write_whole(&path, &bytes).map_err(|error| TraceError::io(&path, error))?;
    let (rows, size) = (times.len() as u64, bytes.len() as u64);
    Ok(TableInfo { path: TIMES.to_owned(), rows, bytes: size, sha256: sha256(&bytes) })
}

/// Reads the file in full, digest included.
pub(super) fn read(trace: &Trace) -> Result<Vec<Measurement>, TraceError> {
    let manifest = trace.manifest();
    let Some(info) = &manifest.times else {
        return Err(TraceError::MissingField { field: TIMES, held: manifest.field_names() });
    };
    let (_, path) = open_inside(trace.path(), &info.path)?;
    let bytes = std::fs::read(&path).map_err(|error| TraceError::io(&path, error))?;
    let found = sha256(&bytes);
    if found != info.sha256 {
        return Err(TraceError::Checksum { path, expected: info.sha256.clone(), found });
    }
    let bad = |found: String| TraceError::malformed(&path, "lines", found, "a measured time each");
    let text = String::from_utf8(bytes).map_err(|error| bad(error.to_string()))?;
    let times = parse_times(&text, TIMES).map_err(|error| bad(error.to_string()))?;
    check(manifest, &times, &path)?;
    if times.len() as u64 != info.rows {
        return Err(TraceError::malformed(&path, "lines", times.len(), info.rows.to_string()));
    }
    Ok(times)
}

/// No pass runs more layers than there are.
fn check(manifest: &Manifest, times: &[Measurement], path: &Path) -> Result<(), TraceError> {
    let most = manifest.shape.layers;
    match times.iter().enumerate().find(|(_, time)| time.layers.is_some_and(|layers| layers > most)) {
        Some((at, time)) => {
            let place = format!("line {}: layers", at + 1);
            let found = time.layers.unwrap_or_default();
            Err(TraceError::malformed(path, place, found, format!("at most {most}")))
        }
        None => Ok(()),
    }
}
