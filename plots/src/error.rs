//! What can go wrong while drawing or writing. A table without the right columns is no error but an answer.

use kvlab_sim::table::TableError;
use std::path::PathBuf;

/// A figure or report that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotsError {
    /// There is no figure of that id.
    #[error("no figure `{given}`; there are: {}", known.join(", "))]
    UnknownFigure {
        /// The id asked for.
        given: String,
        /// The ids there are.
        known: Vec<&'static str>,
    },
    /// The drawing backend gave up.
    #[error("figure `{figure}`: the drawing backend failed: {detail}")]
    Backend {
        /// The figure's id.
        figure: &'static str,
        /// What the backend said.
        detail: String,
    },
    /// The table behind a figure could not be built or written.
    #[error("figure `{figure}`: {source}")]
    Table {
        /// The figure's id.
        figure: &'static str,
        /// What is wrong with the table.
        source: TableError,
    },
    /// Studies do not fit together.
    #[error("studies cannot be shown together: table `{table}`: {source}")]
    Overlay {
        /// The table.
        table: String,
        /// What does not fit.
        source: TableError,
    },
    /// There is nothing to show together.
    #[error("no study is given; accepted: at least one results folder")]
    NoStudy,
    /// A file or folder cannot be written or removed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}
