//! Rows of the table `items`: what a cell gives by problem, for paired comparisons.

use crate::table::Value;
use std::collections::BTreeMap;

/// Rows of one metric: the sums of each item, in the order of their first terms. `terms` is (item, numerator, denominator), one for each sequence or
/// request; an item without a denominator has no row.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn rates<'a>(
    cell: &str,
    metric: &str,
    terms: impl IntoIterator<Item = (&'a str, u64, u64)>,
) -> Vec<Vec<Value>> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut items: Vec<(&str, u64, u64, i64)> = Vec::new();
    for (item, num, den) in terms {
        let place = *places.entry(item).or_insert(items.len());
        match items.get_mut(place) {
            Some(known) => *known = (item, known.1 + num, known.2 + den, known.3 + 1),
            None => items.push((item, num, den, 1)),
        }
    }
    let row = |(item, num, den, n): (&str, u64, u64, i64)| {
        (den > 0).then(|| {
            vec![
                Value::Text(cell.to_owned()),
                Value::Text(item.to_owned()),
                Value::Text(metric.to_owned()),
                Value::Real(num as f64 / den as f64),
                Value::Int(n),
            ]
        })
    };
    items.into_iter().filter_map(row).collect()
}
