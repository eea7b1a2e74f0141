//! The report as Markdown: the same answer, figures and provenance, with the pictures in a folder beside it.

use super::answer;
use crate::error::PlotsError;
use crate::figure::{Figure, Outcome, Section};
use crate::page::Page;
use crate::registry::FIGURES;
use crate::render::draw;
use crate::scene::{clean, clipped};
use crate::select::{Reader, caption};
use kvlab_sim::results::Results;

/// The page, with its pictures in the folder `pictures`.
///
/// # Errors
/// When the drawing backend fails.
pub fn render_markdown(results: &Results, pictures: &str) -> Result<Page, PlotsError> {
    let manifest = &results.manifest;
    let title =
        if manifest.scenario.is_empty() { "kvlab report".to_owned() } else { plain(&manifest.scenario, 200) };
    let mut page = format!("# {title}\n\n");
    if !manifest.why.trim().is_empty() {
        page.push_str(&format!("{}\n\n", plain(manifest.why.trim(), 4000)));
    }
    if caption::is_synthetic(results) {
        page.push_str("**Synthetic trace.** These numbers come from generated data, not from a model.\n\n");
    }
    page.push_str("## Answer\n\n");
    for sentence in answer::sentences(results) {
        // Sentences are HTML with one kind of tag; the rest reads the same in Markdown.
        page.push_str(&format!("{}\n\n", sentence.replace("<strong>", "**").replace("</strong>", "**")));
    }
    let told = ["lint", "error"].map(|name| Reader::new(&results.cells, name));
    let found = (0..results.cells.rows())
        .filter(|&row| told.iter().any(|reader| reader.text(row).is_some_and(|text| !text.is_empty())))
        .count();
    if found > 0 {
        page.push_str(&format!(
            "Cells with findings: {found}. Columns `lint` and `error` of `cells` say which and why.\n\n"
        ));
    }
    let mut files = Vec::new();
    for section in Section::ALL {
        let mut of_section: Vec<&dyn Figure> =
            FIGURES.iter().copied().filter(|figure| figure.place().section == section).collect();
        of_section.sort_by_key(|figure| figure.place());
        let mut head = format!("## {}\n\n", section.title());
        for figure in of_section {
            let Outcome::Drawn(drawing) = draw(figure, results)? else { continue };
            let name = format!("{pictures}/{}.svg", figure.id());
            files.push((name.clone(), drawing.svg()?.into_bytes()));
            page.push_str(&std::mem::take(&mut head));
            page.push_str(&format!(
                "### {}\n\n{}\n\n![{}](<{name}>)\n\n",
                plain(&drawing.scene.title, 300),
                figure.question(),
                plain(&drawing.alt, 1500)
            ));
        }
    }
    page.push_str(&format!(
        "## Provenance\n\n- tool: {}\n- command: `{}`\n",
        plain(&manifest.tool, 100),
        clean(&manifest.command).replace('`', "'")
    ));
    page.push_str(&format!("- scenario digest: {}\n", plain(&manifest.scenario_digest, 100)));
    for source in &manifest.sources {
        page.push_str(&format!(
            "- trace {}: model {}, provider {}, digest {}\n",
            plain(&source.name, 100),
            plain(&source.model, 100),
            plain(&source.provider, 60),
            plain(&source.digest, 100)
        ));
    }
    Ok(Page { text: page, pictures: files })
}

/// One line of text in which nothing is markup.
fn plain(text: &str, limit: usize) -> String {
    let mut out = String::new();
    for c in clipped(&clean(text), limit).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '*' | '_' | '`' | '[' | ']' | '#' | '|' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
