//! Data on standard output, news on standard error.

use crate::exit::CliError;
use kvlab_sim::table::{Column, Table, Value};
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

/// How a table is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns for people.
    #[default]
    Table,
    /// Comma-separated values.
    Csv,
    /// One JSON object a row, in an array.
    Json,
    /// A Markdown table.
    Md,
}

/// Refuses a file that lies in the folder `trace`, or that exists and is not to be replaced.
pub(crate) fn check_new_file(file: &Path, trace: &Path, may_replace: bool) -> Result<(), CliError> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_inside = match (parent.canonicalize(), trace.canonicalize()) {
        (Ok(parent), Ok(trace)) => parent.starts_with(trace),
        _ => false,
    };
    if is_inside {
        let reason = format!("it lies inside the trace {}: choose another place", trace.display());
        return Err(CliError::Invalid { path: file.to_owned(), reason });
    }
    if file.symlink_metadata().is_ok() && !may_replace {
        let remedy = "choose another name, or remove it first".to_owned();
        return Err(CliError::Exists { path: file.to_owned(), remedy });
    }
    Ok(())
}

/// Writes `text` to standard output.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let text = harmless(text);
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Texts from traces and models may hold control characters, which a terminal would obey: they are shown, not sent.
fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if is_harmful(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Writes a line of news to standard error. Nobody listening is no reason to lose the work.
pub(crate) fn news(line: &str) {
    writeln!(std::io::stderr().lock(), "{}", harmless(line)).unwrap_or_default();
}

/// Writes `value` as indented JSON to standard output.
pub(crate) fn json<T: serde::Serialize>(value: &T) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    print(&(text + "\n"))
}

/// Writes the columns `names` of `table` to standard output.
pub(crate) fn table(table: &Table, names: &[&str], format: Format) -> Result<(), CliError> {
    let names: Vec<&str> = names.iter().copied().filter(|name| table.column(name).is_some()).collect();
    if format == Format::Json {
        let rows: Vec<serde_json::Value> = (0..table.rows())
            .map(|row| {
                names.iter().map(|name| ((*name).to_owned(), to_json(table.value(name, row)))).collect()
            })
            .collect();
        return json(&rows);
    }
    let mut lines: Vec<Vec<String>> = vec![names.iter().map(|name| (*name).to_owned()).collect()];
    for row in 0..table.rows() {
        lines.push(names.iter().map(|name| cell(&table.value(name, row), format)).collect());
    }
    let is_number: Vec<bool> =
        names.iter().map(|n| matches!(table.column(n), Some(Column::Int(_) | Column::Real(_)))).collect();
    print(&match format {
        Format::Csv => lines
            .iter()
            .map(|line| line.iter().map(|f| quoted(f)).collect::<Vec<_>>().join(",") + "\n")
            .collect(),
        Format::Md => markdown(&lines),
        _ => aligned(&lines, &is_number),
    })
}

/// A value of a table as JSON.
pub(crate) fn to_json(value: Value) -> serde_json::Value {
    match value {
        Value::Text(text) => text.into(),
        Value::Int(number) => number.into(),
        Value::Real(number) => number.into(),
        Value::Bool(truth) => truth.into(),
        Value::Absent => serde_json::Value::Null,
    }
}

fn cell(value: &Value, format: Format) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Real(number) if format == Format::Csv => number.to_string(),
        Value::Real(number) => significant(*number),
        Value::Bool(truth) => truth.to_string(),
        Value::Absent => String::new(),
    }
}

/// Five significant digits, whole numbers in full.
pub(crate) fn significant(number: f64) -> String {
    if number.fract().abs() < f64::EPSILON && number.abs() < 1e15 {
        return format!("{number:.0}");
    }
    let digits = number.abs().log10().floor();
    let decimals = (4.0 - digits).clamp(0.0, 9.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=9")]
    let decimals = decimals as usize;
    format!("{number:.decimals$}")
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

fn markdown(lines: &[Vec<String>]) -> String {
    let row = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let rule = format!("|{}\n", "---|".repeat(lines[0].len()));
    row(&lines[0]) + &rule + &lines[1..].iter().map(|line| row(line)).collect::<String>()
}

fn aligned(lines: &[Vec<String>], is_number: &[bool]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..is_number.len()).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let fields: Vec<String> = line
            .iter()
            .enumerate()
            .map(|(column, field)| {
                let pad = " ".repeat(widths[column] - field.chars().count());
                if is_number[column] { pad + field } else { field.clone() + &pad }
            })
            .collect();
        text.push_str(fields.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Bytes in units of 10⁶.
#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_sent() {
        assert_eq!(harmless("a\tb\n"), "a\tb\n");
        assert_eq!(harmless("\u{1b}[2J\rx\u{7}"), "\\u{1b}[2J\\rx\\u{7}");
    }
}
