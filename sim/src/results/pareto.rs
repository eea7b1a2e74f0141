//! Rows of `cells` that no other row beats in two or three columns, the knee among them, and what each row lacks to a bound.

use super::{CELL_KEYS, MORE_CELL_KEYS};
use crate::metrics::{Better, metric};
use crate::scenario::{Direction, nearest};
use crate::table::{Column, Table, TableError, Value};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Labels of the policies that are bounds, where nothing else is said: regret is from the first one that a study has.
const BOUNDS: &[&str] = &["oracle", "belady", "oracle-block", "oracle-top-k"];

/// Keys that do not tell what a row is about.
const NO_SETTING: &[&str] = &[
    "cell",
    "scenario",
    "seed",
    "status",
    "error",
    "lint",
    "log_digest",
    "baseline",
    "sequences",
    "problems",
];

/// What a pool may hold, as the scenario says it: a share is another number of blocks for each seed's requests.
const CAPACITY: &str = "capacity";

/// Keys that a row and its bound have in common, where both have them.
const SAME: &[&str] = &["source", "study", "arm", "budget_tokens", CAPACITY];

/// Columns that tell rows apart, in the order in which they are shown.
const SHOWN: &[&str] = &[
    "study",
    "source",
    "arm",
    "policy",
    "lens",
    "budget_tokens",
    CAPACITY,
    "share",
    "verify",
    "exit",
    "winner",
    "tau",
    "tau_conf",
    "margin",
    "theta",
    "epsilon",
];

/// What the knee is.
pub const KNEE: &str = "the row of the front with the largest sum of its columns, each scaled from 0 for the worst to 1 for the best of the front: in two columns, the row \
farthest from the straight line between the ends";

/// Why there is no front.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParetoError {
    /// A column is not there, or is none of numbers, or its direction is not known.
    #[error("{axis} is {found}; accepted: {accepted}")]
    Axis {
        /// `--x`, `--y` or `--z`.
        axis: &'static str,
        /// What was given.
        found: String,
        /// What is accepted.
        accepted: String,
    },
    /// A column has no value in any finished row.
    #[error("no finished row has {0}")]
    Empty(String),
    /// A table cannot be made.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// One column, and which way is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParetoAxis {
    /// The column of `cells`.
    pub column: String,
    /// Which way is good.
    pub direction: Direction,
}

impl ParetoAxis {
    /// From `COLUMN`, `max:COLUMN` or `min:COLUMN`; without a word the direction is that of the metric. `axis` is named in errors.
    ///
    /// # Errors
    /// When no table has the column as numbers, or neither direction of it is better by itself.
    pub fn of(given: &str, axis: &'static str, tables: &[(&str, &Table)]) -> Result<Self, ParetoError> {
        let (direction, column) = match given.split_once(':') {
            Some(("max", column)) => (Some(Direction::Maximise), column),
            Some(("min", column)) => (Some(Direction::Minimise), column),
            _ => (None, given),
        };
        let wrong = |found: String, accepted: String| ParetoError::Axis { axis, found, accepted };
        let mut known: Vec<&str> = Vec::new();
        for (_, table) in tables {
            for (name, values) in table.names().iter().zip(table.columns()) {
                if matches!(values, Column::Int(_) | Column::Real(_)) && !known.contains(&name.as_str()) {
                    known.push(name);
                }
            }
        }
        if !known.contains(&column) {
            let near = nearest(column, known.iter().copied());
            let hint = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
            let accepted =
                format!("a column of numbers in `cells`{hint}; `kvlab list metrics` explains them");
            return Err(wrong(format!("`{column}`"), accepted));
        }
        let of_metric = || {
            let ends = ["", "_lo", "_hi"];
            let id = ends.iter().filter_map(|end| metric(column.strip_suffix(end)?)).next();
            match id.map_or(Better::Neither, |metric| metric.better) {
                Better::Higher => Some(Direction::Maximise),
                Better::Lower => Some(Direction::Minimise),
                Better::Neither => None,
            }
        };
        match direction.or_else(of_metric) {
            Some(direction) => Ok(Self { column: column.to_owned(), direction }),
            None => Err(wrong(
                format!("`{column}`"),
                format!("max:{column} or min:{column}, since neither direction of it is better by itself"),
            )),
        }
    }

    /// A value as a number of which more is better.
    fn gain(&self, value: f64) -> f64 {
        // Without a negative zero, which orders below zero and is no worse.
        if self.direction == Direction::Maximise { value + 0.0 } else { 0.0 - value }
    }
}

/// Whether each point, `[row][axis]` with more being better, is beaten by none: none has as much on every axis and more on one. Points that are equal
/// beat each other not.
///
/// In the time of a sort; `axes` is 2 or 3 long, and values are finite.
#[must_use]
pub fn front(points: &[[f64; 3]]) -> Vec<bool> {
    let order = |a: &[f64; 3], b: &[f64; 3]| {
        let axis = |at: usize| b[at].total_cmp(&a[at]);
        axis(0).then(axis(1)).then(axis(2))
    };
    let mut sorted: Vec<usize> = (0..points.len()).collect();
    sorted.sort_by(|&a, &b| order(&points[a], &points[b]).then(a.cmp(&b)));
    let mut is_on_front = vec![false; points.len()];
    // Second axis → the most on the third that a point so far has, among those with as much on the second: it falls as the second rises.
    let mut stairs: BTreeMap<Key, f64> = BTreeMap::new();
    for group in sorted.chunk_by(|&a, &b| order(&points[a], &points[b]) == Ordering::Equal) {
        let [_, second, third] = points[group[0]];
        // Whatever comes before has at least as much on the first axis.
        if stairs.range(Key(second)..).next().is_some_and(|(_, most)| *most >= third) {
            continue;
        }
        group.iter().for_each(|&row| is_on_front[row] = true);
        let lower: Vec<Key> = stairs
            .range(..=Key(second))
            .rev()
            .take_while(|(_, most)| **most <= third)
            .map(|(key, _)| *key)
            .collect();
        for key in lower {
            stairs.remove(&key);
        }
        stairs.insert(Key(second), third);
    }
    is_on_front
}

/// A number in its order.
#[derive(Clone, Copy, Debug)]
struct Key(f64);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The [`KNEE`] of the points on the front; the first of equal ones. Nothing when they are fewer than three, or when none has more than a row that is best in
/// one column and worst in the others, as where all lie on a line or below it.
#[must_use]
pub fn knee(points: &[[f64; 3]], is_on_front: &[bool]) -> Option<usize> {
    let on: Vec<usize> = (0..points.len()).filter(|&row| is_on_front[row]).collect();
    if on.len() < 3 {
        return None;
    }
    let span = |axis: usize| {
        on.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), &row| {
            (lo.min(points[row][axis]), hi.max(points[row][axis]))
        })
    };
    let spans = [span(0), span(1), span(2)];
    let sum = |row: usize| -> f64 {
        let scaled = |(axis, &(lo, hi)): (usize, &(f64, f64))| {
            if hi > lo { (points[row][axis] - lo) / (hi - lo) } else { 0.0 }
        };
        spans.iter().enumerate().map(scaled).sum()
    };
    on.into_iter()
        .fold(None, |best: Option<(usize, f64)>, row| match best {
            Some((_, known)) if sum(row) <= known => best,
            _ => Some((row, sum(row))),
        })
        .filter(|(_, most)| *most > 1.0 + 1e-9)
        .map(|(row, _)| row)
}

/// A setting: the cells that differ in the seed only.
struct Setting {
    results: String,
    keys: BTreeMap<&'static str, Value>,
    cell: String,
    /// Over seeds, `[axis]`.
    means: Vec<f64>,
    seeds: usize,
}

/// The table of all settings in `tables` (name of the results and `cells` of each) that have every column of `axes`: what they are, the means over seeds of the
/// columns, `seeds`, `front`, `knee`, and `regret_<column>`: by how much the row is worse than the policy `bound` in the same place.
/// Without a `bound` it is the first of `oracle`, `belady`, `oracle-block` and `oracle-top-k` that is there. None of these is on the front, nor is `bound`: what looks ahead
/// cannot be shipped, and would beat whatever can.
///
/// Rows are in the order of the first column of `axes`, the worst first; then of the second, and as they came.
///
/// # Errors
/// When no row has all columns.
pub fn pareto(
    tables: &[(&str, &Table)],
    axes: &[ParetoAxis],
    bound: Option<&str>,
) -> Result<Table, ParetoError> {
    let mut settings = settings(tables, axes);
    if settings.is_empty() {
        let names: Vec<String> = axes.iter().map(|axis| format!("`{}`", axis.column)).collect();
        return Err(ParetoError::Empty(names.join(" and ")));
    }
    let gain = |setting: &Setting, at: usize| axes.get(at).map_or(0.0, |axis| axis.gain(setting.means[at]));
    settings.sort_by(|a, b| gain(a, 0).total_cmp(&gain(b, 0)).then(gain(b, 1).total_cmp(&gain(a, 1))));
    let points: Vec<[f64; 3]> = settings.iter().map(|one| [0, 1, 2].map(|at| gain(one, at))).collect();
    let is_bound = |one: &Setting| match one.keys.get("policy") {
        Some(Value::Text(label)) => BOUNDS.contains(&label.as_str()) || bound == Some(label.as_str()),
        _ => false,
    };
    let contenders: Vec<usize> = (0..settings.len()).filter(|&row| !is_bound(&settings[row])).collect();
    let of_contenders: Vec<[f64; 3]> = contenders.iter().map(|&row| points[row]).collect();
    let mut is_on_front = vec![false; settings.len()];
    for (&row, is_best) in contenders.iter().zip(front(&of_contenders)) {
        is_on_front[row] = is_best;
    }
    let knee = knee(&points, &is_on_front);
    let mut table = Table::new();
    if tables.len() > 1 {
        table.push(
            "results",
            Column::Text(settings.iter().map(|one| Some(one.results.as_str().into())).collect()),
        )?;
    }
    for &name in SHOWN {
        let values: Vec<Value> =
            settings.iter().map(|one| one.keys.get(name).cloned().unwrap_or(Value::Absent)).collect();
        let kind = values.iter().find_map(|value| match value {
            Value::Text(_) => Some("text"),
            Value::Int(_) => Some("int"),
            Value::Real(_) => Some("real"),
            Value::Bool(_) => Some("bool"),
            Value::Absent => None,
        });
        // A column that is asked for comes with the others, once.
        if let Some(kind) = kind.filter(|_| axes.iter().all(|axis| axis.column != name)) {
            table.push(name, Column::of_kind(kind, values.into_iter()))?;
        }
    }
    let seeds = |one: &Setting| i64::try_from(one.seeds).ok();
    table.push("seeds", Column::Int(settings.iter().map(seeds).collect()))?;
    for (at, axis) in axes.iter().enumerate() {
        table.push(&axis.column, Column::Real(settings.iter().map(|one| Some(one.means[at])).collect()))?;
    }
    table.push("front", Column::Bool(is_on_front.iter().copied().map(Some).collect()))?;
    table.push("knee", Column::Bool((0..settings.len()).map(|row| Some(knee == Some(row))).collect()))?;
    let bounds = bounds(&settings, bound);
    if bounds.iter().any(Option::is_some) {
        for (at, axis) in axes.iter().enumerate() {
            let regret = |row: usize| Some(gain(&settings[bounds[row]?], at) - gain(&settings[row], at));
            let regrets = (0..settings.len()).map(regret).collect();
            table.push(&format!("regret_{}", axis.column), Column::Real(regrets))?;
        }
    }
    table.push("cell", Column::Text(settings.iter().map(|one| Some(one.cell.as_str().into())).collect()))?;
    Ok(table)
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn settings(tables: &[(&str, &Table)], axes: &[ParetoAxis]) -> Vec<Setting> {
    let names: Vec<&'static str> = CELL_KEYS
        .iter()
        .chain(MORE_CELL_KEYS)
        .map(|(name, _, _)| *name)
        .filter(|name| !NO_SETTING.contains(name))
        .collect();
    let (mut settings, mut places): (Vec<Setting>, BTreeMap<String, usize>) = Default::default();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (results, table) in tables {
        for row in 0..table.rows() {
            let value = |axis: &ParetoAxis| match table.value(&axis.column, row) {
                Value::Int(number) => Some(number as f64),
                Value::Real(number) => Some(number),
                _ => None,
            };
            let is_ok = table.value("status", row) == Value::Text("ok".to_owned());
            let Some(values) = axes.iter().map(value).collect::<Option<Vec<f64>>>().filter(|_| is_ok) else {
                continue;
            };
            // A folder that is named twice is one folder.
            if let Value::Text(cell) = table.value("cell", row)
                && !seen.insert(format!("{results}\n{cell}"))
            {
                continue;
            }
            let mut keys: BTreeMap<&'static str, Value> =
                names.iter().map(|&name| (name, table.value(name, row))).collect();
            keys.insert(CAPACITY, capacity(&table.value("params", row)));
            let place = *places.entry(format!("{results}\n{keys:?}")).or_insert_with(|| {
                let cell =
                    if let Value::Text(cell) = table.value("cell", row) { cell } else { String::new() };
                let means = vec![0.0; axes.len()];
                settings.push(Setting { results: (*results).to_owned(), keys, cell, means, seeds: 0 });
                settings.len() - 1
            });
            settings[place].seeds += 1;
            settings[place].means.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }
    for setting in &mut settings {
        setting.means.iter_mut().for_each(|sum| *sum /= setting.seeds as f64);
    }
    settings
}

/// The capacity in the parameters of a cell of a pool.
fn capacity(params: &Value) -> Value {
    let Value::Text(params) = params else { return Value::Absent };
    let params: serde_json::Value = serde_json::from_str(params).unwrap_or_default();
    params[CAPACITY].as_str().map_or(Value::Absent, |capacity| Value::Text(capacity.to_owned()))
}

/// For each row, the row of the bound that stands in the same place; of several, the first.
fn bounds(settings: &[Setting], bound: Option<&str>) -> Vec<Option<usize>> {
    let is_of = |one: &Setting, label: &str| one.keys.get("policy") == Some(&Value::Text(label.to_owned()));
    let is_there = |label: &&&str| settings.iter().any(|one| is_of(one, label));
    let Some(label) = bound.or_else(|| BOUNDS.iter().find(is_there).copied()) else {
        return vec![None; settings.len()];
    };
    let candidates: Vec<usize> = (0..settings.len()).filter(|&row| is_of(&settings[row], label)).collect();
    let fits = |bound: &Setting, one: &Setting| {
        bound.results == one.results
            && SAME.iter().all(|key| {
                let (a, b) = (&bound.keys[key], &one.keys[key]);
                a == b || *a == Value::Absent
            })
    };
    let of = |one: &Setting| candidates.iter().copied().find(|&at| fits(&settings[at], one));
    settings.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, pair by pair.
    fn naive(points: &[[f64; 3]]) -> Vec<bool> {
        let beats =
            |a: &[f64; 3], b: &[f64; 3]| (0..3).all(|at| a[at] >= b[at]) && (0..3).any(|at| a[at] > b[at]);
        points.iter().map(|point| !points.iter().any(|other| beats(other, point))).collect()
    }

    proptest! {
        /// Few distinct values, so that ties on one, two and all axes are common.
        #[test]
        fn the_front_is_what_no_pair_contradicts(raw in proptest::collection::vec((0..6u8, 0..6u8, 0..6u8), 0..60), flat: bool) {
            let number = |x: u8| f64::from(x) - 2.5;
            let points: Vec<[f64; 3]> = raw.iter().map(|&(x, y, z)| [number(x), number(y), if flat { 0.0 } else { number(z) }]).collect();
            prop_assert_eq!(front(&points), naive(&points));
        }
    }

    /// Scaled to 0..1: (0, 1), (0.5, 0.8), (0.8, 0.3), (1, 0); the second has the largest sum. In the plane that is the one farthest from the line
    /// between the ends.
    #[test]
    fn the_knee_is_farthest_from_the_line_between_the_ends() {
        let points =
            [[10.0, 5.0, 0.0], [15.0, 4.0, 0.0], [18.0, 1.5, 0.0], [20.0, 0.0, 0.0], [12.0, 1.0, 0.0]];
        let is_on_front = front(&points);
        assert_eq!(is_on_front, [true, true, true, true, false]);
        assert_eq!(knee(&points, &is_on_front), Some(1));
        assert_eq!(knee(&points[..2], &is_on_front[..2]), None, "two ends have nothing between them");
        let line = [[0.0, 2.0, 0.0], [1.0, 1.0, 0.0], [2.0, 0.0, 0.0]];
        assert_eq!(knee(&line, &[true; 3]), None, "a line has no knee");
        let below = [[0.0, 2.0, 0.0], [0.5, 0.5, 0.0], [2.0, 0.0, 0.0]];
        assert_eq!(knee(&below, &[true; 3]), None, "nor has what bends the other way");
    }
}
