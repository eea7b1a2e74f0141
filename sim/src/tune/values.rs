//! Which values of a threshold are tried: those that a person gave, or some of those that could be told apart.

/// Where values come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// Listed in the scenario.
    Given(Vec<f64>),
    /// Thresholds change something at these edges only, ascending; a threshold up to and including an edge is on its lower side.
    Observed {
        /// The edges.
        edges: Vec<f64>,
        /// The smallest value that makes sense.
        floor: Option<f64>,
    },
}

/// The values tried of a threshold, ascending.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Values {
    pub(super) values: Vec<f64>,
    /// How many could be told apart.
    pub(super) distinct: usize,
}

impl Source {
    fn distinct(&self) -> usize {
        match self {
            Self::Given(values) => values.len(),
            Self::Observed { edges, .. } => edges.len() + 1,
        }
    }

    /// `count` values (at least 2 where there are as many), evenly over the ranks, both ends included.
    fn pick(&self, count: usize) -> Values {
        let distinct = self.distinct();
        let ranks: Vec<usize> = if count >= distinct {
            (0..distinct).collect()
        } else {
            let last = count.max(2) - 1;
            (0..=last).map(|step| (step * (distinct - 1) + last / 2) / last).collect()
        };
        let values = match self {
            Self::Given(values) => {
                let mut sorted = values.clone();
                sorted.sort_unstable_by(f64::total_cmp);
                ranks.iter().map(|&rank| sorted[rank]).collect()
            }
            Self::Observed { edges, floor } => {
                ranks.iter().map(|&rank| between(edges, *floor, rank)).collect()
            }
        };
        Values { values, distinct }
    }
}

/// The values of each threshold, so that there are at most about `most` combinations: thresholds with few values keep all of them, and the others
/// share what is left evenly.
pub(super) fn thinned(sources: Vec<Source>, most: usize) -> Vec<Values> {
    let mut order: Vec<usize> = (0..sources.len()).collect();
    order.sort_by_key(|&at| (sources[at].distinct(), at));
    let (mut left, mut counts) = (most.max(1), vec![1; sources.len()]);
    for (done, &at) in order.iter().enumerate() {
        let each = root(left, sources.len() - done).max(2);
        counts[at] = sources[at].distinct().min(each);
        left = (left / counts[at]).max(1);
    }
    sources.iter().zip(counts).map(|(source, count)| source.pick(count)).collect()
}

/// The largest whole number whose `power`-th power is at most `most`.
fn root(most: usize, power: usize) -> usize {
    let fits = |base: usize| {
        base.checked_pow(u32::try_from(power).unwrap_or(u32::MAX)).is_some_and(|all| all <= most)
    };
    let (mut low, mut high) = (1, most.max(1) + 1);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// A threshold above `edges[rank - 1]` and up to `edges[rank]`: the one with the fewest decimals near the middle.
fn between(edges: &[f64], floor: Option<f64>, rank: usize) -> f64 {
    let margin = |edge: f64| 0.1 * edge.abs().max(0.1);
    match (rank.checked_sub(1).map(|below| edges[below]), edges.get(rank)) {
        (None, None) => floor.unwrap_or(0.0),
        (None, Some(&first)) => {
            floor.filter(|floor| *floor <= first).unwrap_or_else(|| round(first - margin(first), first))
        }
        (Some(last), None) => round(last, last + margin(last)),
        (Some(below), Some(&edge)) => round(below, edge),
    }
}

/// The number with the fewest decimals in `(low, high]`, the middle rounded.
fn round(low: f64, high: f64) -> f64 {
    let middle = low + (high - low) / 2.0;
    let rounded = (0..17).filter_map(|digits| format!("{middle:.digits$}").parse::<f64>().ok());
    let mut fitting = rounded.filter(|x| *x > low && *x <= high);
    // The upper end always belongs. Zero has no sign.
    fitting.next().unwrap_or(high) + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_between_neighbouring_edges_and_are_short() {
        let source = Source::Observed { edges: vec![0.123_456, 0.234_567, 0.9], floor: Some(0.0) };
        let all = source.pick(10);
        assert_eq!((all.values, all.distinct), (vec![0.0, 0.2, 0.6, 0.95], 4));
        let edges: Vec<f64> = (0..100).map(|at| f64::from(at) / 7.0).collect();
        let some = Source::Observed { edges: edges.clone(), floor: None }.pick(5).values;
        for (value, rank) in some.iter().zip([0, 25, 50, 75, 100]) {
            assert_eq!(edges.partition_point(|edge| edge < value), rank, "{value}");
        }
        // Two neighbours of the floats: only the upper one is left.
        let next = 1.0_f64.next_up();
        assert_eq!(round(1.0, next).to_bits(), next.to_bits());
        assert_eq!(Source::Observed { edges: Vec::new(), floor: None }.pick(4).values, [0.0]);
        assert_eq!(round(-0.01, 0.0).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn thresholds_with_few_values_leave_room_to_the_others() {
        let source = |count: usize| Source::Given((0..count).map(|at| at as f64).collect());
        let counts: Vec<usize> =
            thinned(vec![source(50), source(2), source(50)], 200).iter().map(|v| v.values.len()).collect();
        assert_eq!(counts, [10, 2, 10]);
        assert_eq!((root(4096, 5), root(1024, 5), root(7, 1)), (5, 4, 7));
    }
}
