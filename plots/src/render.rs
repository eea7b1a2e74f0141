//! Figures into a folder: one, or all.

use crate::error::PlotsError;
use crate::figure::{Figure, Outcome, missing};
use crate::registry::{FIGURES, figure};
use crate::sidecar;
use kvlab_sim::results::Results;
use std::path::{Path, PathBuf};

/// What became of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The figure's id.
    pub id: &'static str,
    /// Whether there was something to draw.
    pub status: Status,
    /// The files written.
    pub files: Vec<PathBuf>,
}

/// Whether a figure was drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was.
    Drawn,
    /// The tables have nothing for it.
    NothingToDraw {
        /// Why, as a sentence.
        reason: String,
    },
}

/// Draws all figures into `folder`, which is made when it is not there.
///
/// # Errors
/// When a file cannot be written or the drawing backend fails. A figure without data is no error.
pub fn render_all(results: &Results, folder: &Path) -> Result<Vec<Rendered>, PlotsError> {
    FIGURES.iter().map(|figure| render(*figure, results, folder)).collect()
}

/// Draws the figure called `id` into `folder`, which is made when it is not there.
///
/// # Errors
/// As for [`render_all`], and when there is no such figure.
pub fn render_one(results: &Results, id: &str, folder: &Path) -> Result<Rendered, PlotsError> {
    render(figure(id)?, results, folder)
}

/// Draws, or says why not: unmet needs first, then what the figure itself finds.
///
/// # Errors
/// When the table behind the figure cannot be built.
pub fn draw(figure: &dyn Figure, results: &Results) -> Result<Outcome, PlotsError> {
    let missing = missing(figure, results);
    if missing.is_empty() {
        return figure.draw(results);
    }
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    Ok(Outcome::nothing(format!("the tables have no {}", names.join(" and no "))))
}

fn render(figure: &dyn Figure, results: &Results, folder: &Path) -> Result<Rendered, PlotsError> {
    std::fs::create_dir_all(folder).map_err(|source| PlotsError::Io { path: folder.to_owned(), source })?;
    match draw(figure, results)? {
        Outcome::Drawn(drawing) => {
            let files = sidecar::write(figure, &drawing, results, folder)?;
            Ok(Rendered { id: figure.id(), status: Status::Drawn, files })
        }
        Outcome::Nothing(reason) => {
            sidecar::remove(figure, folder)?;
            Ok(Rendered { id: figure.id(), status: Status::NothingToDraw { reason }, files: Vec::new() })
        }
    }
}
