//! The columns of the facts tables, in file order, and a buffer of rows for each.

use super::manifest::{LENS, LENS_TOP};
use crate::table::{Column, Table, TableError};

/// Kind of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Real,
    Bool,
}

const TOKENS_COLUMNS: &[(&str, Kind)] =
    &[("seq", Kind::Int), ("pos", Kind::Int), ("token", Kind::Int), ("is_prompt", Kind::Bool)];

const LENS_COLUMNS: &[(&str, Kind)] = &[
    ("seq", Kind::Int),
    ("pos", Kind::Int),
    ("layer", Kind::Int),
    ("entropy_nats", Kind::Real),
    ("raw_entropy_nats", Kind::Real),
    ("logsumexp", Kind::Real),
    ("raw_logsumexp", Kind::Real),
    ("top1_token", Kind::Int),
    ("top1_logit", Kind::Real),
    ("top1_prob", Kind::Real),
    ("agrees_with_last", Kind::Bool),
];

const LENS_TOP_COLUMNS: &[(&str, Kind)] = &[
    ("seq", Kind::Int),
    ("pos", Kind::Int),
    ("layer", Kind::Int),
    ("rank", Kind::Int),
    ("token", Kind::Int),
    ("logit", Kind::Real),
];

/// Names and kinds of the columns of the table at `path`.
pub(crate) fn columns(path: &str) -> &'static [(&'static str, Kind)] {
    match path {
        LENS => LENS_COLUMNS,
        LENS_TOP => LENS_TOP_COLUMNS,
        _ => TOKENS_COLUMNS,
    }
}

/// Rows of one facts table on their way to the file. Values are pushed by column number, in the order above; a value of
/// another kind than its column is left out, and [`Rows::take`] finds the columns of unequal length.
#[derive(Debug)]
pub(crate) struct Rows {
    names: &'static [(&'static str, Kind)],
    columns: Vec<Column>,
}

impl Rows {
    pub(crate) fn new(path: &str) -> Self {
        let names = columns(path);
        Self { names, columns: names.iter().map(|(_, kind)| empty(*kind)).collect() }
    }

    /// The columns without rows.
    pub(crate) fn prototype(&self) -> Table {
        let mut table = Table::new();
        for (name, kind) in self.names {
            table.push(name, empty(*kind)).expect("column names are unique and empty columns equally long");
        }
        table
    }

    pub(crate) fn int(&mut self, column: usize, value: impl Into<i64>) {
        if let Column::Int(values) = &mut self.columns[column] {
            values.push(Some(value.into()));
        }
    }

    pub(crate) fn real(&mut self, column: usize, value: f32) {
        if let Column::Real(values) = &mut self.columns[column] {
            values.push(Some(f64::from(value)));
        }
    }

    pub(crate) fn bool(&mut self, column: usize, value: bool) {
        if let Column::Bool(values) = &mut self.columns[column] {
            values.push(Some(value));
        }
    }

    /// The rows so far as a table; the buffer is empty afterwards.
    pub(crate) fn take(&mut self) -> Result<Table, TableError> {
        let mut table = Table::new();
        for ((name, kind), column) in self.names.iter().zip(&mut self.columns) {
            table.push(name, std::mem::replace(column, empty(*kind)))?;
        }
        Ok(table)
    }
}

fn empty(kind: Kind) -> Column {
    match kind {
        Kind::Int => Column::Int(Vec::new()),
        Kind::Real => Column::Real(Vec::new()),
        Kind::Bool => Column::Bool(Vec::new()),
    }
}
