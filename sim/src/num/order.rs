//! The order of candidates: by score, then by position.

use super::network;
use std::cmp::Ordering;

/// The order in which candidates are kept: higher score first, then lower index.
///
/// Callers list candidates by position where position must break ties.
#[must_use]
pub fn keep_order(a: (f32, u32), b: (f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The `count` best of `candidates` = (score, tie-break key), in [`keep_order`]; all of them when there are fewer.
#[must_use]
pub fn top(candidates: Vec<(f32, u32)>, count: usize) -> Vec<(f32, u32)> {
    let mut packed: Vec<u64> = candidates
        .into_iter()
        .map(|(score, key)| u64::from(descending(score)) << 32 | u64::from(key))
        .collect();
    if count < packed.len() {
        if count > 0 {
            packed.select_nth_unstable(count - 1);
        }
        packed.truncate(count);
    }
    packed.sort_unstable();
    #[expect(clippy::cast_possible_truncation, reason = "the halves are what was packed")]
    packed.into_iter().map(|word| (ascending((word >> 32) as u32), word as u32)).collect()
}

/// Ranks `keys`: `words` becomes a list of words whose [places](place_of) are those of the `count` best keys, in [`keep_order`] by
/// (key, `tie_break` of the place), all places when there are fewer. Whether the last of them equals one that is left out: then
/// `tie_break` decided.
#[must_use]
pub(crate) fn top_places(
    words: &mut Vec<u64>,
    keys: impl Iterator<Item = f32>,
    count: usize,
    tie_break: impl Fn(usize) -> u32,
) -> bool {
    let score_of = |word: &u64| word >> 32;
    let full_order = |word: &u64| (score_of(word), tie_break(place_of(*word)));
    // Words order by score, then by place.
    words.clear();
    words.extend(keys.zip(0u32..).map(|(key, at)| u64::from(descending(key)) << 32 | u64::from(at)));
    let is_cut = count > 0 && count < words.len();
    // Few of many are found without sorting the others.
    if is_cut && count < words.len() / 2 {
        let (_, last, rest) = words.select_nth_unstable(count - 1);
        let last = score_of(last);
        let is_tied = rest.iter().any(|word| score_of(word) == last);
        if is_tied {
            words.select_nth_unstable_by_key(count - 1, full_order);
        }
        words.truncate(count);
        network::sort(words);
        order_equals(words, score_of, full_order);
        return is_tied;
    }
    network::sort(words);
    order_equals(words, score_of, full_order);
    let is_tied = is_cut && score_of(&words[count - 1]) == score_of(&words[count]);
    words.truncate(count);
    is_tied
}

/// The place that a word of [`top_places`] is about.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
pub(crate) fn place_of(word: u64) -> usize {
    word as u32 as usize
}

/// Orders the runs of equal scores in `sorted` by `full_order`.
fn order_equals<K: Ord>(sorted: &mut [u64], score_of: impl Fn(&u64) -> u64, full_order: impl Fn(&u64) -> K) {
    let mut at = 1;
    while at < sorted.len() {
        if score_of(&sorted[at]) == score_of(&sorted[at - 1]) {
            let first = at - 1;
            while at < sorted.len() && score_of(&sorted[at]) == score_of(&sorted[first]) {
                at += 1;
            }
            sorted[first..at].sort_unstable_by_key(&full_order);
        }
        at += 1;
    }
}

/// A key that falls as the score rises, in the order of `f32::total_cmp`.
fn descending(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { !bits & 0x7FFF_FFFF } else { bits }
}

/// The score that [`descending`] took.
fn ascending(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 0 { !key & 0x7FFF_FFFF } else { key })
}

#[cfg(test)]
mod tests {
    use super::super::count;
    use super::*;

    #[test]
    fn equal_scores_are_kept_by_lower_index() {
        let best = top(vec![(0.5, 3), (0.5, 1), (0.9, 7), (0.5, 0)], 3);
        assert_eq!(best.iter().map(|c| c.1).collect::<Vec<_>>(), [7, 0, 1]);
    }

    // Against the plain sort, over scores of which many are equal and tie-breaks in another order than places.
    #[test]
    fn top_places_are_those_of_the_whole_order() {
        for round in 0..200u32 {
            let len = round % 23;
            let keys: Vec<f32> = (0..len)
                .map(|i| [0.0, -0.0, 1.5, -2.0, f32::NEG_INFINITY][(i * i + round) as usize % 5])
                .collect();
            let tie_break = |place: usize| (count(place) * 7 + round) % 31;
            let mut order: Vec<(f32, u32, usize)> =
                keys.iter().zip(0..).map(|(key, at)| (*key, tie_break(at), at)).collect();
            order.sort_by(|a, b| keep_order((a.0, a.1), (b.0, b.1)));
            for count in 0..=keys.len() + 1 {
                let mut words = vec![7];
                let is_tied = top_places(&mut words, keys.iter().copied(), count, tie_break);
                let found: Vec<usize> = words.into_iter().map(place_of).collect();
                let expected: Vec<usize> = order.iter().take(count).map(|(_, _, at)| *at).collect();
                assert_eq!(found, expected, "{count} of {keys:?}");
                let is_equal = |a: f32, b: f32| a.to_bits() == b.to_bits();
                let expects_tie =
                    count > 0 && count < keys.len() && is_equal(order[count - 1].0, order[count].0);
                assert_eq!(is_tied, expects_tie, "{count} of {keys:?}");
            }
        }
    }

    #[test]
    fn packed_scores_keep_the_total_order() {
        let scores = [f32::NEG_INFINITY, -2.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3.5, f32::INFINITY];
        for (a, b) in scores.iter().zip(&scores[1..]) {
            assert!(descending(*a) > descending(*b), "{a} {b}");
        }
        assert!(scores.iter().all(|s| ascending(descending(*s)).to_bits() == s.to_bits()));
    }
}
