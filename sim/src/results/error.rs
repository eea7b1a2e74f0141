//! What can be wrong with a results folder.

use super::ResultsVersion;
use crate::table::TableError;
use std::path::PathBuf;

/// Results that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultsError {
    /// Written by another major version.
    #[error("results have version {found}, this build reads {supported}")]
    Version {
        /// The version found.
        found: ResultsVersion,
        /// The version that this build writes.
        supported: ResultsVersion,
    },
    /// There are no results.
    #[error("{}: expected a folder of results, with results.json in it; found {found}", path.display())]
    NotResults {
        /// The folder.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A table is not the one that was written with the manifest.
    #[error("{}: SHA-256 is {found}, results.json says {expected}", path.display())]
    Checksum {
        /// The table.
        path: PathBuf,
        /// The digest on record.
        expected: String,
        /// The digest found.
        found: String,
    },
    /// The manifest is no valid JSON of ours.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A table is not as it must be.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A required column is not there.
    #[error("{table}: no column `{column}`")]
    MissingColumn {
        /// `cells` or `series`.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
    /// A required column holds another kind of value.
    #[error("{table}: column `{column}` holds {found} values, not {expected}")]
    ColumnKind {
        /// `cells` or `series`.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The kind that the version says.
        expected: &'static str,
        /// The kind found.
        found: &'static str,
    },
}
