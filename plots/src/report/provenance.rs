//! Where the numbers come from and how to make them again.

use super::html::escape;
use crate::number::count;
use crate::scene::clipped;
use kvlab_sim::results::Results;

/// Characters of a text that the page shows.
const MOST_TEXT: usize = 60_000;

/// The section.
pub(super) fn section(results: &Results) -> String {
    let manifest = &results.manifest;
    let mut out = String::from(
        "<section id=\"provenance\" aria-labelledby=\"provenance-h\">\n<h2 id=\"provenance-h\">Provenance</h2>\n",
    );
    out.push_str(&format!(
        "<p>Made by this command:</p>\n<pre tabindex=\"0\"><code>{}</code></pre>\n",
        escape(&clipped(&manifest.command, MOST_TEXT))
    ));
    out.push_str("<dl class=\"facts\">\n");
    let facts = [
        ("Tool", escape(&manifest.tool)),
        ("Layout of the tables", format!("version {}", manifest.version)),
        ("Scenario", escape(&manifest.scenario)),
        ("Scenario digest", format!("<code>{}</code>", escape(&manifest.scenario_digest))),
        ("Cells", count(i64::try_from(results.cells.rows()).unwrap_or(i64::MAX))),
        ("Rows of series", count(i64::try_from(results.series.rows()).unwrap_or(i64::MAX))),
    ];
    for (term, text) in facts {
        out.push_str(&format!("<dt>{term}</dt><dd>{text}</dd>\n"));
    }
    out.push_str("</dl>\n");
    for source in &manifest.sources {
        out.push_str(&format!(
            "<h3>Trace {}{}</h3>\n<dl class=\"facts\">\n",
            escape(&source.name),
            if source.synthetic { " (synthetic)" } else { "" }
        ));
        let provider = if source.provider.is_empty() { "none".to_owned() } else { escape(&source.provider) };
        let facts = [
            (if source.synthetic { "Generator" } else { "Model" }, escape(&source.model)),
            ("Execution provider", provider),
            ("Sequences", count(i64::from(source.sequences))),
            ("Tokens", count(i64::try_from(source.tokens).unwrap_or(i64::MAX))),
            (
                "Shape",
                format!(
                    "{} layers, {} query heads, {} KV heads, vocabulary of {}",
                    source.layers,
                    source.q_heads,
                    source.kv_heads,
                    count(i64::from(source.vocab))
                ),
            ),
            ("Digest", format!("<code>{}</code>", escape(&source.digest))),
        ];
        for (term, text) in facts {
            out.push_str(&format!("<dt>{term}</dt><dd>{text}</dd>\n"));
        }
        out.push_str("</dl>\n");
    }
    out.push_str(&format!("<details><summary>The scenario as run</summary>\n<pre tabindex=\"0\"><code>{}</code></pre>\n</details>\n</section>\n", escape(&clipped(&manifest.scenario_text, MOST_TEXT))));
    out
}
