//! Exit cells as points: which lens and unit, which θ, which ε.

use crate::number::plain;
use crate::select::{Reader, Subject, findings, finished};
use kvlab_sim::results::Results;
use std::collections::BTreeSet;

/// A finished cell of study `exit`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExitCell {
    /// Its row in `cells`.
    pub(crate) row: usize,
    pub(crate) cell: String,
    /// Lens, and unit, source and policy where the table has several.
    pub(crate) facet: String,
    pub(crate) theta: f64,
    /// Absent when any change is small enough.
    pub(crate) epsilon: Option<f64>,
    /// `nats` or `of ln V`.
    pub(crate) unit: &'static str,
    /// What is vacuous about the thresholds, in words.
    pub(crate) lint: Option<String>,
}

impl ExitCell {
    /// Whether θ can decide anything. An idle ε alone does not count: θ then decides by itself.
    pub(crate) fn is_sound(&self) -> bool {
        findings(self.lint.as_deref().unwrap_or_default())
            .iter()
            .all(|finding| finding.subject == Subject::Epsilon)
    }

    /// `θ = 1.5`, in the cell's unit.
    pub(crate) fn theta_text(&self) -> String {
        format!("\u{3b8} = {}", plain(self.theta, 4))
    }

    /// `ε = 0.1`, in the cell's unit, or that there is no limit.
    pub(crate) fn epsilon_text(&self) -> String {
        self.epsilon
            .map_or("no limit on \u{3b5}".to_owned(), |epsilon| format!("\u{3b5} = {}", plain(epsilon, 4)))
    }
}

/// The finished cells of study `exit` that have a θ, in table order.
pub(crate) fn exit_cells(results: &Results) -> Vec<ExitCell> {
    let cells = &results.cells;
    let column = |name| Reader::new(cells, name);
    let (study, theta, epsilon, lint) = (column("study"), column("theta"), column("epsilon"), column("lint"));
    let (lens, unit, source, policy) =
        (column("lens"), column("theta_unit"), column("source"), column("policy"));
    let (cell, arm) = (column("cell"), column("arm"));
    let rows: Vec<usize> = (0..cells.rows())
        .filter(|&row| {
            finished(cells, row)
                && study.text(row).is_none_or(|study| study == "exit")
                && theta.number(row).is_some()
        })
        .collect();
    let varies =
        |reader: Reader<'_>| rows.iter().map(|&row| reader.text(row)).collect::<BTreeSet<_>>().len() > 1;
    let extras: Vec<Reader<'_>> = [unit, source, policy, arm, column("scenario")]
        .into_iter()
        .filter(|reader| varies(*reader))
        .collect();
    rows.iter()
        .filter_map(|&row| {
            let mut facet = lens.text(row).map_or("lens not named".to_owned(), |lens| format!("{lens} lens"));
            for extra in &extras {
                facet.push_str(", ");
                facet.push_str(extra.text(row).unwrap_or("?"));
            }
            Some(ExitCell {
                row,
                cell: cell.text(row).unwrap_or_default().to_owned(),
                facet,
                theta: theta.number(row)?,
                epsilon: epsilon.number(row),
                unit: if unit.text(row) == Some("share-of-ln-vocab") { "of ln V" } else { "nats" },
                lint: lint.text(row).filter(|text| !text.is_empty()).map(str::to_owned),
            })
        })
        .collect()
}
