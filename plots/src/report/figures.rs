//! The figures in the page: two widths of each, the caption in words, the table behind it.

use super::html::{escape, table};
use crate::error::PlotsError;
use crate::figure::{Drawing, Figure, Outcome, Section};
use crate::number::count;
use crate::registry::FIGURES;
use crate::render::draw;
use crate::scene::Frame;
use kvlab_sim::results::Results;

/// Rows of the table behind a figure that the page shows.
const MOST_ROWS: usize = 150;
/// Bytes of pictures that the page may hold, so that it stays below 5 MB.
const MOST_BYTES: usize = 1_400_000;

/// What the page says about figures.
pub(super) struct Figures {
    /// Sections with at least one picture, in order.
    pub(super) shown: Vec<Section>,
    /// Their HTML, and a list of the figures that could not be drawn.
    pub(super) html: String,
}

/// All sections with their figures.
pub(super) fn sections(results: &Results) -> Figures {
    let (mut room, mut missing) = (MOST_BYTES, Vec::new());
    let mut figures = Figures { shown: Vec::new(), html: String::new() };
    for section in Section::ALL {
        let blocks = blocks(section, results, &mut room, &mut missing);
        if blocks.is_empty() {
            continue;
        }
        let anchor = anchor(section);
        figures.shown.push(section);
        figures.html.push_str(&format!(
            "<section id=\"{anchor}\" aria-labelledby=\"{anchor}-h\">\n<h2 id=\"{anchor}-h\">{}</h2>\n{}</section>\n",
            section.title(),
            blocks.concat()
        ));
    }
    if !missing.is_empty() {
        figures.html.push_str(&format!(
            "<details class=\"missing\"><summary>Figures that these tables do not allow ({})</summary>\n<ul>{}</ul>\n</details>\n",
            missing.len(),
            missing.concat()
        ));
    }
    figures
}

/// The anchor of a section.
pub(super) fn anchor(section: Section) -> String {
    match section {
        Section::Eviction => "eviction",
        Section::Trees => "trees",
        Section::Exit => "exit",
        Section::Serving => "serving",
        Section::Recording => "recording",
    }
    .to_owned()
}

/// The figures of a section that have a picture; the others go to `missing`.
fn blocks(section: Section, results: &Results, room: &mut usize, missing: &mut Vec<String>) -> Vec<String> {
    let mut of_section: Vec<&dyn Figure> =
        FIGURES.iter().copied().filter(|figure| figure.place().section == section).collect();
    of_section.sort_by_key(|figure| figure.place());
    let mut found = Vec::new();
    for figure in of_section {
        match block(figure, results, room) {
            Ok(block) => found.push(block),
            Err(reason) => {
                missing.push(format!("<li>{}: {}.</li>\n", escape(figure.title()), escape(&reason)));
            }
        }
    }
    found
}

fn block(figure: &dyn Figure, results: &Results, room: &mut usize) -> Result<String, String> {
    let id = figure.id();
    let failed = |error: PlotsError| format!("not drawn: {error}");
    let drawing = match draw(figure, results).map_err(failed)? {
        Outcome::Drawn(drawing) => drawing,
        Outcome::Nothing(reason) => return Err(reason),
    };
    let pictures = pictures(&drawing, room).map_err(failed)?;
    Ok(format!(
        "<article class=\"figure\" id=\"figure-{id}\">\n<h3>{}</h3>\n<p class=\"question\">{}</p>\n<figure>\n{pictures}{}</figure>\n{}</article>\n",
        escape(&drawing.scene.title),
        escape(figure.question()),
        caption(&drawing),
        behind(id, &drawing)
    ))
}

/// The picture for wide and for narrow screens, as far as there is room for both.
fn pictures(drawing: &Drawing, room: &mut usize) -> Result<String, PlotsError> {
    let wide = drawing.framed(Frame::WIDE)?;
    let narrow = drawing.framed(Frame::NARROW)?;
    let picture = |class: &str, svg: &str| format!("<div class=\"picture{class}\">{svg}</div>\n");
    let shown = if wide.len() + narrow.len() <= *room {
        picture(" wide", &wide) + &picture(" narrow", &narrow)
    } else if wide.len() <= *room {
        picture("", &wide)
    } else {
        "<p class=\"nothing\">The picture is too large for this page; <code>kvlab plot</code> writes it as a file.</p>\n".to_owned()
    };
    *room = room.saturating_sub(shown.len());
    Ok(shown)
}

fn caption(drawing: &Drawing) -> String {
    let lines: Vec<String> = drawing.caption().iter().map(|line| escape(line)).collect();
    format!("<figcaption>{}</figcaption>\n", lines.join(" "))
}

fn behind(id: &str, drawing: &Drawing) -> String {
    let rows = count(i64::try_from(drawing.data.rows()).unwrap_or(i64::MAX));
    let remark = format!("<code>kvlab plot RESULTS --figure {id}</code> writes all of them as CSV.");
    let label = format!("Data behind {id}");
    format!(
        "<details><summary>The table behind it ({rows} rows)</summary>\n{}</details>\n",
        table(&drawing.data, MOST_ROWS, &label, &remark)
    )
}
