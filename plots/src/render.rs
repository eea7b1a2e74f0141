//! Figures into a folder: one, or all.

use crate::error::PlotsError;
use crate::figure::{Figure, Outcome, missing};
use crate::registry::{FIGURES, figure};
use crate::sidecar;
use kvlab_sim::results::Results;
use kvlab_sim::table::write_together;
use std::path::{Path, PathBuf};

/// Which pictures are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pictures {
    /// SVG.
    Svg,
    /// SVG, and the same as PNG at twice its size.
    SvgAndPng,
}

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
pub fn render_all(results: &Results, folder: &Path, pictures: Pictures) -> Result<Vec<Rendered>, PlotsError> {
    render(FIGURES, results, folder, pictures)
}

/// Draws the figure called `id` into `folder`, which is made when it is not there.
///
/// # Errors
/// As for [`render_all`], and when there is no such figure.
pub fn render_one(
    results: &Results,
    id: &str,
    folder: &Path,
    pictures: Pictures,
) -> Result<Rendered, PlotsError> {
    let mut rendered = render(&[figure(id)?], results, folder, pictures)?;
    Ok(rendered.remove(0))
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

/// Draws everything before anything is written, so that a folder is never half new. What an earlier run left of a figure that now
/// has nothing to draw is removed: no stale picture stays.
fn render(
    figures: &[&'static dyn Figure],
    results: &Results,
    folder: &Path,
    pictures: Pictures,
) -> Result<Vec<Rendered>, PlotsError> {
    let (mut rendered, mut files, mut obsolete) = (Vec::new(), Vec::new(), Vec::new());
    for &figure in figures {
        match draw(figure, results)? {
            Outcome::Drawn(drawing) => {
                let made = sidecar::files(figure, &drawing, results, pictures)?;
                let paths = made.iter().map(|(name, _)| folder.join(name)).collect();
                obsolete.extend(sidecar::names(figure).into_iter().skip(made.len()));
                files.extend(made);
                rendered.push(Rendered { id: figure.id(), status: Status::Drawn, files: paths });
            }
            Outcome::Nothing(reason) => {
                obsolete.extend(sidecar::names(figure));
                let status = Status::NothingToDraw { reason };
                rendered.push(Rendered { id: figure.id(), status, files: Vec::new() });
            }
        }
    }
    write_together(folder, &files, &obsolete).map_err(|(path, source)| PlotsError::Io { path, source })?;
    Ok(rendered)
}
