//! Paired differences to a baseline: what the rows by item of two cells say about each other.
//!
//! They are computed when tables are made, from the rows of `items` and `problems`, so that shards and batches do not matter.

use crate::results::{Bootstrap, CellRow, mcnemar, sign_flip, smallest_p};
use crate::scenario::Compare;
use crate::table::{Column, Table, TableError, Value};
use std::collections::BTreeMap;

/// The metric compared over branch trees; those over evictions are the ones in `items`.
const OF_TREES: &str = "tree_accuracy";
/// A difference of so many standard errors is found four times out of five at a level of 5 %.
const FOUND: f64 = 2.8;
/// Level below which a difference counts as seen.
const LEVEL: f64 = 0.05;

/// Values by item, in the order of the table: cell → metric → [(item, sum, terms)].
type Values<'a> = BTreeMap<(&'a str, &'a str), Vec<(&'a str, f64, f64)>>;

/// `cells` with what the comparison adds: columns `<metric>_vs_baseline` and their parts, `baseline`, and lint.
pub(super) fn compared(
    compare: &Compare,
    cells: &Table,
    items: Option<&Table>,
    problems: Option<&Table>,
) -> Result<Table, TableError> {
    let mut values = Values::new();
    if let Some(items) = items {
        let (cell, item, metric) = (items.text("cell")?, items.text("item")?, items.text("metric")?);
        let numbers = items.real("value")?;
        for row in 0..items.rows() {
            if let (Some(cell), Some(item), Some(metric), Some(value)) =
                (&cell[row], &item[row], &metric[row], numbers[row])
            {
                values.entry((cell, metric)).or_default().push((item, value, 1.0));
            }
        }
    }
    if let Some(problems) = problems {
        let (cell, item, correct) =
            (problems.text("cell")?, problems.text("item")?, problems.bool("correct")?);
        for row in 0..problems.rows() {
            // A problem without an expected answer says nothing.
            if let (Some(cell), Some(item), Some(correct)) = (&cell[row], &item[row], correct[row]) {
                values.entry((cell, OF_TREES)).or_default().push((item, f64::from(u8::from(correct)), 1.0));
            }
        }
    }
    let values: Values<'_> = values.into_iter().map(|(key, rows)| (key, by_item(&rows))).collect();
    let mut resamples = Resamples::default();
    let baselines = Baselines::of(compare, cells);
    let rows: Vec<CellRow> = (0..cells.rows())
        .map(|row| {
            let mut added = CellRow::default();
            let Some((base, label)) = baselines.of_row(row) else { return added };
            let id =
                |row: usize| if let Value::Text(id) = cells.value("cell", row) { id } else { String::new() };
            let (cell, base) = (id(row), id(base));
            let mut lint = Vec::new();
            let metrics = values.range((cell.as_str(), "")..).take_while(|((known, _), _)| *known == cell);
            for ((_, metric), of_cell) in metrics {
                let Some(of_base) = values.get(&(base.as_str(), *metric)) else { continue };
                let pairs = pairs(of_cell, of_base);
                lint.extend(pair(&mut added, metric, &pairs, &base, label, &mut resamples));
                added.text("baseline", base.clone());
            }
            if !lint.is_empty() {
                added.text("lint", lint.join("; "));
            }
            added
        })
        .collect();
    with_added(cells, &rows)
}

/// Rows of one item are one value: their mean. Items in the order of their first rows.
fn by_item<'a>(rows: &[(&'a str, f64, f64)]) -> Vec<(&'a str, f64, f64)> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut items: Vec<(&'a str, f64, f64)> = Vec::new();
    for &(item, value, terms) in rows {
        let place = *places.entry(item).or_insert(items.len());
        match items.get_mut(place) {
            Some(known) => {
                known.1 += value;
                known.2 += terms;
            }
            None => items.push((item, value, terms)),
        }
    }
    items
}

/// (item, cell minus baseline) of the items that both have.
fn pairs<'a>(cell: &[(&'a str, f64, f64)], base: &[(&str, f64, f64)]) -> Vec<(&'a str, f64)> {
    let base: BTreeMap<&str, f64> = base.iter().map(|&(item, sum, terms)| (item, sum / terms)).collect();
    cell.iter().filter_map(|&(item, sum, terms)| Some((item, sum / terms - base.get(item)?))).collect()
}

/// The cells that others are compared with.
struct Baselines<'a> {
    cells: &'a Table,
    /// What they are called in a warning, and their rows that have numbers: those of a policy or stack, then those of an exit.
    of_label: Option<(&'a str, Vec<usize>)>,
    of_exit: Option<(String, Vec<usize>)>,
}

impl<'a> Baselines<'a> {
    fn of(compare: &'a Compare, cells: &'a Table) -> Self {
        let rows = |is_base: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..cells.rows()).filter(|&row| is_ok(cells, row) && is_base(row)).collect()
        };
        let exit = Value::Text("exit".to_owned());
        let of_label = compare.baseline.as_deref().map(|label| {
            let wanted = Value::Text(label.to_owned());
            let is_base =
                |row: usize| cells.value("policy", row) == wanted && cells.value("study", row) != exit;
            (label, rows(&is_base))
        });
        let of_exit = compare.exit.map(|point| {
            let is_base = |row: usize| match (
                cells.value("theta", row),
                cells.value("epsilon", row),
                cells.value("lens", row),
            ) {
                (Value::Real(theta), Value::Real(epsilon), Value::Text(lens)) => {
                    cells.value("study", row) == exit && point.is_at(theta, epsilon, &lens)
                }
                _ => false,
            };
            (point.words(), rows(&is_base))
        });
        Self { cells, of_label, of_exit }
    }

    /// The row that `row` is compared with, and what it is called: of the baseline's cells in the same study, the one with the same budget or
    /// capacity (or none) and the same seed (or none, or the first where seeds are the policy's own); of exits the one with the same lens, else
    /// the only one. Nothing for a baseline itself and for cells without numbers.
    fn of_row(&self, row: usize) -> Option<(usize, &str)> {
        let value = |column: &str, row: usize| self.cells.value(column, row);
        let fits = |other: usize, column: &str| {
            let theirs = value(column, other);
            theirs == Value::Absent || theirs == value(column, row)
        };
        let study = value("study", row);
        let is_of = |study: &Value, word: &str| *study == Value::Text(word.to_owned());
        if !is_ok(self.cells, row) {
            return None;
        }
        if is_of(&study, "exit") {
            let (label, rows) = self.of_exit.as_ref()?;
            let same = rows.iter().copied().find(|&other| fits(other, "lens"));
            let found = same.or(if rows.len() == 1 { rows.first().copied() } else { None })?;
            return (!rows.contains(&row)).then_some((found, label));
        }
        let (label, rows) = self.of_label.as_ref()?;
        if rows.contains(&row) {
            return None;
        }
        let is_candidate = |other: &usize| {
            value("study", *other) == study
                && fits(*other, "budget_tokens")
                && fits(*other, "pool_capacity_blocks")
        };
        let candidates: Vec<usize> = rows.iter().copied().filter(is_candidate).collect();
        let same_seed = candidates.iter().copied().find(|&other| fits(other, "seed"));
        // A seed of a pool makes its requests: other seeds have other ones.
        let first = if is_of(&study, "pool") { None } else { candidates.first().copied() };
        Some((same_seed.or(first)?, label))
    }
}

fn is_ok(cells: &Table, row: usize) -> bool {
    cells.value("status", row) == Value::Text("ok".to_owned())
}

/// The resamples of the last list of items: cells of a study mostly have the same.
#[derive(Default)]
struct Resamples(Option<(Vec<String>, Bootstrap)>);

impl Resamples {
    fn of(&mut self, items: &[&str]) -> &Bootstrap {
        let is_known = self.0.as_ref().is_some_and(|(known, _)| known.iter().eq(items.iter()));
        if !is_known {
            self.0 = None;
        }
        let make = || {
            (items.iter().map(|item| (*item).to_owned()).collect(), Bootstrap::by_item(items.iter().copied()))
        };
        &self.0.get_or_insert_with(make).1
    }
}

/// Sets the columns of one metric; gives a warning when the items are too few to tell.
fn pair(
    row: &mut CellRow,
    metric: &str,
    pairs: &[(&str, f64)],
    base: &str,
    label: &str,
    resamples: &mut Resamples,
) -> Option<String> {
    let (items, differences): (Vec<&str>, Vec<f64>) = pairs.iter().copied().unzip();
    let n = differences.len();
    let values: Vec<Option<f64>> = differences.iter().copied().map(Some).collect();
    let estimate = resamples.of(&items).mean(&values)?;
    let column = format!("{metric}_vs_baseline");
    let is_sign = |d: &f64| d.abs() < 1e-12 || (d.abs() - 1.0).abs() < 1e-12;
    let p = if differences.iter().all(is_sign) {
        let count = |is_wanted: fn(f64) -> bool| differences.iter().filter(|d| is_wanted(**d)).count() as u64;
        mcnemar(count(|d| d > 0.5), count(|d| d < -0.5))
    } else {
        sign_flip(&differences, &format!("{metric} {base}"))
    };
    row.mean(&column, Some(estimate), n);
    row.real(&format!("{column}_p"), p);
    if smallest_p(n) >= LEVEL {
        let p = smallest_p(n);
        return Some(format!(
            "{metric}: {n} items cannot tell it from `{label}`: no difference gives p below {p:.3}"
        ));
    }
    let moved = differences.iter().filter(|d| d.abs() > 0.0).count();
    if p < LEVEL || moved == 0 {
        return None;
    }
    let se = estimate.se.filter(|se| *se > 0.0)?;
    let least = FOUND * se;
    Some(format!(
        "{metric}: not told from `{label}` by {n} items (p = {p:.3}); one below {least:.3} would be missed more than one time in five"
    ))
}

/// `cells` with the columns of `added`; lint is joined.
fn with_added(cells: &Table, added: &[CellRow]) -> Result<Table, TableError> {
    let mut names: Vec<&str> = Vec::new();
    for name in added.iter().flat_map(CellRow::columns) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut table = Table::new();
    for (name, column) in cells.names().iter().zip(cells.columns()) {
        if !names.contains(&name.as_str()) {
            table.push(name, column.clone())?;
        }
    }
    for name in names {
        let values: Vec<Value> = added
            .iter()
            .enumerate()
            .map(|(row, added)| match (cells.value(name, row), added.get(name)) {
                (Value::Text(first), Value::Text(second)) if name == "lint" => {
                    Value::Text(format!("{first}; {second}"))
                }
                (there, Value::Absent) => there,
                (_, new) => new,
            })
            .collect();
        let kind = values.iter().find_map(|value| match value {
            Value::Text(_) => Some("text"),
            Value::Int(_) => Some("int"),
            Value::Bool(_) => Some("bool"),
            Value::Real(_) => Some("real"),
            Value::Absent => None,
        });
        table.push(name, Column::of_kind(kind.unwrap_or("real"), values.into_iter()))?;
    }
    Ok(table)
}
