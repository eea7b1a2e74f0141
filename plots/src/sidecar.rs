//! The files of a figure: the picture, the table behind it, and a note that says what it is and how it was made.

use crate::error::PlotsError;
use crate::figure::{Drawing, Figure, evidence};
use kvlab_sim::results::Results;
use kvlab_sim::table::to_csv;
use std::path::{Path, PathBuf};

/// Writes `<id>.svg`, `<id>.csv` and `<id>.txt` into `folder` and returns their paths.
pub(crate) fn write(
    figure: &dyn Figure,
    drawing: &Drawing,
    results: &Results,
    folder: &Path,
) -> Result<Vec<PathBuf>, PlotsError> {
    let contents =
        [("svg", drawing.svg()?), ("csv", to_csv(&drawing.data)), ("txt", note(figure, drawing, results))];
    let mut files = Vec::new();
    for (ending, text) in contents {
        let path = path(figure, folder, ending);
        std::fs::write(&path, text).map_err(|source| PlotsError::Io { path: path.clone(), source })?;
        files.push(path);
    }
    Ok(files)
}

/// Removes what an earlier run left of a figure that now has nothing to draw, so that no stale picture stays.
pub(crate) fn remove(figure: &dyn Figure, folder: &Path) -> Result<(), PlotsError> {
    for ending in ["svg", "csv", "txt"] {
        let path = path(figure, folder, ending);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(PlotsError::Io { path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

fn path(figure: &dyn Figure, folder: &Path, ending: &str) -> PathBuf {
    folder.join(format!("{}.{ending}", figure.id()))
}

fn note(figure: &dyn Figure, drawing: &Drawing, results: &Results) -> String {
    let manifest = &results.manifest;
    let mut lines = vec![
        drawing.scene.title.clone(),
        format!("question: {}", figure.question()),
        format!("evidence: {}", evidence(figure).join(", ")),
    ];
    lines.extend(drawing.caption().iter().map(|line| format!("caption: {line}")));
    lines.push(format!("scenario: {} ({})", manifest.scenario, manifest.scenario_digest));
    lines
        .extend(manifest.sources.iter().map(|source| format!("source: {} ({})", source.name, source.digest)));
    lines.push(format!("tool: {}", manifest.tool));
    lines.push(format!("results made by: {}", manifest.command));
    lines.push(format!("figure made by: kvlab plot RESULTS --figure {}", figure.id()));
    lines.iter().map(|line| line.replace(['\n', '\r'], " ") + "\n").collect()
}
