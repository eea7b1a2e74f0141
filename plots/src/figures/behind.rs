//! The table behind a figure, built row by row.

use crate::error::PlotsError;
use crate::figure::{Drawing, Figure, Outcome};
use crate::scene::Scene;
use kvlab_sim::table::{Column, Table};

/// A table under construction.
#[derive(Debug)]
pub(super) struct Behind {
    names: Vec<&'static str>,
    columns: Vec<Column>,
}

/// One value on its way into the table.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    Text(String),
    Int(Option<i64>),
    Real(Option<f64>),
}

impl From<&str> for Cell {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Real(Some(value))
    }
}

impl From<Option<f64>> for Cell {
    fn from(value: Option<f64>) -> Self {
        Self::Real(value)
    }
}

impl From<Option<i64>> for Cell {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<usize> for Cell {
    fn from(value: usize) -> Self {
        Self::Int(i64::try_from(value).ok())
    }
}

impl Behind {
    /// A table with these columns, kinds being those of the first row.
    pub(super) fn new(names: &[&'static str]) -> Self {
        Self { names: names.to_vec(), columns: Vec::new() }
    }

    /// Adds a row; values of another kind than their column's are absent.
    pub(super) fn row<const N: usize>(&mut self, values: [Cell; N]) {
        if self.columns.is_empty() {
            self.columns = values
                .iter()
                .map(|value| match value {
                    Cell::Text(_) => Column::Text(Vec::new()),
                    Cell::Int(_) => Column::Int(Vec::new()),
                    Cell::Real(_) => Column::Real(Vec::new()),
                })
                .collect();
        }
        for (column, value) in self.columns.iter_mut().zip(values) {
            match (column, value) {
                (Column::Text(column), Cell::Text(value)) => column.push(Some(value.into())),
                (Column::Int(column), Cell::Int(value)) => column.push(value),
                (Column::Real(column), Cell::Real(value)) => {
                    column.push(value.filter(|value| value.is_finite()))
                }
                (Column::Text(column), _) => column.push(None),
                (Column::Int(column), _) => column.push(None),
                (Column::Real(column), _) => column.push(None),
                (Column::Bool(column), _) => column.push(None),
            }
        }
    }

    /// The finished figure.
    pub(super) fn finish(
        self,
        figure: &dyn Figure,
        scene: Scene,
        alt: String,
    ) -> Result<Outcome, PlotsError> {
        let mut data = Table::new();
        for (name, column) in self.names.into_iter().zip(self.columns) {
            data.push(name, column).map_err(|source| PlotsError::Table { figure: figure.id(), source })?;
        }
        Ok(Outcome::Drawn(Box::new(Drawing { figure: figure.id(), scene, data, alt })))
    }
}
