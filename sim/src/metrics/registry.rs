//! The list of metrics: one file a noun, put together in the order of ids.

mod cache;
mod estimates;
mod executed;
mod exit;
mod fidelity;
mod pool;
mod recording;
mod serve;
mod trees;

use super::Metric;

/// The files.
const NOUNS: &[&[Metric]] = &[
    cache::METRICS,
    estimates::METRICS,
    executed::METRICS,
    exit::METRICS,
    fidelity::METRICS,
    pool::METRICS,
    recording::METRICS,
    serve::METRICS,
    trees::METRICS,
];

/// All metrics, sorted by id.
pub const METRICS: &[Metric] = &sorted::<{ count() }>();

const fn count() -> usize {
    let (mut all, mut noun) = (0, 0);
    while noun < NOUNS.len() {
        all += NOUNS[noun].len();
        noun += 1;
    }
    all
}

/// All of them by insertion: nothing else sorts while it is compiled.
const fn sorted<const N: usize>() -> [Metric; N] {
    let mut all = [NOUNS[0][0]; N];
    let (mut filled, mut noun) = (0, 0);
    while noun < NOUNS.len() {
        let mut at = 0;
        while at < NOUNS[noun].len() {
            let metric = NOUNS[noun][at];
            let mut place = filled;
            while place > 0 && is_before(metric.id.as_bytes(), all[place - 1].id.as_bytes()) {
                all[place] = all[place - 1];
                place -= 1;
            }
            all[place] = metric;
            filled += 1;
            at += 1;
        }
        noun += 1;
    }
    all
}

const fn is_before(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() {
        if a[at] != b[at] {
            return a[at] < b[at];
        }
        at += 1;
    }
    a.len() < b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_stands_once_and_in_order() {
        assert_eq!(METRICS.len(), NOUNS.iter().map(|noun| noun.len()).sum::<usize>());
        assert!(METRICS.windows(2).all(|pair| pair[0].id < pair[1].id));
    }
}
