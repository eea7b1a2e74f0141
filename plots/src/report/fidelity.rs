//! Whether replays equal runs, and how well estimates rank and predict what was executed.

use super::html::{self, escape};
use crate::number::{count, plain};
use crate::select::Reader;
use kvlab_sim::results::Results;
use kvlab_sim::table::Table;

/// Rows of the table that the page shows.
const MOST_ROWS: usize = 120;

/// Whether the results hold such a comparison.
pub(super) fn has_any(results: &Results) -> bool {
    results.more("fidelity").is_some_and(|table| table.rows() > 0)
}

/// The section; empty without a comparison.
pub(super) fn section(results: &Results) -> String {
    let Some(table) = results.more("fidelity").filter(|table| table.rows() > 0) else {
        return String::new();
    };
    let mut out = String::from(
        "<section id=\"fidelity\" aria-labelledby=\"fidelity-h\">\n<h2 id=\"fidelity-h\">Replay against runs</h2>\n",
    );
    out.push_str(&identity(results));
    for row in 0..table.rows() {
        out.push_str(&best(table, row));
    }
    out.push_str(
        "<p>Rank correlation is Kendall's \u{3c4}<sub>b</sub> over cells, each side turned so that larger is better; intervals are 95 % bootstraps over \
         problems and over policies. The error on a policy left out is that of a rising curve fitted without it.</p>\n",
    );
    out.push_str(&html::table(
        table,
        MOST_ROWS,
        "Estimates against outcomes",
        "The rest is in the table <code>fidelity</code>.",
    ));
    out.push_str("</section>\n");
    out
}

/// How many decisions of live runs the replay reproduces.
fn identity(results: &Results) -> String {
    let column = |name: &str| Reader::new(&results.cells, name);
    let sum = |name: &str| {
        let column = column(name);
        (0..results.cells.rows()).filter_map(|row| column.int(row)).sum::<i64>()
    };
    let (equal, all) = (sum("reproduced_rate_num"), sum("reproduced_rate_den"));
    if all == 0 {
        return "<p>No policy ran.</p>\n".to_owned();
    }
    format!(
        "<p>Replayed over the recordings of their own runs, policies reproduce {} of {} kept sets{}; {} of {} would come out otherwise if every \
         recorded number moved by one unit in the last place.</p>\n",
        count(equal),
        count(all),
        if equal == all { ", all of them" } else { "" },
        count(sum("ulp_flipped_set_rate_num")),
        count(sum("ulp_flipped_set_rate_den")),
    )
}

/// A sentence about the estimate that predicts an outcome best; nothing for other rows.
fn best(table: &Table, row: usize) -> String {
    if Reader::new(table, "chosen").truth(row) != Some(true) {
        return String::new();
    }
    let text = |name: &str| escape(Reader::new(table, name).text(row).unwrap_or("?"));
    let number = |name: &str| {
        Reader::new(table, name).number(row).map_or("\u{2013}".to_owned(), |value| plain(value, 3))
    };
    format!(
        "<p><code>{}</code> is predicted best by <code>{}</code>: \u{3c4}<sub>b</sub> = {} [{}, {}] over problems, [{}, {}] over policies; mean error \
         on a policy left out {}, where the mean of the others errs by {} ({} cells, {} policies, {} problems).</p>\n",
        text("outcome"),
        text("estimate"),
        number("tau_b"),
        number("tau_b_problem_lo"),
        number("tau_b_problem_hi"),
        number("tau_b_policy_lo"),
        number("tau_b_policy_hi"),
        number("leave_policy_out"),
        number("mean_alone"),
        number("cells"),
        number("policies"),
        number("problems"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvlab_sim::results::{
        FIDELITY_COLUMNS, RESULTS_VERSION, ResultsManifest, cells_table, series_table, table_of,
    };
    use kvlab_sim::table::{Column, Value};

    #[test]
    fn the_best_estimate_and_the_reproduced_sets_are_told() {
        let manifest = ResultsManifest {
            version: RESULTS_VERSION,
            tool: String::new(),
            scenario: String::new(),
            why: String::new(),
            scenario_digest: String::new(),
            scenario_text: String::new(),
            sources: Vec::new(),
            command: String::new(),
        };
        let (cells, series) = (cells_table(&[]).unwrap(), series_table(&[]).unwrap());
        let mut results = Results { manifest, cells, series, more: Vec::new() };
        assert_eq!(section(&results), "");
        let row: Vec<Value> = FIDELITY_COLUMNS
            .iter()
            .map(|(name, kind, _)| match (*name, *kind) {
                ("estimate", _) => Value::Text("attn_<mass>".to_owned()),
                ("tau_b", _) => Value::Real(0.625),
                ("tau_b_problem_lo", _) => Value::Absent,
                (_, "text") => Value::Text("accuracy".to_owned()),
                (_, "int") => Value::Int(7),
                (_, "bool") => Value::Bool(true),
                _ => Value::Real(0.25),
            })
            .collect();
        results.more.push(("fidelity".to_owned(), table_of(FIDELITY_COLUMNS, &[row]).unwrap()));
        for name in ["reproduced_rate", "ulp_flipped_set_rate"] {
            results.cells.push(&format!("{name}_num"), Column::Int(Vec::new())).unwrap();
            results.cells.push(&format!("{name}_den"), Column::Int(Vec::new())).unwrap();
        }
        let page = section(&results);
        assert!(page.contains("predicted best by <code>attn_&lt;mass&gt;</code>"), "{page}");
        assert!(page.contains("= 0.625 [\u{2013}, 0.25]") && page.contains("No policy ran"), "{page}");
    }
}
