//! Sliders for thresholds: the facts of every problem as data in the page, from which a script evaluates any setting exactly.
//!
//! The data are the rows of `joint`. Numbers are written so that they read back to the same bits, since a setting is decided by
//! comparing them.

use super::html::{script_json, short};
use crate::number::count;
use crate::select::Reader;
use kvlab_sim::metrics::metric;
use kvlab_sim::results::Results;
use kvlab_sim::table::Table;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Bytes of facts that the page may hold.
const MOST_BYTES: usize = 900_000;
/// What is shown of a setting, in order. The script has a formula for each.
const SHOWN: &[&str] = &[
    "tree_accuracy",
    "full_pipeline_accuracy",
    "full_pipeline_agreement",
    "harm_rate",
    "help_rate",
    "share_rate",
    "reused_token_rate",
    "prefill_work_rate",
    "verify_skip_rate",
    "verify_exit_rate",
    "verify_layer_skip_rate",
    "verify_work_rate",
];

/// The script that evaluates settings.
pub(super) const SCRIPT: &str = include_str!("sliders.js");

/// Whether the page has sliders, or says why it has none although the study has a table for them.
pub(super) fn has_any(results: &Results) -> bool {
    results.more("joint").is_some()
}

/// The section; nothing without facts.
pub(super) fn section(results: &Results) -> String {
    let Some(joint) = results.more("joint").filter(|_| has_any(results)) else { return String::new() };
    let (mut stacks, mut notes, mut room) = (Vec::new(), Vec::new(), MOST_BYTES);
    let mut groups = groups(joint);
    groups.sort_by_key(|group| (std::cmp::Reverse(axes(joint, group)), group.rows[0]));
    if groups.is_empty() {
        notes.push("the table <code>joint</code> has no row".to_owned());
    }
    for group in groups {
        if let Err(reason) = usable(&params(joint, &group)) {
            notes.push(format!("{} is left out, because {reason}", short(&group.label, 60)));
            continue;
        }
        let packed = Packed::of(joint, &group, room);
        let (all, held) = (problems(joint, &group.rows), problems(joint, &group.rows[..packed.rows.len()]));
        if held == 0 {
            notes.push(format!("{} is left out for want of room", short(&group.label, 60)));
            continue;
        }
        if held < all {
            let (held, all) = (count(held), count(all));
            notes.push(format!(
                "for want of room, {} holds the first {held} of {all} problems",
                short(&group.label, 60)
            ));
        }
        room -= packed.bytes.min(room);
        stacks.push(packed.json(joint, &group));
    }
    let metrics: Vec<Value> = SHOWN
        .iter()
        .filter_map(|id| metric(id))
        .map(|metric| json!({"id": metric.id, "label": metric.label, "doc": metric.doc}))
        .collect();
    let note = if notes.is_empty() {
        String::new()
    } else {
        format!(
            "<p class=\"note\">Not everything is here: {}. <code>kvlab replay</code> and <code>kvlab sweep</code> evaluate any setting of all of them.</p>\n",
            notes.join("; ")
        )
    };
    let sliders = if stacks.is_empty() {
        "<p>There are no sliders: no stack can be evaluated in this page.</p>\n".to_owned()
    } else {
        let payload = script_json(&json!({"metrics": metrics, "stacks": stacks}));
        format!(
            "<div class=\"sliders\" data-sliders><script type=\"application/json\">{payload}</script>\n\
             <noscript><p>Sliders need JavaScript. <code>kvlab replay</code> evaluates any setting.</p></noscript></div>\n"
        )
    };
    format!(
        "<section id=\"thresholds\" aria-labelledby=\"thresholds-h\">\n<h2 id=\"thresholds-h\">Try thresholds</h2>\n\
         <p class=\"question\">What does any setting of the thresholds decide about the recorded problems?</p>\n\
         <p class=\"note\">Decision: exact for these recorded branches, problem by problem, and the same integers as <code>kvlab replay</code> at the same thresholds. \
         Hatched stretches are vacuous: no recorded value lies there, so the whole stretch is one setting. A setting picked here was picked on these problems: \
         <code>kvlab tune</code> says what holds on others.</p>\n{note}{sliders}</section>\n"
    )
}

/// The rows of one stack.
struct Group {
    label: String,
    rows: Vec<usize>,
}

fn groups(joint: &Table) -> Vec<Group> {
    let (label, group) = (Reader::new(joint, "stack"), Reader::new(joint, "group"));
    let mut found: BTreeMap<&str, Group> = BTreeMap::new();
    for row in 0..joint.rows() {
        let made = || Group { label: label.text(row).unwrap_or("?").to_owned(), rows: Vec::new() };
        found.entry(group.text(row).unwrap_or_default()).or_insert_with(made).rows.push(row);
    }
    found.into_values().collect()
}

/// Families of a stack that have thresholds.
fn axes(joint: &Table, group: &Group) -> usize {
    let params = params(joint, group);
    let is = |family: &str, kind: &str| params[family]["kind"] == kind;
    [is("share", "asks"), is("verify", "cgee"), is("exit", "entropy")].into_iter().filter(|is| *is).count()
}

fn params(joint: &Table, group: &Group) -> Value {
    let text = group.rows.first().and_then(|&row| Reader::new(joint, "params").text(row));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
}

/// Whether the script can read the parameters of a stack; else why not, as words after \u{201c}because\u{201d}.
fn usable(params: &Value) -> Result<(), String> {
    for (family, kind, thresholds) in [
        ("share", "asks", &["tau"][..]),
        ("verify", "cgee", &["tau_conf", "margin"]),
        ("exit", "entropy", &["theta", "epsilon"]),
    ] {
        let Some(found) = params[family]["kind"].as_str() else {
            return Err(format!("its parameters name no <code>{family}</code> policy"));
        };
        // A limit that is infinite has no number in JSON, and is there all the same.
        let is_there = |name: &str| {
            params[family]["params"].get(name).is_some_and(|value| value.is_number() || value.is_null())
        };
        let absent = thresholds.iter().find(|name| !is_there(name));
        if let Some(name) = absent.filter(|_| found == kind) {
            return Err(format!("its <code>{family}</code> policy has no number <code>{name}</code>"));
        }
    }
    Ok(())
}

fn problems(joint: &Table, rows: &[usize]) -> i64 {
    let problem = Reader::new(joint, "problem");
    let distinct: std::collections::BTreeSet<_> = rows.iter().map(|&row| problem.int(row)).collect();
    i64::try_from(distinct.len()).unwrap_or(i64::MAX)
}

/// Texts that repeat, each once.
#[derive(Default)]
struct Words {
    index: BTreeMap<String, usize>,
    words: Vec<String>,
}

impl Words {
    fn place(&mut self, text: &str, bytes: &mut usize) -> usize {
        if let Some(&at) = self.index.get(text) {
            return at;
        }
        *bytes += text.len() + 3;
        self.index.insert(text.to_owned(), self.words.len());
        self.words.push(text.to_owned());
        self.words.len() - 1
    }
}

/// The rows of a stack as the script reads them: whole problems, as many as there is room for.
struct Packed {
    rows: Vec<Value>,
    stops: Words,
    verified: Words,
    bytes: usize,
}

impl Packed {
    fn of(joint: &Table, group: &Group, room: usize) -> Self {
        let (mut stops, mut verified) = (Words::default(), Words::default());
        let (mut rows, mut bytes, mut whole, mut within) = (Vec::new(), 0, 0, 0);
        let problem = Reader::new(joint, "problem");
        for (at, &row) in group.rows.iter().enumerate() {
            if at > 0 && problem.int(row) != problem.int(group.rows[at - 1]) {
                (whole, within) = (at, bytes);
            }
            let value = packed(joint, row, (&mut stops, &mut verified), &mut bytes);
            bytes += value.to_string().len() + 1;
            if bytes > room {
                rows.truncate(whole);
                return Self { rows, stops, verified, bytes: within };
            }
            rows.push(value);
        }
        Self { rows, stops, verified, bytes }
    }

    fn json(self, joint: &Table, group: &Group) -> Value {
        let row = group.rows[0];
        json!({
            "label": group.label,
            "params": params(joint, group),
            "nats": Reader::new(joint, "nats").number(row).map_or(Value::Null, exact),
            "layers": Reader::new(joint, "layers").int(row),
            "stops": self.stops.words,
            "verified": self.verified.words,
            "rows": self.rows,
        })
    }
}

/// One row; the script names the places.
fn packed(joint: &Table, row: usize, words: (&mut Words, &mut Words), bytes: &mut usize) -> Value {
    let column = |name: &str| Reader::new(joint, name);
    let number = |name: &str| column(name).number(row).map_or(Value::Null, exact);
    let int = |name: &str| column(name).int(row).unwrap_or(0);
    let stops: Vec<usize> = column("stops")
        .text(row)
        .unwrap_or_default()
        .split('|')
        .filter(|one| !one.is_empty())
        .map(|one| words.0.place(one, bytes))
        .collect();
    let verified = words.1.place(column("verified").text(row).unwrap_or_default(), bytes);
    let flags = i64::from(column("gradable").truth(row) == Some(true))
        + 2 * i64::from(column("full_correct").truth(row) == Some(true));
    json!([
        int("problem"),
        number("upto"),
        int("branches"),
        int("shared_branches"),
        int("prompt_tokens"),
        int("reused_tokens"),
        int("prefill_unshared"),
        int("prefill"),
        number("top"),
        number("gap"),
        number("relative_gap"),
        column("skips").truth(row),
        stops,
        int("if_skipped"),
        verified,
        flags,
    ])
}

/// A number that a script reads back to the same bits; what JSON has no word for is a text that the script's `Number` knows.
fn exact(value: f64) -> Value {
    if value.is_finite() {
        return json!(value);
    }
    let word = if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    };
    json!(word)
}
