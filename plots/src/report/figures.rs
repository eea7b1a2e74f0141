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
const MOST_BYTES: usize = 1_500_000;

/// All sections with their figures.
pub(super) fn sections(results: &Results) -> String {
    let mut room = MOST_BYTES;
    Section::ALL.into_iter().map(|section| one_section(section, results, &mut room)).collect()
}

/// The anchor of a section.
pub(super) fn anchor(section: Section) -> String {
    match section {
        Section::Eviction => "eviction",
        Section::Exit => "exit",
        Section::Recording => "recording",
    }
    .to_owned()
}

fn one_section(section: Section, results: &Results, room: &mut usize) -> String {
    let mut of_section: Vec<&dyn Figure> =
        FIGURES.iter().copied().filter(|figure| figure.place().section == section).collect();
    of_section.sort_by_key(|figure| figure.place());
    let anchor = anchor(section);
    let mut out = format!(
        "<section id=\"{anchor}\" aria-labelledby=\"{anchor}-h\">\n<h2 id=\"{anchor}-h\">{}</h2>\n",
        section.title()
    );
    for figure in of_section {
        out.push_str(&block(figure, results, room));
    }
    out.push_str("</section>\n");
    out
}

fn block(figure: &dyn Figure, results: &Results, room: &mut usize) -> String {
    let id = figure.id();
    let head = |title: &str| {
        format!(
            "<article class=\"figure\" id=\"figure-{id}\">\n<h3>{}</h3>\n<p class=\"question\">{}</p>\n",
            escape(title),
            escape(figure.question())
        )
    };
    match draw(figure, results) {
        Ok(Outcome::Drawn(drawing)) => match pictures(&drawing, room) {
            Ok(pictures) => {
                let title = head(&drawing.scene.title);
                format!(
                    "{title}<figure>\n{pictures}{}</figure>\n{}</article>\n",
                    caption(&drawing),
                    behind(id, &drawing)
                )
            }
            Err(error) => format!(
                "{}<p class=\"nothing\">Not drawn: {}.</p>\n</article>\n",
                head(figure.title()),
                escape(&error.to_string())
            ),
        },
        Ok(Outcome::Nothing(reason)) => {
            format!(
                "{}<p class=\"nothing\">Nothing to draw: {}.</p>\n</article>\n",
                head(figure.title()),
                escape(&reason)
            )
        }
        Err(error) => format!(
            "{}<p class=\"nothing\">Not drawn: {}.</p>\n</article>\n",
            head(figure.title()),
            escape(&error.to_string())
        ),
    }
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
