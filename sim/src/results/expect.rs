//! Whether results are as a scenario expects them.

use crate::scenario::{Expectation, Scalar};
use crate::table::{Table, Value};

/// Columns that say which row is meant.
const NAMES: &[&str] = &[
    "policy",
    "lens",
    "budget_tokens",
    "pool_capacity_blocks",
    "tau",
    "tau_conf",
    "margin",
    "theta",
    "epsilon",
    "seed",
];
/// Rows that are named one by one.
const TOLD: usize = 5;

/// What became of an expectation.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// All rows are as expected.
    Met {
        /// How many.
        rows: usize,
        /// Their smallest and largest value.
        range: (f64, f64),
    },
    /// Some are not, or there is none.
    NotMet {
        /// What was found, a row each.
        found: Vec<String>,
        /// Rows that were looked at.
        rows: usize,
    },
    /// It is about another arm than these results.
    NotAsked {
        /// Its arm.
        arm: &'static str,
    },
}

impl Verdict {
    /// Whether nothing speaks against it.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        !matches!(self, Self::NotMet { .. })
    }

    /// In words, after the expectation.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Met { rows: 1, range } => format!("met: {}", range.0),
            Self::Met { rows, range } => format!("met by {rows} rows, {} to {}", range.0, range.1),
            Self::NotAsked { arm } => format!("not asked: these results have no row of arm `{arm}`"),
            Self::NotMet { found, rows: 0 } => format!("NOT met: {}", found.join("; ")),
            Self::NotMet { found, rows } => {
                let more = found.len().saturating_sub(TOLD);
                let more = if more > 0 { format!("; and {more} more") } else { String::new() };
                let told = found[..found.len().min(TOLD)].join("; ");
                format!("NOT met by {} of {rows} rows: {told}{more}", found.len())
            }
        }
    }
}

/// What the table `cells` has to say about each expectation.
///
/// A row that an expectation means and that was skipped or failed does not meet it. A row without the metric that is otherwise fine is of
/// another study and not meant, unless no row has it.
#[must_use]
pub fn verdicts(expectations: &[Expectation], cells: &Table) -> Vec<Verdict> {
    expectations.iter().map(|expectation| verdict(expectation, cells)).collect()
}

fn verdict(expectation: &Expectation, cells: &Table) -> Verdict {
    if let Some(arm) = expectation.arm {
        let is_of_arm = |row: usize| cells.value("arm", row) == Value::Text(arm.word().to_owned());
        if !(0..cells.rows()).any(is_of_arm) {
            return Verdict::NotAsked { arm: arm.word() };
        }
    }
    let meant: Vec<usize> = (0..cells.rows()).filter(|&row| is_meant(expectation, cells, row)).collect();
    if meant.is_empty() {
        let found = vec![format!("no row of {} is meant", cells.rows())];
        return Verdict::NotMet { found, rows: 0 };
    }
    let (mut found, mut rows, mut range) = (Vec::new(), 0, (f64::INFINITY, f64::NEG_INFINITY));
    for row in meant.iter().copied() {
        let status = cells.value("status", row);
        match number(&cells.value(&expectation.metric, row)) {
            Some(value) => {
                rows += 1;
                range = (range.0.min(value), range.1.max(value));
                if !expectation.holds(value) {
                    found.push(format!("{} has {value}", name(cells, row)));
                }
            }
            None if status != Value::Text("ok".to_owned()) => {
                rows += 1;
                let texts = [status, cells.value("error", row)].map(text);
                found.push(format!("{} has none, {}", name(cells, row), texts.join(": ")));
            }
            None => {}
        }
    }
    if rows == 0 {
        let found = vec![format!("none of {} rows has `{}`", meant.len(), expectation.metric)];
        return Verdict::NotMet { found, rows: 0 };
    }
    if found.is_empty() { Verdict::Met { rows, range } } else { Verdict::NotMet { found, rows } }
}

fn is_meant(expectation: &Expectation, cells: &Table, row: usize) -> bool {
    let is_of_arm =
        expectation.arm.is_none_or(|arm| cells.value("arm", row) == Value::Text(arm.word().to_owned()));
    is_of_arm
        && expectation.rows.iter().all(|(column, wanted)| {
            let there = cells.value(column, row);
            wanted.iter().any(|wanted| is_same(wanted, &there))
        })
}

fn is_same(wanted: &Scalar, there: &Value) -> bool {
    match (wanted, there) {
        (Scalar::Absent, Value::Absent) => true,
        (Scalar::Text(wanted), Value::Text(there)) => wanted == there,
        (Scalar::Bool(wanted), Value::Bool(there)) => wanted == there,
        // A threshold on a grid has more digits than one types.
        (Scalar::Number(wanted), there) => {
            number(there).is_some_and(|there| (wanted - there).abs() <= 1e-9 * wanted.abs().max(1.0))
        }
        _ => false,
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(number) => Some(*number as f64),
        Value::Real(number) => Some(*number),
        _ => None,
    }
}

fn text(value: Value) -> String {
    if let Value::Text(text) = value { text } else { "no reason".to_owned() }
}

/// `snapkv, budget_tokens 64`.
fn name(cells: &Table, row: usize) -> String {
    let of = |column: &&str| match cells.value(column, row) {
        Value::Text(text) => Some(text),
        value => number(&value).map(|number| format!("{column} {number}")),
    };
    NAMES.iter().filter_map(of).collect::<Vec<_>>().join(", ")
}
