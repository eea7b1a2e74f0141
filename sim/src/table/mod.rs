//! A small typed table: named scalar columns of equal length, each value present or absent.
//!
//! It is what facts in a trace and rows of results are made of. It knows nothing of either.
//! Non-finite reals are never stored: absence says "not known", and an error says "not a number".

mod csv;
mod error;
mod file;
mod json;
mod jsonl;
mod parquet;

pub use csv::{to_csv, write_csv};
pub use error::TableError;
pub(crate) use file::sync_folder;
pub use file::{write_together, write_whole};
pub use jsonl::to_jsonl;
pub(crate) use parquet::{GroupWriter, TableFile};
pub use parquet::{parquet_from_bytes, parquet_to_bytes, read_parquet, write_parquet};

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

/// A text in a column: short ones need no memory of their own.
pub type Text = CompactString;

/// The values of one column. `None` means absent (an empty CSV field, a Parquet null).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    /// UTF-8 text.
    Text(Vec<Option<Text>>),
    /// Signed integers.
    Int(Vec<Option<i64>>),
    /// Finite reals.
    Real(Vec<Option<f64>>),
    /// Truth values.
    Bool(Vec<Option<bool>>),
}

impl Column {
    /// An empty column of the same kind.
    #[must_use]
    pub fn empty_like(&self) -> Self {
        match self {
            Self::Text(_) => Self::Text(Vec::new()),
            Self::Int(_) => Self::Int(Vec::new()),
            Self::Real(_) => Self::Real(Vec::new()),
            Self::Bool(_) => Self::Bool(Vec::new()),
        }
    }

    /// Number of values, absent ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Int(values) => values.len(),
            Self::Real(values) => values.len(),
            Self::Bool(values) => values.len(),
        }
    }

    /// Whether there is no value at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the values of `other` when it is of the same kind.
    fn extend(&mut self, other: &Self) {
        match (self, other) {
            (Self::Text(values), Self::Text(more)) => values.extend_from_slice(more),
            (Self::Int(values), Self::Int(more)) => values.extend_from_slice(more),
            (Self::Real(values), Self::Real(more)) => values.extend_from_slice(more),
            (Self::Bool(values), Self::Bool(more)) => values.extend_from_slice(more),
            _ => {}
        }
    }

    /// The values in these rows, in their order.
    fn take(&self, rows: &[usize]) -> Self {
        fn picked<T: Clone>(values: &[Option<T>], rows: &[usize]) -> Vec<Option<T>> {
            rows.iter().map(|&row| values.get(row).cloned().flatten()).collect()
        }
        match self {
            Self::Text(values) => Self::Text(picked(values, rows)),
            Self::Int(values) => Self::Int(picked(values, rows)),
            Self::Real(values) => Self::Real(picked(values, rows)),
            Self::Bool(values) => Self::Bool(picked(values, rows)),
        }
    }

    /// A column of this kind (`text`, `int`, `bool`, anything else for reals); values of another kind are absent.
    #[must_use]
    pub fn of_kind(kind: &str, values: impl Iterator<Item = Value>) -> Self {
        match kind {
            "text" => Self::Text(
                values.map(|v| if let Value::Text(v) = v { Some(v.into()) } else { None }).collect(),
            ),
            "int" => Self::Int(values.map(|v| if let Value::Int(v) = v { Some(v) } else { None }).collect()),
            "bool" => {
                Self::Bool(values.map(|v| if let Value::Bool(v) = v { Some(v) } else { None }).collect())
            }
            _ => Self::Real(values.map(|v| if let Value::Real(v) = v { Some(v) } else { None }).collect()),
        }
    }

    fn extend_absent(&mut self, count: usize) {
        match self {
            Self::Text(values) => values.resize(values.len() + count, None),
            Self::Int(values) => values.resize(values.len() + count, None),
            Self::Real(values) => values.resize(values.len() + count, None),
            Self::Bool(values) => values.resize(values.len() + count, None),
        }
    }

    /// The value in `row`; absent when there is no such row.
    #[must_use]
    pub fn value(&self, row: usize) -> Value {
        fn or_absent<T: Clone>(values: &[Option<T>], row: usize, wrap: impl Fn(T) -> Value) -> Value {
            values.get(row).cloned().flatten().map_or(Value::Absent, wrap)
        }
        match self {
            Self::Text(values) => or_absent(values, row, |text: Text| Value::Text(text.into())),
            Self::Int(values) => or_absent(values, row, Value::Int),
            Self::Real(values) => or_absent(values, row, Value::Real),
            Self::Bool(values) => or_absent(values, row, Value::Bool),
        }
    }

    /// The kind as a word: `text`, `int`, `real` or `bool`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Int(_) => "int",
            Self::Real(_) => "real",
            Self::Bool(_) => "bool",
        }
    }
}

/// One value of a table, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// UTF-8 text.
    Text(String),
    /// A signed integer.
    Int(i64),
    /// A finite real.
    Real(f64),
    /// A truth value.
    Bool(bool),
    /// No value.
    Absent,
}

/// Columns of equal length, in a fixed order, with unique names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    names: Vec<String>,
    columns: Vec<Column>,
}

impl Table {
    /// A table without columns.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column at the end.
    ///
    /// # Errors
    /// When the name is taken, the length differs from the columns already there, or a real is not finite.
    pub fn push(&mut self, name: &str, column: Column) -> Result<(), TableError> {
        if self.names.iter().any(|known| known == name) {
            return Err(TableError::DuplicateColumn { column: name.to_owned() });
        }
        if !self.columns.is_empty() && column.len() != self.rows() {
            return Err(TableError::Length {
                column: name.to_owned(),
                expected: self.rows(),
                found: column.len(),
            });
        }
        if let Column::Real(values) = &column
            && let Some(row) = values.iter().position(|value| value.is_some_and(|v| !v.is_finite()))
        {
            return Err(TableError::NotFinite { column: name.to_owned(), row });
        }
        self.names.push(name.to_owned());
        self.columns.push(column);
        Ok(())
    }

    /// Adds the rows of `other` at the end. A column that one of them lacks is absent there; new ones come last.
    ///
    /// # Errors
    /// When a column holds different kinds of values in the two.
    pub fn append(&mut self, other: &Self) -> Result<(), TableError> {
        for (name, column) in self.names.iter().zip(&self.columns) {
            if let Some(more) = other.column(name).filter(|more| more.kind() != column.kind()) {
                return Err(other.mismatch(name, column.kind(), Some(more)));
            }
        }
        let (here, there) = (self.rows(), other.rows());
        for (name, column) in other.names.iter().zip(&other.columns) {
            if self.column(name).is_none() {
                self.names.push(name.clone());
                let mut fresh = column.empty_like();
                fresh.extend_absent(here);
                self.columns.push(fresh);
            }
        }
        for (name, column) in self.names.iter().zip(&mut self.columns) {
            match other.column(name) {
                Some(more) => column.extend(more),
                None => column.extend_absent(there),
            }
        }
        Ok(())
    }

    /// The table of these rows, in their order; a row that is not there is absent in every column.
    #[must_use]
    pub fn take(&self, rows: &[usize]) -> Self {
        let columns = self.columns.iter().map(|column| column.take(rows)).collect();
        Self { names: self.names.clone(), columns }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, Column::len)
    }

    /// Column names, in order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Columns, in order.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The column called `name`, if there is one.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.names.iter().position(|known| known == name).map(|at| &self.columns[at])
    }

    /// The text column called `name`.
    ///
    /// # Errors
    /// When there is no such column, or it holds something else.
    pub fn text(&self, name: &str) -> Result<&[Option<Text>], TableError> {
        match self.column(name) {
            Some(Column::Text(values)) => Ok(values),
            other => Err(self.mismatch(name, "text", other)),
        }
    }

    /// The integer column called `name`.
    ///
    /// # Errors
    /// When there is no such column, or it holds something else.
    pub fn int(&self, name: &str) -> Result<&[Option<i64>], TableError> {
        match self.column(name) {
            Some(Column::Int(values)) => Ok(values),
            other => Err(self.mismatch(name, "int", other)),
        }
    }

    /// The real column called `name`.
    ///
    /// # Errors
    /// When there is no such column, or it holds something else.
    pub fn real(&self, name: &str) -> Result<&[Option<f64>], TableError> {
        match self.column(name) {
            Some(Column::Real(values)) => Ok(values),
            other => Err(self.mismatch(name, "real", other)),
        }
    }

    /// The truth column called `name`.
    ///
    /// # Errors
    /// When there is no such column, or it holds something else.
    pub fn bool(&self, name: &str) -> Result<&[Option<bool>], TableError> {
        match self.column(name) {
            Some(Column::Bool(values)) => Ok(values),
            other => Err(self.mismatch(name, "bool", other)),
        }
    }

    /// The value in `row` of the column called `name`; absent when there is no such column or row.
    #[must_use]
    pub fn value(&self, name: &str, row: usize) -> Value {
        self.column(name).map_or(Value::Absent, |column| column.value(row))
    }

    fn mismatch(&self, name: &str, expected: &'static str, found: Option<&Column>) -> TableError {
        match found {
            Some(column) => TableError::Kind { column: name.to_owned(), expected, found: column.kind() },
            None => TableError::MissingColumn { column: name.to_owned(), known: self.names.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_rows_keep_what_either_table_has() {
        let table = |name: &str, values: &[i64]| {
            let mut table = Table::new();
            table.push(name, Column::Int(values.iter().map(|&v| Some(v)).collect())).unwrap();
            table
        };
        let mut both = table("a", &[1, 2]);
        both.append(&table("b", &[3])).unwrap();
        assert_eq!(both.int("a").unwrap(), [Some(1), Some(2), None]);
        assert_eq!(both.int("b").unwrap(), [None, None, Some(3)]);
        let mut text = Table::new();
        text.push("a", Column::Text(vec![None])).unwrap();
        assert!(both.append(&text).is_err(), "kinds must agree");
        assert_eq!(both.rows(), 3, "nothing was added");
    }
}
