//! How far a study is: what is done, what failed, what is missing.

use super::{Part, StudyPlan, UnitKind};
use crate::table::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A cell that is done and has no numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its place in the plan.
    pub place: usize,
    /// `failed` or `skipped`.
    pub status: String,
    /// The reason.
    pub error: String,
}

/// How far a study is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Cells of the plan.
    pub cells: usize,
    /// Of them, those that are done, failed ones included.
    pub done: usize,
    /// Cells that are done and have no numbers, in table order.
    pub unfinished: Vec<Unfinished>,
    /// Places of units that no part has, in table order; units that are no cell included.
    pub missing: Vec<usize>,
    /// Units of the parts that are none of the plan's.
    pub foreign: usize,
}

impl Standing {
    /// Of the study `plan` with `parts`.
    #[must_use]
    pub fn of(plan: &StudyPlan, parts: &[Part]) -> Self {
        let there: BTreeSet<&str> = parts.iter().flat_map(Part::units).collect();
        let planned: BTreeSet<&str> = plan.units.iter().map(|unit| unit.id.as_str()).collect();
        let statuses: BTreeMap<&str, (Value, Value)> =
            parts.iter().flat_map(Part::statuses).map(|(id, status, error)| (id, (status, error))).collect();
        let mut standing =
            Self { foreign: there.iter().filter(|id| !planned.contains(*id)).count(), ..Self::default() };
        for (place, unit) in plan.units.iter().enumerate() {
            let (is_cell, is_there) = (unit.kind == UnitKind::Cell, there.contains(unit.id.as_str()));
            standing.cells += usize::from(is_cell);
            standing.done += usize::from(is_cell && is_there);
            if !is_there {
                standing.missing.push(place);
            }
            if let Some((Value::Text(status), error)) = statuses.get(unit.id.as_str())
                && status != "ok"
            {
                let error = if let Value::Text(error) = error { error.clone() } else { String::new() };
                standing.unfinished.push(Unfinished { place, status: status.clone(), error });
            }
        }
        standing
    }

    /// Whether every unit is there and every cell has its numbers.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unfinished.is_empty()
    }
}
