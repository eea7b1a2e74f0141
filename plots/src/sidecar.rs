//! The files of a figure: the picture, the table behind it, and a note that says what it is and how it was made.

use crate::error::PlotsError;
use crate::figure::{Drawing, Figure, evidence};
use crate::png::png;
use crate::render::Pictures;
use kvlab_sim::results::Results;
use kvlab_sim::table::to_csv;

/// `<id>.svg`, `<id>.csv`, `<id>.txt`, and `<id>.png` where it is asked for: names and contents.
pub(crate) fn files(
    figure: &dyn Figure,
    drawing: &Drawing,
    results: &Results,
    pictures: Pictures,
) -> Result<Vec<(String, Vec<u8>)>, PlotsError> {
    let svg = drawing.svg()?;
    let png = match pictures {
        Pictures::Svg => None,
        Pictures::SvgAndPng => {
            Some(png(&svg).map_err(|detail| PlotsError::Backend { figure: figure.id(), detail })?)
        }
    };
    let texts = [svg, to_csv(&drawing.data), note(figure, drawing, results)].map(String::into_bytes);
    Ok(names(figure).into_iter().zip(texts.into_iter().chain(png)).collect())
}

/// The names of a figure's files, the picture in points last.
pub(crate) fn names(figure: &dyn Figure) -> [String; 4] {
    ["svg", "csv", "txt", "png"].map(|ending| format!("{}.{ending}", figure.id()))
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
