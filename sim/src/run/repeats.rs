//! Thresholds of a study that repeat one another: no observed value lies between them.
//!
//! A cell notes between which observed values each of its thresholds lies; whether another cell of the study lies there too is seen
//! when all cells are together, so that a row does not depend on what it is run with.

use crate::results::NOTES;
use crate::table::{Column, Table, TableError, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a threshold of a cell lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    /// What is equal in cells that differ in thresholds only.
    pub(super) group: String,
    /// The threshold's name.
    pub(super) axis: String,
    /// Its value.
    pub(super) value: f64,
    /// Observed values below it.
    pub(super) rank: usize,
    /// The largest of them; absent when there is none.
    pub(super) below: Option<f64>,
    /// The smallest observed value that is not below it; absent when there is none.
    pub(super) above: Option<f64>,
}

impl Place {
    /// Of a threshold among the `observed` values that it is compared with, rising.
    pub(super) fn of(group: &str, axis: &str, value: f64, observed: &[f64]) -> Self {
        let rank = observed.partition_point(|&edge| edge < value);
        Self {
            group: group.to_owned(),
            axis: axis.to_owned(),
            value,
            rank,
            below: rank.checked_sub(1).and_then(|at| observed.get(at)).copied(),
            above: observed.get(rank).copied(),
        }
    }

    fn note(&self, other: f64) -> String {
        let edge = |at: Option<f64>| at.map_or("no bound".to_owned(), |edge| format!("{edge:.4}"));
        format!(
            "{} {} repeats {other}: no observed value lies between them (neighbours {} and {})",
            self.axis,
            self.value,
            edge(self.below),
            edge(self.above)
        )
    }
}

/// The places of the cells so far. An earlier cell is repeated by a later one.
#[derive(Default)]
pub(super) struct Repeats {
    /// (group, axis, rank) → the first value there.
    known: BTreeMap<(String, String, usize), f64>,
}

impl Repeats {
    /// What the next cell repeats, in words.
    pub(super) fn next(&mut self, places: &[Place]) -> Vec<String> {
        let mut findings = Vec::new();
        for place in places {
            let key = (place.group.clone(), place.axis.clone(), place.rank);
            let first = *self.known.entry(key).or_insert(place.value);
            findings.extend(first.total_cmp(&place.value).is_ne().then(|| place.note(first)));
        }
        findings
    }
}

/// `cells` with what they repeat added to their lint.
pub(super) fn noted(cells: &Table) -> Result<Table, TableError> {
    let Ok(notes) = cells.text(NOTES) else { return Ok(cells.clone()) };
    let mut repeats = Repeats::default();
    let mut lint = Vec::with_capacity(cells.rows());
    for (row, note) in notes.iter().enumerate() {
        let mut findings = match cells.value("lint", row) {
            Value::Text(found) => vec![found],
            _ => Vec::new(),
        };
        let places: Vec<Place> =
            note.as_ref().and_then(|note| serde_json::from_str(note).ok()).unwrap_or_default();
        findings.extend(repeats.next(&places));
        lint.push(if findings.is_empty() { Value::Absent } else { Value::Text(findings.join("; ")) });
    }
    let mut noted = Table::new();
    for (name, column) in cells.names().iter().zip(cells.columns()) {
        if name != "lint" {
            noted.push(name, column.clone())?;
        }
    }
    noted.push("lint", Column::of_kind("text", lint.into_iter()))?;
    Ok(noted)
}
