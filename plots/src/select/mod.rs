//! Picking from result tables what a figure needs, and saying why when it is not there.
//!
//! Tables may come from another version or be empty: nothing here fails, absence is an answer.

pub(crate) mod caption;
mod curves;
mod finding;
pub(crate) mod runs;
mod samples;

pub(crate) use curves::{Curve, Point, curves, mean};
pub(crate) use finding::{Subject, findings};
pub(crate) use samples::{Key as SampleKey, Sample, samples, samples_of};

use kvlab_sim::table::{Column, Table};

/// A column read row by row, whatever it holds; absent when there is no such column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(Option<&'a Column>);

impl<'a> Reader<'a> {
    /// The column `name` of `table`.
    pub(crate) fn new(table: &'a Table, name: &str) -> Self {
        Self(table.column(name))
    }

    /// The text in `row`.
    pub(crate) fn text(self, row: usize) -> Option<&'a str> {
        match self.0 {
            Some(Column::Text(values)) => values.get(row)?.as_deref(),
            _ => None,
        }
    }

    /// The number in `row`, integer or real.
    pub(crate) fn number(self, row: usize) -> Option<f64> {
        match self.0 {
            Some(Column::Real(values)) => values.get(row).copied().flatten(),
            #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
            Some(Column::Int(values)) => values.get(row).copied().flatten().map(|value| value as f64),
            _ => None,
        }
    }

    /// The integer in `row`.
    pub(crate) fn int(self, row: usize) -> Option<i64> {
        match self.0 {
            Some(Column::Int(values)) => values.get(row).copied().flatten(),
            _ => None,
        }
    }

    /// The truth value in `row`.
    pub(crate) fn truth(self, row: usize) -> Option<bool> {
        match self.0 {
            Some(Column::Bool(values)) => values.get(row).copied().flatten(),
            _ => None,
        }
    }

    /// Whether there is a value in any row.
    pub(crate) fn has_any(self) -> bool {
        match self.0 {
            Some(Column::Text(values)) => values.iter().any(Option::is_some),
            Some(Column::Int(values)) => values.iter().any(Option::is_some),
            Some(Column::Real(values)) => values.iter().any(Option::is_some),
            Some(Column::Bool(values)) => values.iter().any(Option::is_some),
            None => false,
        }
    }
}

/// Whether the cell in `row` finished. Tables without a status column hold finished cells only.
pub(crate) fn finished(cells: &Table, row: usize) -> bool {
    Reader::new(cells, "status").text(row).is_none_or(|status| status == "ok")
}

/// The sorted distinct numbers.
pub(crate) fn distinct(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup_by(|a, b| a.total_cmp(b).is_eq());
    sorted
}

/// `most` of the items, evenly spread, the first and the last among them.
pub(crate) fn spread<T: Copy>(items: &[T], most: usize) -> Vec<T> {
    if items.len() <= most || most < 2 {
        return items.iter().copied().take(most).collect();
    }
    let last = items.len() - 1;
    (0..most).map(|at| items[(2 * at * last + most - 1) / (2 * (most - 1))]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_first_and_the_last() {
        let layers: Vec<i64> = (0..30).collect();
        let shown = spread(&layers, 6);
        assert_eq!(shown.len(), 6);
        assert_eq!((shown.first(), shown.last()), (Some(&0), Some(&29)));
        assert!(shown.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(spread(&[3, 4], 6), [3, 4]);
    }
}
