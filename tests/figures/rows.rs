//! Building result tables row by row, with the columns and kinds of the contract.

use kvlab_sim::metrics::{METRICS, Scope};
use kvlab_sim::results::{CELL_KEYS, Columns, MORE_CELL_KEYS, SERIES_COLUMNS};
use kvlab_sim::table::{Column, Table, Value};
use std::collections::BTreeMap;

/// A small generator with a known sequence (splitmix64).
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform in 0..1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        f64::from(u32::try_from((z ^ (z >> 31)) >> 32).unwrap()) / f64::from(u32::MAX)
    }
}

/// Rows of a table, by column name; columns and kinds come from the contract.
pub(crate) struct Rows {
    kinds: Vec<(String, &'static str)>,
    rows: Vec<BTreeMap<String, Value>>,
}

impl Rows {
    /// `cells` with all keys and all columns of cell metrics.
    pub(crate) fn cells() -> Self {
        let mut kinds: Vec<(String, &'static str)> = CELL_KEYS
            .iter()
            .chain(MORE_CELL_KEYS)
            .map(|(name, kind, _)| ((*name).to_owned(), *kind))
            .collect();
        for metric in METRICS {
            let suffixes: &[(&str, &str)] = match metric.scope {
                Scope::Cell => &[("", "int")],
                Scope::CellMean => &[("", "real"), ("_lo", "real"), ("_hi", "real"), ("_n", "int")],
                Scope::CellRate => {
                    &[("", "real"), ("_num", "int"), ("_den", "int"), ("_lo", "real"), ("_hi", "real")]
                }
                Scope::CellPaired => &[("", "real"), ("_lo", "real"), ("_hi", "real"), ("_n", "int")],
                Scope::Series { .. } => &[],
            };
            kinds.extend(suffixes.iter().map(|(suffix, kind)| (format!("{}{suffix}", metric.id), *kind)));
        }
        Self { kinds, rows: Vec::new() }
    }

    /// `series`.
    pub(crate) fn series() -> Self {
        Self::of(SERIES_COLUMNS)
    }

    /// A table of these columns.
    pub(crate) fn of(columns: Columns) -> Self {
        Self {
            kinds: columns.iter().map(|(name, kind, _)| ((*name).to_owned(), *kind)).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; columns not named are absent.
    pub(crate) fn push(&mut self, values: impl IntoIterator<Item = (String, Value)>) {
        self.rows.push(values.into_iter().collect());
    }

    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        for (name, kind) in &self.kinds {
            let value = |row: &BTreeMap<String, Value>| row.get(name).cloned().unwrap_or(Value::Absent);
            let values = self.rows.iter().map(value);
            let column = match *kind {
                "text" => Column::Text(
                    values.map(|v| if let Value::Text(v) = v { Some(v.into()) } else { None }).collect(),
                ),
                "int" => {
                    Column::Int(values.map(|v| if let Value::Int(v) = v { Some(v) } else { None }).collect())
                }
                "bool" => Column::Bool(
                    values.map(|v| if let Value::Bool(v) = v { Some(v) } else { None }).collect(),
                ),
                _ => Column::Real(
                    values.map(|v| if let Value::Real(v) = v { Some(v) } else { None }).collect(),
                ),
            };
            table.push(name, column).unwrap();
        }
        table
    }
}

pub(crate) fn text(name: &str, value: &str) -> (String, Value) {
    (name.to_owned(), Value::Text(value.to_owned()))
}

pub(crate) fn int(name: &str, value: i64) -> (String, Value) {
    (name.to_owned(), Value::Int(value))
}

pub(crate) fn real(name: &str, value: f64) -> (String, Value) {
    (name.to_owned(), Value::Real(value))
}
