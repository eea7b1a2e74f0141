//! Rows of `cells` and `series` on their way to tables.
//!
//! Whoever fills them, a replay or an executor, the tables come out alike: keys first, then metrics in registry order.

use super::{CELL_KEYS, Columns, Estimate, MORE_CELL_KEYS, SERIES_COLUMNS};
use crate::metrics::{METRICS, Scope};
use crate::table::{Column, Table, TableError, Text, Value};
use std::collections::BTreeMap;

/// One row of `cells`: values by column. Columns that are neither keys nor metrics are not stored.
#[derive(Clone, Debug, Default)]
pub struct CellRow(BTreeMap<String, Value>);

impl CellRow {
    /// Sets a column.
    pub fn set(&mut self, column: &str, value: Value) {
        self.0.insert(column.to_owned(), value);
    }

    /// The value of a column; absent when it was not set.
    #[must_use]
    pub fn get(&self, column: &str) -> Value {
        self.0.get(column).cloned().unwrap_or(Value::Absent)
    }

    /// Sets a text column.
    pub fn text(&mut self, column: &str, value: impl Into<String>) {
        self.set(column, Value::Text(value.into()));
    }

    /// Sets a column of whole numbers.
    pub fn int(&mut self, column: &str, value: impl Into<i64>) {
        self.set(column, Value::Int(value.into()));
    }

    /// Sets a column of whole numbers, or leaves it without a value.
    pub fn maybe_int(&mut self, column: &str, value: Option<u32>) {
        self.set(column, value.map_or(Value::Absent, |v| Value::Int(i64::from(v))));
    }

    /// Sets a column of numbers.
    pub fn real(&mut self, column: &str, value: f64) {
        self.set(column, Value::Real(value));
    }

    /// A count as a metric.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub fn count(&mut self, metric: &str, value: u64) {
        self.real(metric, value as f64);
    }

    /// A mean over sequences with its interval and the number of sequences behind it.
    pub fn mean(&mut self, metric: &str, estimate: Option<Estimate>, n: usize) {
        self.estimate(metric, estimate);
        self.int(&format!("{metric}_n"), i64::try_from(n).unwrap_or(i64::MAX));
    }

    /// A rate with numerator, denominator and interval.
    pub fn rate(&mut self, metric: &str, estimate: Option<Estimate>, num: u64, den: u64) {
        self.estimate(metric, estimate);
        self.int(&format!("{metric}_num"), i64::try_from(num).unwrap_or(i64::MAX));
        self.int(&format!("{metric}_den"), i64::try_from(den).unwrap_or(i64::MAX));
    }

    fn estimate(&mut self, metric: &str, estimate: Option<Estimate>) {
        let Some(Estimate { value, interval, se }) = estimate else {
            return;
        };
        self.real(metric, value);
        if let Some((low, high)) = interval {
            self.real(&format!("{metric}_lo"), low);
            self.real(&format!("{metric}_hi"), high);
        }
        if let Some(se) = se {
            self.real(&format!("{metric}_se"), se);
        }
    }

    /// The columns that were set.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// One row of `series`.
#[derive(Clone, Debug)]
pub struct SeriesRow {
    /// The cell, or [`super::RECORDING`].
    pub cell: Text,
    /// Id of the metric.
    pub metric: &'static str,
    /// `mean`, `p10`, `p50`, `p90` or `count`.
    pub stat: &'static str,
    /// Zero-based layer; absent when the value is over all layers.
    pub layer: Option<u16>,
    /// Position on the metric's x axis.
    pub x: f64,
    /// Right edge of the bin, for histograms.
    pub x_hi: Option<f64>,
    /// The value.
    pub value: f64,
    /// How many observations are behind the value.
    pub n: u64,
}

/// Name and kind of the metric columns of `cells`, in registry order.
fn metric_columns() -> Vec<(String, &'static str)> {
    let mut columns = Vec::new();
    for metric in METRICS {
        let suffixes: &[(&str, &'static str)] = match metric.scope {
            Scope::Cell => &[("", "real")],
            Scope::CellMean => {
                &[("", "real"), ("_lo", "real"), ("_hi", "real"), ("_se", "real"), ("_n", "int")]
            }
            Scope::CellRate => &[
                ("", "real"),
                ("_num", "int"),
                ("_den", "int"),
                ("_lo", "real"),
                ("_hi", "real"),
                ("_se", "real"),
            ],
            Scope::CellPaired => &[
                ("", "real"),
                ("_lo", "real"),
                ("_hi", "real"),
                ("_se", "real"),
                ("_n", "int"),
                ("_p", "real"),
            ],
            Scope::Series { .. } => &[],
        };
        columns.extend(suffixes.iter().map(|(suffix, kind)| (format!("{}{suffix}", metric.id), *kind)));
    }
    columns
}

/// A column that `cells` may have.
#[derive(Clone, Debug)]
pub(crate) struct CellColumn {
    pub(crate) name: String,
    /// `text`, `int`, `real` or `bool`.
    pub(crate) kind: &'static str,
    /// Whether it is a metric or stands beside one, and is no key.
    pub(crate) is_metric: bool,
}

/// Every column that `cells` may have, in their order.
pub(crate) fn cell_columns() -> Vec<CellColumn> {
    let of = |is_metric: bool| move |(name, kind)| CellColumn { name, kind, is_metric };
    key_columns().map(of(false)).chain(metric_columns().into_iter().map(of(true))).collect()
}

/// The table of `rows`: keys first, then the metrics that any row has.
///
/// # Errors
/// Never in practice: all columns have a value or a gap for each row.
pub fn cells_table(rows: &[CellRow]) -> Result<Table, TableError> {
    ordered_cells(&part_cells_table(rows)?)
}

/// As [`cells_table`], with the [`NOTES`] column and only the columns that any row has.
pub(super) fn part_cells_table(rows: &[CellRow]) -> Result<Table, TableError> {
    let mut table = Table::new();
    for (name, kind) in key_columns().chain(metric_columns()).chain([(NOTES.to_owned(), "text")]) {
        if rows.iter().any(|row| row.0.contains_key(&name)) {
            let values = rows.iter().map(|row| row.get(&name));
            table.push(&name, Column::of_kind(kind, values))?;
        }
    }
    Ok(table)
}

/// What a cell says about itself for findings about several cells, JSON: in parts only, never in the tables of results.
pub const NOTES: &str = "notes";

/// The columns of `cells` in their order, required ones first, without what is for parts only.
///
/// # Errors
/// When a required column is of another kind.
pub(crate) fn ordered_cells(cells: &Table) -> Result<Table, TableError> {
    let mut table = Table::new();
    for (name, kind) in key_columns().chain(metric_columns()) {
        let is_required = CELL_KEYS.iter().any(|(key, _, _)| *key == name);
        match cells.column(&name) {
            Some(column) => table.push(&name, column.clone())?,
            None if is_required => {
                let absent = std::iter::repeat_n(Value::Absent, cells.rows());
                table.push(&name, Column::of_kind(kind, absent))?;
            }
            None => {}
        }
    }
    Ok(table)
}

/// Name and kind of the columns of `cells` before the metrics.
fn key_columns() -> impl Iterator<Item = (String, &'static str)> {
    CELL_KEYS.iter().chain(MORE_CELL_KEYS).map(|(name, kind, _)| ((*name).to_owned(), *kind))
}

/// A table of `columns` from rows of values, `[row][column]`. A value of another kind than its column's is none.
///
/// # Errors
/// When two columns have one name, or a number is not finite.
pub fn table_of<R: AsRef<[Value]>>(columns: Columns, rows: &[R]) -> Result<Table, TableError> {
    let mut table = Table::new();
    for (at, (name, kind, _)) in columns.iter().enumerate() {
        let values = rows.iter().map(|row| row.as_ref().get(at).cloned().unwrap_or(Value::Absent));
        table.push(name, Column::of_kind(kind, values))?;
    }
    Ok(table)
}

/// The long-form table of `rows`, in their order.
///
/// # Errors
/// Never in practice: all columns have a value or a gap for each row.
pub fn series_table(rows: &[SeriesRow]) -> Result<Table, TableError> {
    series_of(&rows.iter().collect::<Vec<_>>())
}

/// As [`series_table`], from wherever the rows are.
pub(super) fn series_of(rows: &[&SeriesRow]) -> Result<Table, TableError> {
    let mut table = Table::new();
    let int = |n: u64| i64::try_from(n).ok();
    let text =
        |of: &dyn Fn(&SeriesRow) -> &str| Column::Text(rows.iter().map(|row| Some(of(row).into())).collect());
    for (name, _, _) in SERIES_COLUMNS {
        let column = match *name {
            "cell" => text(&|row| &row.cell),
            "metric" => text(&|row| row.metric),
            "stat" => text(&|row| row.stat),
            "layer" => Column::Int(rows.iter().map(|row| row.layer.map(i64::from)).collect()),
            "x" => Column::Real(rows.iter().map(|row| Some(row.x)).collect()),
            "x_hi" => Column::Real(rows.iter().map(|row| row.x_hi).collect()),
            "value" => Column::Real(rows.iter().map(|row| Some(row.value)).collect()),
            _ => Column::Int(rows.iter().map(|row| int(row.n)).collect()),
        };
        table.push(name, column)?;
    }
    Ok(table)
}
