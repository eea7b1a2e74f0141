//! A Markdown page of every figure that some results allow, with the pictures beside it.

use crate::error::PlotsError;
use crate::figure::{Figure, Outcome, Section, evidence};
use crate::page::Page;
use crate::registry::FIGURES;
use crate::render::draw;
use crate::scene::clean;
use kvlab_sim::results::Results;

/// The page, with its pictures in the folder `pictures`.
///
/// Each figure is drawn from the first of `studies` that allows it.
///
/// # Errors
/// When the drawing backend fails.
pub fn render_gallery(studies: &[Results], pictures: &str, command: &str) -> Result<Page, PlotsError> {
    let mut page = format!(
        "# Figures\n\nEvery figure that kvlab draws, made from the result tables beside this page; `kvlab plot RESULTS --list` says which ones your own \
         tables allow. Made by `{command}`.\n"
    );
    let mut files = Vec::new();
    for section in Section::ALL {
        let mut figures: Vec<&dyn Figure> =
            FIGURES.iter().copied().filter(|figure| figure.place().section == section).collect();
        figures.sort_by_key(|figure| figure.place());
        page.push_str(&format!("\n## {}\n", section.title()));
        for figure in figures {
            page.push_str(&one(figure, studies, pictures, &mut files)?);
        }
    }
    Ok(Page { text: page, pictures: files })
}

fn one(
    figure: &dyn Figure,
    studies: &[Results],
    pictures: &str,
    files: &mut Vec<(String, Vec<u8>)>,
) -> Result<String, PlotsError> {
    let head = format!("\n### {}\n\n{}\n\n", figure.title(), figure.question());
    for results in studies {
        let Outcome::Drawn(drawing) = draw(figure, results)? else { continue };
        let name = format!("{pictures}/{}.svg", figure.id());
        files.push((name.clone(), drawing.svg()?.into_bytes()));
        return Ok(format!(
            "{head}![{}]({name})\n\n`{}` \u{b7} {} \u{b7} study `{}`\n",
            clean(&drawing.alt).replace(['[', ']'], ""),
            figure.id(),
            evidence(figure).join(", "),
            clean(&results.manifest.scenario)
        ));
    }
    let needs: Vec<String> = figure.needs().iter().map(ToString::to_string).collect();
    Ok(format!("{head}`{}`: not in these tables; it needs {}.\n", figure.id(), needs.join(" and ")))
}
