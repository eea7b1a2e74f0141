//! The files of a figure: the picture, the table behind it, and a note that says what it is and how it was made.

use crate::error::PlotsError;
use crate::figure::{Drawing, Figure, evidence};
use kvlab_sim::results::Results;
use kvlab_sim::table::to_csv;

/// `<id>.svg`, `<id>.csv` and `<id>.txt`: names and contents.
pub(crate) fn files(
    figure: &dyn Figure,
    drawing: &Drawing,
    results: &Results,
) -> Result<Vec<(String, Vec<u8>)>, PlotsError> {
    let contents = [drawing.svg()?, to_csv(&drawing.data), note(figure, drawing, results)];
    Ok(names(figure).into_iter().zip(contents.map(String::into_bytes)).collect())
}

/// The names of a figure's files.
pub(crate) fn names(figure: &dyn Figure) -> [String; 3] {
    ["svg", "csv", "txt"].map(|ending| format!("{}.{ending}", figure.id()))
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
