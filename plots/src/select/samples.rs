//! The rows of `series` by what they belong to.

use super::Reader;
use kvlab_sim::table::Table;
use std::collections::BTreeMap;

/// What a run of samples belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) cell: String,
    pub(crate) stat: String,
    /// Zero-based; absent when the value is over all layers.
    pub(crate) layer: Option<i64>,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) x: f64,
    /// Right edge of a bin.
    pub(crate) x_hi: Option<f64>,
    pub(crate) value: f64,
    /// Observations behind the value.
    pub(crate) n: Option<i64>,
}

/// All samples of `metric`, in order of x. Rows without x or value are left out.
pub(crate) fn samples(series: &Table, metric: &str) -> BTreeMap<Key, Vec<Sample>> {
    samples_of(series, metric, |_| true)
}

/// As [`samples`], of the cells wanted only: a large study has millions of rows, and a figure shows a few cells.
pub(crate) fn samples_of(
    series: &Table,
    metric: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> BTreeMap<Key, Vec<Sample>> {
    let column = |name| Reader::new(series, name);
    let (metrics, cell, stat, layer) = (column("metric"), column("cell"), column("stat"), column("layer"));
    let (x, x_hi, value, n) = (column("x"), column("x_hi"), column("value"), column("n"));
    let mut found: BTreeMap<Key, Vec<Sample>> = BTreeMap::new();
    let rows = (0..series.rows()).filter(|&row| metrics.text(row) == Some(metric));
    for row in rows.filter(|&row| is_wanted(cell.text(row).unwrap_or_default())) {
        let (Some(at), Some(size)) = (x.number(row), value.number(row)) else { continue };
        let text = |reader: Reader<'_>| reader.text(row).unwrap_or_default().to_owned();
        let key = Key { cell: text(cell), stat: text(stat), layer: layer.int(row) };
        found.entry(key).or_default().push(Sample {
            x: at,
            x_hi: x_hi.number(row),
            value: size,
            n: n.int(row),
        });
    }
    for run in found.values_mut() {
        run.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    found
}
