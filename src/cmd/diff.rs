//! `kvlab diff`: where two folders of results differ.

use crate::exit::{CliError, Done};
use crate::output::{self, news};
use kvlab_sim::results::{Diff, DiffOptions, Divergence, Match, diff, read};
use kvlab_sim::table::Value;
use std::path::PathBuf;

/// Compare two folders of results, record by record: the first difference, and how many there are by column.
///
/// The exit code is 5 when they differ. How the results were made (command, folders) is not compared.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kvlab diff one-thread four-threads\n  \
kvlab diff on-this-trace on-that-trace --by settings --tolerance 1e-6")]
pub(crate) struct Args {
    /// A folder with result tables
    left: PathBuf,
    /// Another one
    right: PathBuf,
    /// What makes two cells the same one: their content hash, or their settings whatever the trace
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Numbers count as equal when they differ by at most this share of the larger one
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    tolerance: f64,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum By {
    #[default]
    Cell,
    Settings,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to less than 1".to_owned()),
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let (left, right) = (read(&args.left)?, read(&args.right)?);
    let by = match args.by {
        By::Cell => Match::Cell,
        By::Settings => Match::Settings,
    };
    let found = diff(&left, &right, DiffOptions { by, tolerance: args.tolerance });
    for note in notes(args, &found, &left.manifest.scenario_digest, &right.manifest.scenario_digest) {
        news(&format!("note: {note}"));
    }
    if args.json {
        output::json(&as_json(&found))?;
    } else {
        output::print(&as_text(args, &found))?;
    }
    Ok(if found.is_empty() { Done::All } else { Done::CheckFailed })
}

fn notes(args: &Args, found: &Diff, left: &str, right: &str) -> Vec<String> {
    let mut notes = Vec::new();
    if left != right {
        notes.push("the scenarios are not the same text".to_owned());
    }
    let has_common = found.tables.iter().any(|(name, table)| name == "cells" && table.rows > 0);
    if !has_common && matches!(args.by, By::Cell) && !found.is_empty() {
        notes.push(
            "no cell is in both: --by settings compares cells of different traces or versions".to_owned(),
        );
    }
    notes
}

fn text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Real(number) => format!("{number:?}"),
        Value::Bool(truth) => truth.to_string(),
        Value::Absent => "nothing".to_owned(),
    }
}

fn as_text(args: &Args, found: &Diff) -> String {
    let mut lines = Vec::new();
    if let Some(first) = &found.first {
        let Divergence { table, key, column, left, right } = first;
        let key: Vec<String> = key.iter().map(|(name, value)| format!("{name} {}", text(value))).collect();
        let column = column.as_ref().map_or(String::new(), |column| format!(", {column}"));
        lines.push(format!("first difference: {table}, {}{column}", key.join(" ")));
        lines.push(format!("  {}: {}", args.left.display(), text(left)));
        lines.push(format!("  {}: {}", args.right.display(), text(right)));
    }
    for (name, table) in &found.tables {
        let rows = table.rows;
        for (column, count) in &table.columns {
            lines.push(format!("{name}.{column}: {count} of {rows} rows differ"));
        }
        for (count, folder) in [(table.only_left, &args.left), (table.only_right, &args.right)] {
            if count > 0 {
                lines.push(format!("{name}: {count} rows are only in {}", folder.display()));
            }
        }
        if table.is_reordered {
            lines.push(format!("{name}: rows come in another order"));
        }
    }
    if found.is_empty() {
        let rows: usize = found.tables.iter().map(|(_, table)| table.rows).sum();
        lines.push(format!("no difference in {rows} rows of {} tables", found.tables.len()));
    }
    lines.join("\n") + "\n"
}

fn as_json(found: &Diff) -> serde_json::Value {
    let first = found.first.as_ref().map(|first| {
        let key: serde_json::Map<String, serde_json::Value> =
            first.key.iter().map(|(name, value)| (name.clone(), output::to_json(value.clone()))).collect();
        serde_json::json!({
            "table": first.table, "key": key, "column": first.column,
            "left": output::to_json(first.left.clone()), "right": output::to_json(first.right.clone()),
        })
    });
    let tables: serde_json::Map<String, serde_json::Value> = found
        .tables
        .iter()
        .map(|(name, table)| {
            let value = serde_json::json!({
                "rows": table.rows, "columns": table.columns, "only_left": table.only_left,
                "only_right": table.only_right, "reordered": table.is_reordered,
            });
            (name.clone(), value)
        })
        .collect();
    serde_json::json!({ "equal": found.is_empty(), "first": first, "tables": tables })
}
