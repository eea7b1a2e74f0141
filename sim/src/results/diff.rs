//! Where two folders of results differ: the first diverging record, and how many there are by column.

use super::{CELL_KEYS, MORE_CELL_KEYS, MORE_TABLES, Results};
use crate::table::{Column, Table, Value};
use std::collections::{BTreeMap, BTreeSet};

/// What makes two rows the same record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Match {
    /// Cells have the same content hash: the same trace, parameters and version.
    #[default]
    Cell,
    /// Cells have the same settings, whatever trace they were run on and what the study is called.
    Settings,
}

/// How results are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiffOptions {
    /// What makes two rows the same record.
    pub by: Match,
    /// Reals count as equal when they differ by at most this share of the larger one; 0 for equal bits.
    pub tolerance: f64,
}

/// A value that is another one on the other side, or a row that is on one side only.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// The table.
    pub table: String,
    /// What names the row: column and value.
    pub key: Vec<(String, Value)>,
    /// The column; absent when the whole row is on one side only.
    pub column: Option<String>,
    /// The left value; absent too when the row is only on the right.
    pub left: Value,
    /// The right value.
    pub right: Value,
}

/// What is different about one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableDiff {
    /// Rows that are on both sides.
    pub rows: usize,
    /// Differing values by column.
    pub columns: BTreeMap<String, usize>,
    /// Rows on the left only.
    pub only_left: usize,
    /// Rows on the right only.
    pub only_right: usize,
    /// Whether rows come in another order.
    pub is_reordered: bool,
}

impl TableDiff {
    fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.only_left == 0 && self.only_right == 0 && !self.is_reordered
    }
}

/// Where two results differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// The first difference, in the order of the left tables; rows on the right only come last. Absent when there is none, or when
    /// nothing but the order of rows differs.
    pub first: Option<Divergence>,
    /// By table, in their order; tables without a difference included.
    pub tables: Vec<(String, TableDiff)>,
}

impl Diff {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(|(_, table)| table.is_empty())
    }
}

/// The columns that name a row. Rows that agree in all of them are told apart by their order.
fn keys_of(table: &str) -> &'static [&'static str] {
    match table {
        "series" => &["cell", "metric", "stat", "layer", "x"],
        "problems" => &["cell", "problem"],
        "items" => &["cell", "item", "metric"],
        "speedups" => &["cell", "baseline"],
        "steps" => &["stack", "group", "axis", "above"],
        "joint" => &["stack", "group", "problem", "above"],
        "fidelity" => &["estimate", "outcome", "budget_tokens"],
        _ => &["cell"],
    }
}

/// Columns of `cells` that say what a cell is, besides trace and study.
fn is_setting(column: &str) -> bool {
    const NOT: &[&str] = &[
        "cell",
        "scenario",
        "source",
        "synthetic",
        "status",
        "error",
        "lint",
        "sequences",
        "log_digest",
        "problems",
        "baseline",
    ];
    CELL_KEYS.iter().chain(MORE_CELL_KEYS).any(|(name, _, _)| *name == column) && !NOT.contains(&column)
}

/// Columns that say which trace and study a row is from.
const ORIGIN: &[&str] = &["cell", "scenario", "source", "baseline", "group"];

/// Compares two results, record by record.
#[must_use]
pub fn diff(left: &Results, right: &Results, options: DiffOptions) -> Diff {
    let (names_left, names_right) = (aliases(&left.cells, options.by), aliases(&right.cells, options.by));
    let mut found = Diff::default();
    let mut only_right = None;
    let all = ["cells", "series"].into_iter().chain(MORE_TABLES.iter().map(|(name, _)| *name));
    for name in all {
        let (Some(a), Some(b)) = (table(left, name), table(right, name)) else {
            let (Some(one), is_left) = (match (table(left, name), table(right, name)) {
                (Some(one), None) => (Some(one), true),
                (_, other) => (other, false),
            }) else {
                continue;
            };
            let mut of_table = TableDiff::default();
            *(if is_left { &mut of_table.only_left } else { &mut of_table.only_right }) = one.rows();
            if one.rows() > 0 && found.first.is_none() {
                found.first = Some(lonely(name, one, 0, is_left));
            }
            found.tables.push((name.to_owned(), of_table));
            continue;
        };
        let sides =
            Sides { name, a: Side::of(name, a, &names_left), b: Side::of(name, b, &names_right), options };
        let (of_table, first, first_right) = sides.compare();
        found.first = found.first.or(first);
        only_right = only_right.or(first_right);
        found.tables.push((name.to_owned(), of_table));
    }
    found.first = found.first.or(only_right);
    found
}

fn table<'a>(results: &'a Results, name: &str) -> Option<&'a Table> {
    match name {
        "cells" => Some(&results.cells),
        "series" => Some(&results.series),
        _ => results.more(name),
    }
}

/// What stands for the content hash of a cell, by it.
fn aliases(cells: &Table, by: Match) -> BTreeMap<String, String> {
    if by == Match::Cell {
        return BTreeMap::new();
    }
    let columns: Vec<&String> = cells.names().iter().filter(|name| is_setting(name)).collect();
    let alias = |row: usize| -> Option<(String, String)> {
        let Value::Text(id) = cells.value("cell", row) else { return None };
        let values: Vec<String> = columns
            .iter()
            .map(|name| (name, cells.value(name, row)))
            .filter(|(_, value)| *value != Value::Absent)
            .map(|(name, value)| format!("{name} {value:?}"))
            .collect();
        Some((id, values.join("\n")))
    };
    (0..cells.rows()).filter_map(alias).collect()
}

/// One table of one side.
struct Side<'a> {
    table: &'a Table,
    /// What names each row, `[row]`, with a number for rows that would have the same name.
    names: Vec<(String, usize)>,
}

impl<'a> Side<'a> {
    fn of(name: &str, table: &'a Table, aliases: &BTreeMap<String, String>) -> Self {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let names = (0..table.rows())
            .map(|row| {
                let mut text = String::new();
                for column in keys_of(name) {
                    match table.value(column, row) {
                        // Groups of step functions are content hashes too, of the settings that they have in common.
                        Value::Text(id) if *column == "cell" => {
                            text.push_str(aliases.get(&id).unwrap_or(&id));
                        }
                        value => text.push_str(&format!("{value:?}")),
                    }
                    text.push('\n');
                }
                let count = seen.entry(text.clone()).or_default();
                *count += 1;
                (text, *count)
            })
            .collect();
        Self { table, names }
    }
}

struct Sides<'a> {
    name: &'a str,
    a: Side<'a>,
    b: Side<'a>,
    options: DiffOptions,
}

impl Sides<'_> {
    /// The differences, the first of them, and the first row on the right only.
    fn compare(&self) -> (TableDiff, Option<Divergence>, Option<Divergence>) {
        let places: BTreeMap<&(String, usize), usize> =
            self.b.names.iter().enumerate().map(|(row, name)| (name, row)).collect();
        let columns = self.columns();
        let (mut found, mut first) = (TableDiff::default(), None);
        let (mut matched, mut last) = (BTreeSet::new(), 0);
        for (row, name) in self.a.names.iter().enumerate() {
            let Some(&other) = places.get(name) else {
                found.only_left += 1;
                first = first.or_else(|| Some(lonely(self.name, self.a.table, row, true)));
                continue;
            };
            found.rows += 1;
            found.is_reordered |= other < last;
            last = other;
            matched.insert(other);
            for (column, left, right) in &columns {
                let value =
                    |column: &Option<&Column>, row: usize| column.map_or(Value::Absent, |c| c.value(row));
                let (left, right) = (value(left, row), value(right, other));
                if !is_same(&left, &right, self.options.tolerance) {
                    *found.columns.entry((*column).to_owned()).or_default() += 1;
                    if first.is_none() {
                        let column = Some((*column).to_owned());
                        first = Some(Divergence {
                            column,
                            left,
                            right,
                            ..lonely(self.name, self.a.table, row, true)
                        });
                    }
                }
            }
        }
        let mut rest = (0..self.b.names.len()).filter(|row| !matched.contains(row)).peekable();
        let first_right = rest.peek().map(|&row| lonely(self.name, self.b.table, row, false));
        found.only_right = rest.count();
        (found, first, first_right)
    }

    /// The columns of either side.
    fn columns(&self) -> Vec<(&str, Option<&Column>, Option<&Column>)> {
        let (a, b) = (self.a.table, self.b.table);
        let new = b.names().iter().filter(|name| a.column(name).is_none());
        let is_compared = |name: &&String| self.options.by == Match::Cell || !ORIGIN.contains(&name.as_str());
        let names = a.names().iter().chain(new).filter(is_compared);
        names.map(|name| (name.as_str(), a.column(name), b.column(name))).collect()
    }
}

/// A row that is on one side only.
fn lonely(name: &str, table: &Table, row: usize, is_left: bool) -> Divergence {
    let columns: &[&str] = match name {
        "cells" => &["cell", "study", "policy", "budget_tokens", "seed", "lens", "tau", "theta", "epsilon"],
        other => keys_of(other),
    };
    let key = columns
        .iter()
        .map(|column| ((*column).to_owned(), table.value(column, row)))
        .filter(|(_, value)| *value != Value::Absent)
        .collect();
    let (here, gone) = (Value::Text("a row".to_owned()), Value::Absent);
    let (left, right) = if is_left { (here, gone) } else { (gone, here) };
    Divergence { table: name.to_owned(), key, column: None, left, right }
}

fn is_same(left: &Value, right: &Value, tolerance: f64) -> bool {
    match (left, right) {
        (Value::Real(a), Value::Real(b)) => {
            a.to_bits() == b.to_bits() || (a - b).abs() <= tolerance * a.abs().max(b.abs())
        }
        _ => left == right,
    }
}
