//! What is wrong or vacuous about the study: lint, failed and skipped cells, policies that never triggered.

use super::html::short;
use crate::number::{count, plain};
use crate::select::{Reader, Subject, findings, finished, runs};
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

const MOST_KINDS: usize = 30;
const MOST_EXAMPLES: usize = 5;

/// One line per kind of trouble, for the top of the page.
pub(super) fn notices(results: &Results) -> String {
    let unfinished = (0..results.cells.rows()).filter(|&row| !finished(&results.cells, row)).count();
    let is_of_thresholds = |kind: &str| {
        ["vacuous", "unreachable", "never decisive", "repeats"].iter().any(|word| kind.contains(word))
    };
    let (of_thresholds, others): (Vec<_>, Vec<_>) =
        by_lint(results).into_iter().partition(|(kind, _)| is_of_thresholds(kind));
    let cells = |kinds: &[(&str, Kind<'_>)]| {
        kinds.iter().flat_map(|(_, kind)| &kind.rows).collect::<BTreeSet<_>>().len()
    };
    let idle: usize = idle(results).values().map(|(cells, _)| cells).sum();
    let mut lines = Vec::new();
    let mut say = |cells: usize, text: &str| {
        if cells > 0 {
            lines.push(format!("<li>{} {text}</li>", amount(cells)));
        }
    };
    say(unfinished, "failed or skipped.");
    say(
        cells(&of_thresholds),
        "with thresholds that decide nothing (vacuous, unreachable, never decisive, or repeating another).",
    );
    say(cells(&others), "with other notes.");
    say(
        idle,
        "in which the policy never triggered: nothing was evicted, so the numbers are those of the full cache.",
    );
    if lines.is_empty() {
        return String::new();
    }
    format!(
        "<div class=\"notice\" role=\"note\"><ul>{}</ul><p><a href=\"#findings\">Details in the findings.</a></p></div>\n",
        lines.concat()
    )
}

/// The section with all findings.
pub(super) fn section(results: &Results) -> String {
    let mut out = String::from(
        "<section id=\"findings\" aria-labelledby=\"findings-h\">\n<h2 id=\"findings-h\">Findings</h2>\n",
    );
    let before = out.len();
    for status in ["failed", "skipped"] {
        let column = Reader::new(&results.cells, "status");
        let reasons = by_text(results, "error", |row| column.text(row) == Some(status));
        out.push_str(&grouped(
            results,
            &format!("Cells that {}", if status == "failed" { "failed" } else { "were skipped" }),
            &reasons,
        ));
    }
    out.push_str(&lints(results));
    out.push_str(&never_triggered(results));
    if out.len() == before {
        out.push_str(
            "<p>None: every cell finished, every threshold can be reached, every policy evicted.</p>\n",
        );
    }
    out.push_str("</section>\n");
    out
}

/// The cells with one kind of finding, and the numbers that show it.
#[derive(Default)]
struct Kind<'a> {
    rows: BTreeSet<usize>,
    details: BTreeSet<&'a str>,
}

/// Findings about thresholds, by kind. Policies that never triggered are found elsewhere.
fn by_lint(results: &Results) -> BTreeMap<&str, Kind<'_>> {
    let column = Reader::new(&results.cells, "lint");
    let mut found: BTreeMap<&str, Kind<'_>> = BTreeMap::new();
    for row in 0..results.cells.rows() {
        let of_row = findings(column.text(row).unwrap_or_default());
        for finding in of_row.into_iter().filter(|finding| finding.subject != Subject::Idle) {
            let kind = found.entry(finding.kind).or_default();
            kind.rows.insert(row);
            kind.details.extend((!finding.detail.is_empty()).then_some(finding.detail));
        }
    }
    found
}

fn lints(results: &Results) -> String {
    let kinds = by_lint(results);
    if kinds.is_empty() {
        return String::new();
    }
    let mut out = String::from("<h3>Notes on thresholds and other settings</h3>\n<ul class=\"findings\">\n");
    for (kind, Kind { rows, details }) in kinds.iter().take(MOST_KINDS) {
        let some: Vec<String> = details.iter().take(MOST_EXAMPLES).map(|detail| short(detail, 200)).collect();
        let more = details.len().saturating_sub(MOST_EXAMPLES);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let cells = amount(rows.len());
        out.push_str(&format!(
            "<li>{}: {cells}. <span class=\"note\">{}{more}</span></li>\n",
            short(kind, 200),
            some.join("; ")
        ));
    }
    if kinds.len() > MOST_KINDS {
        out.push_str(&format!("<li>{} more kinds, in the table of cells.</li>\n", kinds.len() - MOST_KINDS));
    }
    out.push_str("</ul>\n");
    out
}

/// `1 cell`, `12,345 cells`.
fn amount(cells: usize) -> String {
    let word = if cells == 1 { "cell" } else { "cells" };
    format!("{} {word}", count(i64::try_from(cells).unwrap_or(i64::MAX)))
}

/// Rows by the text in a column. Unfinished rows without a reason are found under one that says so.
fn by_text<'a>(
    results: &'a Results,
    name: &str,
    wanted: impl Fn(usize) -> bool,
) -> BTreeMap<&'a str, Vec<usize>> {
    let column = Reader::new(&results.cells, name);
    let mut found: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for row in (0..results.cells.rows()).filter(|&row| wanted(row)) {
        match column.text(row).filter(|text| !text.is_empty()) {
            Some(text) => found.entry(text).or_default().push(row),
            None if name == "error" => found.entry("no reason given").or_default().push(row),
            None => {}
        }
    }
    found
}

fn grouped(results: &Results, title: &str, reasons: &BTreeMap<&str, Vec<usize>>) -> String {
    if reasons.is_empty() {
        return String::new();
    }
    let column = |name| Reader::new(&results.cells, name);
    let (cell, policy) = (column("cell"), column("policy"));
    let mut out = format!("<h3>{title}</h3>\n<ul class=\"findings\">\n");
    for (reason, rows) in reasons.iter().take(MOST_KINDS) {
        let examples: Vec<String> = rows
            .iter()
            .take(MOST_EXAMPLES)
            .map(|&row| {
                format!(
                    "{} <code>{}</code>",
                    short(policy.text(row).unwrap_or_default(), 40),
                    short(cell.text(row).unwrap_or("?"), 20)
                )
            })
            .collect();
        let more = rows.len().saturating_sub(MOST_EXAMPLES);
        let more = if more > 0 {
            format!(" and {} more", count(i64::try_from(more).unwrap_or(i64::MAX)))
        } else {
            String::new()
        };
        out.push_str(&format!(
            "<li>{} <span class=\"note\">{}{more}</span></li>\n",
            short(reason, 400),
            examples.join(", ")
        ));
    }
    if reasons.len() > MOST_KINDS {
        out.push_str(&format!(
            "<li>{} more kinds, in the table of cells.</li>\n",
            reasons.len() - MOST_KINDS
        ));
    }
    out.push_str("</ul>\n");
    out
}

/// By policy: how many cells evicted nothing, and at which budgets. The full cache never evicts by design.
fn idle(results: &Results) -> BTreeMap<String, (usize, BTreeSet<String>)> {
    let mut found: BTreeMap<String, (usize, BTreeSet<String>)> = BTreeMap::new();
    for run in runs::eviction_runs(results)
        .into_iter()
        .filter(|run| run.triggered == Some(false) && run.policy != "full")
    {
        let entry = found.entry(run.label).or_default();
        entry.0 += 1;
        entry.1.extend(run.budget.map(|budget| plain(budget, 4)));
    }
    found
}

fn never_triggered(results: &Results) -> String {
    let idle = idle(results);
    if idle.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<h3>Policies that never triggered</h3>\n<p>No sequence was long enough for an eviction, so these rows equal the full cache.</p>\n<ul class=\"findings\">\n",
    );
    for (policy, (cells, budgets)) in idle.iter().take(MOST_KINDS) {
        let budgets: Vec<&str> = budgets.iter().map(String::as_str).collect();
        let at = if budgets.is_empty() {
            String::new()
        } else {
            format!(", at a budget of {}", budgets.join(", "))
        };
        out.push_str(&format!(
            "<li>{}{} <span class=\"note\">{}</span></li>\n",
            short(policy, 60),
            short(&at, 200),
            amount(*cells)
        ));
    }
    out.push_str("</ul>\n");
    out
}
