//! What can be wrong with a table or its file.

use std::path::PathBuf;

/// A table that cannot be built, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Two columns share a name.
    #[error("column `{column}` exists twice")]
    DuplicateColumn {
        /// The name.
        column: String,
    },
    /// A column is longer or shorter than the others.
    #[error("column `{column}` has {found} rows where the others have {expected}")]
    Length {
        /// The column.
        column: String,
        /// Rows of the other columns.
        expected: usize,
        /// Rows found.
        found: usize,
    },
    /// A real is NaN or infinite.
    #[error("column `{column}` row {row} is not a finite number")]
    NotFinite {
        /// The column.
        column: String,
        /// The row, from 0.
        row: usize,
    },
    /// There is no such column.
    #[error("no column `{column}`; there are: {}", known.join(", "))]
    MissingColumn {
        /// The name asked for.
        column: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The column holds another kind of value.
    #[error("column `{column}` holds {found} values, not {expected}")]
    Kind {
        /// The column.
        column: String,
        /// The kind asked for.
        expected: &'static str,
        /// The kind found.
        found: &'static str,
    },
    /// The file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no Parquet file that we can read.
    #[error("{}: not a readable Parquet table: {detail}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the Parquet reader said.
        detail: String,
    },
}
