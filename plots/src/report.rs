//! The report: one HTML file with the question, the answer in numbers, every figure and every table.
//!
//! It needs no network and no other file. Numbers in the text are computed here from the tables; none is typed in.

mod answer;
mod cells;
mod fidelity;
mod figures;
mod findings;
mod html;
mod markdown;
mod provenance;
mod sliders;
mod style;

pub use markdown::render_markdown;

use crate::scene::clipped;
use crate::select::caption;
use html::{escape, short};
use kvlab_sim::metrics::{Evidence, METRICS, Scope};
use kvlab_sim::results::Results;

const SCRIPT: &str = include_str!("report/cells.js");

/// The whole report as one HTML document below 5 MB, whatever the size of the tables.
#[must_use]
pub fn render_report(results: &Results) -> String {
    let manifest = &results.manifest;
    let title = short(if manifest.scenario.is_empty() { "kvlab report" } else { &manifest.scenario }, 200);
    let mut page = String::new();
    page.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; img-src data:\">\n<meta name=\"color-scheme\" content=\"light dark\">\n",
    );
    page.push_str(&format!(
        "<title>{title} \u{2013} kvlab report</title>\n<style>\n{}</style>\n",
        style::css()
    ));
    page.push_str("</head>\n<body>\n<a class=\"skip\" href=\"#answer\">Skip to the answer</a>\n");
    if caption::is_synthetic(results) {
        page.push_str(
            "<p class=\"banner\" role=\"note\"><strong>Synthetic trace.</strong> These numbers come from generated data, \
             not from a model. They show that the tool works, not how a policy behaves.</p>\n",
        );
    }
    page.push_str(&format!("<header>\n<p class=\"kicker\">kvlab report</p>\n<h1>{title}</h1>\n"));
    if !manifest.why.trim().is_empty() {
        page.push_str(&format!("<p class=\"why\">{}</p>\n", escape(&clipped(manifest.why.trim(), 4000))));
    }
    page.push_str("</header>\n");
    let figures = figures::sections(results);
    page.push_str(&contents(results, &figures.shown));
    page.push_str(
        "<main>\n<section id=\"answer\" aria-labelledby=\"answer-h\">\n<h2 id=\"answer-h\">Answer</h2>\n",
    );
    for sentence in answer::sentences(results) {
        page.push_str(&format!("<p>{sentence}</p>\n"));
    }
    page.push_str(&findings::notices(results));
    page.push_str("</section>\n");
    page.push_str(&how_to_read(results));
    page.push_str(&sliders::section(results));
    page.push_str(&fidelity::section(results));
    page.push_str(&figures.html);
    page.push_str(&findings::section(results));
    page.push_str(&cells::section(results));
    page.push_str(&provenance::section(results));
    let sliders = if sliders::has_any(results) { sliders::SCRIPT } else { "" };
    page.push_str(&format!("</main>\n<script>\n{SCRIPT}{sliders}</script>\n</body>\n</html>\n"));
    page
}

fn contents(results: &Results, shown: &[crate::figure::Section]) -> String {
    let mut links = vec![("how-to-read".to_owned(), "How to read")];
    links.extend(sliders::has_any(results).then(|| ("thresholds".to_owned(), "Try thresholds")));
    links.extend(fidelity::has_any(results).then(|| ("fidelity".to_owned(), "Replay against runs")));
    links.extend(shown.iter().map(|&section| (figures::anchor(section), section.title())));
    links.extend([
        ("findings".to_owned(), "Findings"),
        ("cells".to_owned(), "All cells"),
        ("provenance".to_owned(), "Provenance"),
    ]);
    let items: Vec<String> =
        links.iter().map(|(anchor, text)| format!("<li><a href=\"#{anchor}\">{text}</a></li>")).collect();
    format!("<nav aria-label=\"Contents\"><ul>{}</ul></nav>\n", items.join(""))
}

fn how_to_read(results: &Results) -> String {
    let words = [
        (
            Evidence::Decision,
            "Exact in replay: it follows from recorded values and the policy alone, such as which entries are kept.",
        ),
        (
            Evidence::Proxy,
            "An estimate of quality, computed in replay from recorded tensors, such as attention mass. Not accuracy.",
        ),
        (Evidence::Executed, "Measured by running the model with the policy in the loop."),
        (Evidence::Recorded, "A property of the recording itself, before any policy."),
    ];
    let items: Vec<String> = words
        .into_iter()
        .map(|(evidence, text)| {
            let absent = if occurs(results, evidence) { "" } else { " <em>None in these results.</em>" };
            format!("<dt>{}</dt><dd>{text}{absent}</dd>", capitalised(evidence.word()))
        })
        .collect();
    format!(
        "<section id=\"how-to-read\" class=\"box\" aria-labelledby=\"how-h\">\n<h2 id=\"how-h\">How to read</h2>\n<dl>{}</dl>\n\
         <p>What a replay cannot say: the text was written by the model with its full cache. A policy that loses something \
         the model needs would have changed the text from that point on, and replay does not see it. So no replayed number \
         is the accuracy of answers, and none is a measured speed-up. Branch trees are the exception for answers: each outcome that a stack can choose was \
         recorded, so their accuracies are exact for the recorded problems.</p>\n</section>\n",
        items.join("")
    )
}

/// Whether any value of that kind is in the tables.
fn occurs(results: &Results, evidence: Evidence) -> bool {
    use crate::figure::Need;
    METRICS.iter().filter(|metric| metric.evidence == evidence).any(|metric| match metric.scope {
        Scope::Series { .. } => Need::Series(metric.id).is_met(results),
        _ => Need::CellColumn(metric.id).is_met(results),
    })
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
