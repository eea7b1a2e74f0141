//! A cell metric against the budget, one curve a series, seeds joined.

use super::runs::Run;
use super::{Reader, distinct};
use kvlab_sim::table::Table;
use std::collections::BTreeMap;

/// One series of a budget figure, points in order of x. A series without budgets has one point without x.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) points: Vec<Point>,
}

/// The cells of one series at one x.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: Option<f64>,
    /// Mean over the cells.
    pub(crate) value: f64,
    /// Mean of the lower and upper ends of the cells' intervals, when each has one.
    pub(crate) interval: Option<(f64, f64)>,
    /// Smallest and largest value when there are several seeds.
    pub(crate) spread: Option<(f64, f64)>,
    /// Cells joined, and how many different seeds they have.
    pub(crate) cells: usize,
    pub(crate) seeds: usize,
    /// Cells in which nothing was evicted.
    pub(crate) untriggered: usize,
}

/// The curves of `metric` over `runs` against column `x`.
pub(crate) fn curves(cells: &Table, runs: &[Run], metric: &str, x: &str) -> Vec<Curve> {
    let column = |name: &str| Reader::new(cells, name);
    let (value, lo, hi) = (column(metric), column(&format!("{metric}_lo")), column(&format!("{metric}_hi")));
    let (x, seed) = (column(x), column("seed"));
    let mut groups: BTreeMap<(&str, Option<u64>), Vec<&Run>> = BTreeMap::new();
    for run in runs.iter().filter(|run| value.number(run.row).is_some()) {
        groups.entry((&run.label, x.number(run.row).map(f64::to_bits))).or_default().push(run);
    }
    let mut found: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
    for ((label, _), group) in groups {
        let of = |reader: Reader<'_>| -> Vec<f64> {
            group.iter().filter_map(|run| reader.number(run.row)).collect()
        };
        let values = of(value);
        let (los, his) = (of(lo), of(hi));
        let interval = match (mean(&los), mean(&his)) {
            (Some(lo), Some(hi)) if los.len() == values.len() && his.len() == values.len() && lo <= hi => {
                Some((lo, hi))
            }
            _ => None,
        };
        let sorted = distinct(values.iter().copied());
        let seeds = distinct(of(seed)).len();
        let (Some(value), Some(first), Some(last)) = (mean(&values), sorted.first(), sorted.last()) else {
            continue;
        };
        found.entry(label).or_default().push(Point {
            x: x.number(group[0].row),
            value,
            interval,
            spread: (seeds > 1).then_some((*first, *last)),
            cells: group.len(),
            seeds,
            untriggered: group.iter().filter(|run| run.triggered == Some(false)).count(),
        });
    }
    found
        .into_iter()
        .map(|(label, mut points)| {
            points.sort_by(|a, b| {
                a.x.unwrap_or(f64::NEG_INFINITY).total_cmp(&b.x.unwrap_or(f64::NEG_INFINITY))
            });
            Curve { label: label.to_owned(), points }
        })
        .collect()
}

/// The mean, robust against overflow; `None` of nothing.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a few cells")]
    let count = values.len() as f64;
    (!values.is_empty()).then(|| values.iter().map(|value| value / count).sum())
}
