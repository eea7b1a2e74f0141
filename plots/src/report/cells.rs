//! The table of all cells: packed as data, shown by a small script a page at a time, so ten thousand rows stay quick.
//!
//! Numbers in the page are rounded to five significant digits; the result files have the exact ones.

use super::html::{escape, script_json};
use crate::number::count;
use crate::select::Reader;
use kvlab_sim::metrics::{Evidence, METRICS, Metric, Scope};
use kvlab_sim::results::{CELL_KEYS, Results};
use kvlab_sim::table::{Column, Table, Value};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of packed rows that the page may hold.
const MOST_BYTES: usize = 2_100_000;
/// Long texts that repeat other columns; they stay in the result files.
const LEFT_OUT: &[&str] = &["params", "log_digest", "scenario"];

/// The section: one table a study.
pub(super) fn section(results: &Results) -> String {
    let cells = &results.cells;
    let mut out = String::from(
        "<section id=\"cells\" aria-labelledby=\"cells-h\">\n<h2 id=\"cells-h\">All cells</h2>\n",
    );
    if cells.rows() == 0 {
        out.push_str("<p>There are no cells.</p>\n</section>\n");
        return out;
    }
    out.push_str("<p class=\"note\">Numbers are rounded; the result files beside this page have the exact ones, with parameters and digests. Brackets hold the 95 % bootstrap interval over recorded problems, parentheses the numerator and denominator of a rate.</p>\n");
    let studies = studies(cells);
    let share = MOST_BYTES / studies.len().max(1);
    for (at, (study, rows)) in studies.iter().enumerate() {
        out.push_str(&widget(cells, at, study, rows, share));
    }
    out.push_str("<noscript><p>Sorting and filtering need JavaScript. The same rows are in the result files.</p></noscript>\n</section>\n");
    out
}

fn studies(cells: &Table) -> Vec<(String, Vec<usize>)> {
    let study = Reader::new(cells, "study");
    let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for row in 0..cells.rows() {
        found.entry(study.text(row).unwrap_or("cells").to_owned()).or_default().push(row);
    }
    // A table cannot sensibly be cut into more parts than this.
    let mut parts: Vec<(String, Vec<usize>)> = found.into_iter().collect();
    if parts.len() > 6 {
        parts = vec![("cells".to_owned(), (0..cells.rows()).collect())];
    }
    parts
}

/// A column as it is shown: one value, or a value with interval and fraction.
struct Shown {
    name: String,
    label: String,
    doc: String,
    kind: &'static str,
    is_metric: bool,
    parts: Vec<String>,
}

fn widget(cells: &Table, at: usize, study: &str, rows: &[usize], most_bytes: usize) -> String {
    let (constant, columns) = columns(cells, rows);
    let mut packed: Vec<String> = vec![String::new(); columns.len()];
    // Looked up once: a table finds its columns by name.
    let sources: Vec<Vec<Option<&Column>>> = columns
        .iter()
        .map(|shown| {
            let parts: &[String] =
                if shown.kind == "text" { std::slice::from_ref(&shown.name) } else { &shown.parts };
            parts.iter().map(|part| cells.column(part)).collect()
        })
        .collect();
    let value =
        |source: Option<&Column>, row: usize| source.map_or(Value::Absent, |column| column.value(row));
    let mut dictionaries: Vec<(BTreeMap<String, usize>, Vec<String>)> =
        vec![Default::default(); columns.len()];
    let (mut shown_rows, mut bytes) = (0, 0);
    for &row in rows {
        if bytes > most_bytes {
            break;
        }
        let packing = packed.iter_mut().zip(&mut dictionaries);
        for ((column, source), (values, (index, words))) in columns.iter().zip(&sources).zip(packing) {
            let before = values.len();
            if shown_rows > 0 {
                values.push('\t');
            }
            if column.kind == "text" {
                if let Some(text) = as_text(&value(source.first().copied().flatten(), row)) {
                    let next = words.len();
                    let id = *index.entry(text.clone()).or_insert(next);
                    if id == next {
                        bytes += text.len() + 3;
                        words.push(text);
                    }
                    values.push_str(&id.to_string());
                }
            } else {
                let parts: Vec<String> = source.iter().map(|part| as_number(&value(*part, row))).collect();
                values.push_str(parts.join("|").trim_end_matches('|'));
            }
            bytes += values.len() - before;
        }
        shown_rows += 1;
    }
    let data: Vec<serde_json::Value> = columns
        .iter()
        .zip(packed)
        .zip(dictionaries)
        .map(|((column, values), (_, words))| json!({"label": column.label, "doc": column.doc, "kind": column.kind, "values": values, "words": words}))
        .collect();
    let payload = script_json(&json!({"rows": shown_rows, "columns": data}));
    frame(at, study, rows.len(), shown_rows, &constant, &payload)
}

fn frame(
    at: usize,
    study: &str,
    all: usize,
    shown: usize,
    constant: &[(String, String)],
    payload: &str,
) -> String {
    let total = count(i64::try_from(all).unwrap_or(i64::MAX));
    let study = escape(study);
    let mut out =
        format!("<div class=\"cells\" data-cells=\"{at}\">\n<h3>Study: {study} ({total} cells)</h3>\n");
    if !constant.is_empty() {
        let items: Vec<String> =
            constant.iter().map(|(name, value)| format!("{} = {}", escape(name), escape(value))).collect();
        out.push_str(&format!("<p class=\"note\">The same in every row: {}.</p>\n", items.join(", ")));
    }
    if shown < all {
        out.push_str(&format!(
            "<p class=\"note\">The page holds the first {} of {total} rows; the result files have all.</p>\n",
            count(i64::try_from(shown).unwrap_or(i64::MAX))
        ));
    }
    out.push_str(&format!(
        "<div class=\"controls\"><label for=\"filter-{at}\">Filter</label> <input id=\"filter-{at}\" type=\"search\" autocomplete=\"off\" \
         placeholder=\"words, e.g. snapkv 128\"> <span class=\"status\" role=\"status\" aria-live=\"polite\"></span></div>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Cells of study {study}\">\n<table>\n<caption class=\"hidden\">Cells of study {study}. \
         Activate a column heading to sort by it.</caption>\n<thead><tr></tr></thead>\n<tbody></tbody>\n</table>\n</div>\n\
         <div class=\"pages\"></div>\n<script type=\"application/json\">{payload}</script>\n</div>\n"
    ));
    out
}

/// Columns with one and the same value in all rows, as name and value; and the columns to show.
fn columns(cells: &Table, rows: &[usize]) -> (Vec<(String, String)>, Vec<Shown>) {
    let mut constant = Vec::new();
    let mut shown = Vec::new();
    let parts_of_metrics: BTreeSet<String> = METRICS.iter().flat_map(parts).collect();
    for name in cells.names().iter().filter(|name| !LEFT_OUT.contains(&name.as_str())) {
        let metric = METRICS.iter().find(|metric| metric.id == name);
        if metric.is_none() && parts_of_metrics.contains(name) {
            continue;
        }
        let Some(column) = cells.column(name) else { continue };
        let mut values = rows.iter().map(|&row| column.value(row));
        let Some(first) = values.next() else { continue };
        let same = values.all(|value| value == first);
        if same && first == Value::Absent {
            continue;
        }
        if same && metric.is_none() && rows.len() > 1 {
            let text = as_text(&first).unwrap_or_else(|| as_number(&first));
            constant.push((name.clone(), text));
            continue;
        }
        let doc = metric.map_or_else(
            || CELL_KEYS.iter().find(|key| key.0 == name).map_or("", |key| key.2).to_owned(),
            |metric| format!("{} ({}). {}", metric.label, metric.evidence.word(), metric.doc),
        );
        let kind = match (metric, column.kind()) {
            (_, "text" | "bool") => "text",
            (Some(Metric { scope: Scope::CellRate | Scope::CellMean | Scope::CellPaired, .. }), _) => "rate",
            _ => "number",
        };
        shown.push(Shown {
            name: name.clone(),
            label: metric.map_or_else(|| name.replace('_', " "), heading),
            doc,
            kind,
            is_metric: metric.is_some(),
            parts: metric.map_or_else(|| vec![name.clone()], shown_parts),
        });
    }
    shown.sort_by_key(rank);
    (constant, shown)
}

/// What identifies a row first, then its numbers, then the other settings; otherwise in table order.
fn rank(column: &Shown) -> usize {
    const FIRST: [&str; 8] = ["source", "arm", "policy", "budget_tokens", "seed", "lens", "theta", "epsilon"];
    match FIRST.iter().position(|name| *name == column.name) {
        Some(at) => at,
        None if column.is_metric => FIRST.len(),
        None => FIRST.len() + 1,
    }
}

/// `skip rate, decision`.
fn heading(metric: &Metric) -> String {
    let word = match metric.evidence {
        Evidence::Decision => "",
        other => other.word(),
    };
    let name = metric.id.replace('_', " ");
    if word.is_empty() { name } else { format!("{name} ({word})") }
}

/// All columns of a metric besides its own.
fn parts(metric: &Metric) -> Vec<String> {
    ["_lo", "_hi", "_se", "_p", "_n", "_num", "_den"].map(|suffix| format!("{}{suffix}", metric.id)).to_vec()
}

/// The columns that the script gets, in its order: value, lo, hi, numerator, denominator.
fn shown_parts(metric: &Metric) -> Vec<String> {
    match metric.scope {
        Scope::CellRate | Scope::CellMean | Scope::CellPaired => {
            ["", "_lo", "_hi", "_num", "_den"].map(|suffix| format!("{}{suffix}", metric.id)).to_vec()
        }
        _ => vec![metric.id.to_owned()],
    }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// A number for the script: exact when whole, else five significant digits.
fn as_number(value: &Value) -> String {
    match value {
        Value::Int(value) => value.to_string(),
        Value::Real(value) => {
            let rounded: f64 = format!("{value:.4e}").parse().unwrap_or(*value);
            if rounded == 0.0 || (1e-4..1e15).contains(&rounded.abs()) {
                format!("{rounded}")
            } else {
                format!("{rounded:e}")
            }
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_read_back_by_a_script() {
        assert_eq!(as_number(&Value::Real(0.912_345_678)), "0.91235");
        assert_eq!(as_number(&Value::Real(1e300)), "1e300");
        assert_eq!(as_number(&Value::Real(0.0)), "0");
        assert_eq!(as_number(&Value::Int(-12)), "-12");
        assert_eq!(as_number(&Value::Absent), "");
    }
}
