//! What can be wrong with a trace: where, what was found, and what would have been accepted.

use super::TraceVersion;
use crate::table::TableError;
use crate::types::ShapeError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a path in a manifest is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathFault {
    /// It is empty, or not made of plain names joined by `/`.
    #[error("only plain names joined by `/` are accepted")]
    NotPlain,
    /// It is not of the form that the format gives to such a file.
    #[error("it is not where the format puts such a file")]
    Misplaced,
    /// The file is a link, or reached through one.
    #[error("links are not followed")]
    Link,
    /// It is not a regular file.
    #[error("it is not a regular file")]
    NotAFile,
}

/// A trace that cannot be written, opened, read or trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Written in another major version of the format.
    #[error("trace format {found} is not readable; this build reads {supported}")]
    Version {
        /// The version found.
        found: TraceVersion,
        /// The newest version that this build knows.
        supported: TraceVersion,
    },
    /// The trace needs a feature of its reader that this build does not have.
    #[error("the trace requires `{feature}`, which this build does not know")]
    UnknownRequirement {
        /// The feature or field.
        feature: String,
    },
    /// Something else is there.
    #[error("{}: expected a trace, a folder with manifest.json; found {found}", path.display())]
    NotATrace {
        /// What was given.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// The recording was interrupted.
    #[error("{}: an unfinished recording", path.display())]
    Incomplete {
        /// The folder.
        path: PathBuf,
    },
    /// The target folder is there already.
    #[error("{}: exists already", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The process was killed while a new trace took the place of an old one.
    #[error("{}: the trace that was at {} until a new one was to take its place, which was interrupted", path.display(), target.display())]
    Aside {
        /// Where the old trace is now.
        path: PathBuf,
        /// Where it was.
        target: PathBuf,
    },
    /// An earlier recording to the same target was interrupted.
    #[error("{}: left by an interrupted recording", path.display())]
    Leftover {
        /// The folder of unfinished work.
        path: PathBuf,
    },
    /// Another process is recording to the same target.
    #[error("{}: another recording is writing there", path.display())]
    Busy {
        /// The folder of unfinished work.
        path: PathBuf,
    },
    /// A recording cannot be continued with other settings than it was begun with.
    #[error("{}: begun with `{part}` {begun}, now {now}", path.display())]
    ResumeMismatch {
        /// The folder of unfinished work.
        path: PathBuf,
        /// The first part of the header that differs, as a path inside it.
        part: String,
        /// What it was begun with, as JSON; null for nothing, `given` for a part that only one of the two has.
        begun: String,
        /// What is asked for now, in the same way.
        now: String,
    },
    /// The disk or the quota is full.
    #[error("{}: no space left: {source}", path.display())]
    DiskFull {
        /// The file being written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The manifest is no valid JSON of ours.
    #[error("{}: at `{place}`: {source}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Path inside the JSON document.
        place: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file is not what the format says.
    #[error("{}: {place}: found {found}, accepted: {accepted}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Tensor, column or JSON path.
        place: String,
        /// What is there.
        found: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// A path in the manifest is refused.
    #[error("{}: {place}: path `{found}` is refused: {fault}", manifest.display())]
    Path {
        /// The manifest.
        manifest: PathBuf,
        /// JSON path of the entry.
        place: String,
        /// The path found.
        found: String,
        /// Why.
        fault: PathFault,
    },
    /// A file is longer or shorter than the manifest says.
    #[error("{}: {found} bytes where the manifest says {expected}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes in the manifest.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A file's content is not what the manifest says.
    #[error("{}: SHA-256 is {found}, recorded was {expected}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The digest on record.
        expected: String,
        /// The digest found.
        found: String,
    },
    /// A model shape that no decoder has.
    #[error("shape of the model: {0}")]
    Shape(#[from] ShapeError),
    /// A facts table cannot be read or written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// NaN or infinity where only numbers are accepted.
    #[error("{value} in `{field}` of sequence {seq}, layer {layer}, {}position {pos}", head_words(*head))]
    NonFinite {
        /// The field.
        field: &'static str,
        /// Recorded sequence.
        seq: u32,
        /// Layer.
        layer: u16,
        /// Query or KV head, where the field has heads.
        head: Option<u16>,
        /// Position in the sequence.
        pos: u32,
        /// What was found.
        value: f32,
    },
    /// NaN or infinity in a weight.
    #[error("{value} in element {element} of `{weight}`")]
    NonFiniteWeight {
        /// The weight.
        weight: String,
        /// Its element, row-major.
        element: usize,
        /// What was found.
        value: f32,
    },
    /// A finite value too large for the storage type that was asked for.
    #[error("{value} in `{field}` of sequence {seq}, layer {layer}, {}position {pos} does not fit a half float (at most 65504)", head_words(*head))]
    HalfOverflow {
        /// The field.
        field: &'static str,
        /// Recorded sequence.
        seq: u32,
        /// Layer.
        layer: u16,
        /// Query or KV head, where the field has heads.
        head: Option<u16>,
        /// Position in the sequence.
        pos: u32,
        /// The value.
        value: f32,
    },
    /// A sequence, layer or position that is not there.
    #[error("{what} {given} does not exist; there are {count}")]
    OutOfRange {
        /// `sequence`, `layer` or `position`.
        what: &'static str,
        /// The index asked for.
        given: u64,
        /// How many there are.
        count: u64,
    },
    /// The trace was recorded without a field that is needed.
    #[error("the trace holds no `{field}`; it holds: {}", held.join(", "))]
    MissingField {
        /// The field.
        field: &'static str,
        /// The fields there are.
        held: Vec<String>,
    },
    /// A field that is not there, by a name that somebody typed.
    #[error("the trace holds no `{field}`; it holds: {}", held.join(", "))]
    UnknownField {
        /// The name.
        field: String,
        /// The fields there are.
        held: Vec<String>,
    },
    /// Something cannot be generated.
    #[error("cannot generate: {what} is {found}, accepted: {accepted}")]
    Spec {
        /// The part of the specification.
        what: &'static str,
        /// What was given.
        found: String,
        /// What is accepted.
        accepted: String,
    },
    /// The caller of the writer broke its rules.
    #[error("cannot record {what}: found {found}, accepted: {accepted}")]
    Chunk {
        /// The part of the chunk or the call.
        what: String,
        /// What was given.
        found: String,
        /// What is accepted.
        accepted: String,
    },
}

impl TraceError {
    /// Wraps what the system said about `path`; a full disk becomes its own kind.
    #[must_use]
    pub fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DiskFull { path, source }
            }
            _ => Self::Io { path, source },
        }
    }

    /// Wraps a table error; what the system said is treated as in [`TraceError::io`].
    #[must_use]
    pub(crate) fn table(error: TableError) -> Self {
        match error {
            TableError::Io { path, source } => Self::io(&path, source),
            other => Self::Table(other),
        }
    }

    pub(crate) fn malformed(
        path: &Path,
        place: impl Into<String>,
        found: impl ToString,
        accepted: impl Into<String>,
    ) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            place: place.into(),
            found: clipped(found.to_string()),
            accepted: clipped(accepted.into()),
        }
    }

    pub(crate) fn chunk(what: impl Into<String>, found: impl ToString, accepted: impl ToString) -> Self {
        Self::Chunk { what: what.into(), found: found.to_string(), accepted: accepted.to_string() }
    }
}

/// A text that fits a message: a hostile file may hold any.
fn clipped(text: String) -> String {
    const MOST: usize = 300;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} … ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}

fn head_words(head: Option<u16>) -> String {
    head.map_or_else(String::new, |head| format!("head {head}, "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart_from_other_failures() {
        let at = Path::new("shard");
        let full = TraceError::io(at, io::Error::from(io::ErrorKind::StorageFull));
        assert!(matches!(full, TraceError::DiskFull { .. }), "{full}");
        let denied = TraceError::io(at, io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(matches!(denied, TraceError::Io { .. }), "{denied}");
    }
}
