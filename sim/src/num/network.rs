//! Sorting without branches on what is sorted: scores are fresh numbers at each eviction, and a branch on them is foretold wrong half of
//! the time.
//!
//! Words are laid out in rows of eight; a network of comparisons, the same whatever the words are, sorts the eight columns side by
//! side (Batcher 1968, odd-even merge sort), and the columns are merged two by two, each merge from both of its ends. Numbers of 64 bits are
//! compared as floating-point ones, which every instruction set does in parallel. The result is that of any sort: words
//! differ from one another.

use multiversion::multiversion;

/// Columns that are sorted side by side.
const WIDTH: usize = 8;

/// Words in a column, at most.
const DEPTH: usize = 64;

/// Words that are sorted at once.
const ALL: usize = WIDTH * DEPTH;

/// Bits of a word's lower half that are kept beside the upper one.
const LOW_BITS: u32 = 20;

/// What makes a positive number of 52 bits, in their order.
const EXPONENT: u64 = 0x433 << 52;

/// Rows that are compared with one another.
type Pair = (u8, u8);

/// Batcher's network for `rows` rows, a power of two. Pairs with a row that is not there can be left out: it would hold the largest word.
const fn pairs<const N: usize>(rows: usize) -> [Pair; N] {
    let mut pairs = [(0, 0); N];
    let (mut at, mut run) = (0, 1);
    while run < rows {
        let mut apart = run;
        while apart > 0 {
            let mut first = apart % run;
            while first + apart < rows {
                let mut low = first;
                while low < first + apart && low + apart < rows {
                    if low / (2 * run) == (low + apart) / (2 * run) {
                        #[expect(clippy::cast_possible_truncation, reason = "rows are few")]
                        let pair = (low as u8, (low + apart) as u8);
                        pairs[at] = pair;
                        at += 1;
                    }
                    low += 1;
                }
                first += 2 * apart;
            }
            apart /= 2;
        }
        run *= 2;
    }
    assert!(at == N, "the network has another number of comparisons");
    pairs
}

static OF_8: [Pair; 19] = pairs(8);
static OF_16: [Pair; 63] = pairs(16);
static OF_32: [Pair; 191] = pairs(32);
static OF_64: [Pair; 543] = pairs(DEPTH);

/// Sorts each column of `rows`, which are at most [`DEPTH`].
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn sort_columns(rows: &mut [[f64; WIDTH]]) {
    let len = rows.len();
    let pairs: &[Pair] = match len {
        0..=8 => &OF_8,
        9..=16 => &OF_16,
        17..=32 => &OF_32,
        _ => &OF_64,
    };
    for (low, high) in pairs {
        let (low, high) = (usize::from(*low), usize::from(*high));
        if low >= len || high >= len {
            continue;
        }
        let (x, y) = (rows[low], rows[high]);
        for i in 0..WIDTH {
            rows[low][i] = if x[i] < y[i] { x[i] } else { y[i] };
        }
        for i in 0..WIDTH {
            rows[high][i] = if x[i] < y[i] { y[i] } else { x[i] };
        }
    }
}

/// Merges two sorted lists of equal length: the lower half of the result from their beginnings, the upper one from their ends, so that two
/// chains of comparisons run at a time.
#[inline(always)]
fn merge(a: &[u64], b: &[u64], merged: &mut [u64]) {
    let len = a.len();
    let b = &b[..len];
    let (front, back) = merged[..2 * len].split_at_mut(len);
    // Taken of `a` and `b` from their beginnings, and what is left of them at their ends.
    let (mut i, mut j, mut k, mut l) = (0, 0, len, len);
    for at in 0..len {
        let (x, y) = (a[i], b[j]);
        let is_second = y < x;
        front[at] = if is_second { y } else { x };
        j += usize::from(is_second);
        i = at + 1 - j;
        let (x, y) = (a[k - 1], b[l - 1]);
        let is_first = y < x;
        back[len - 1 - at] = if is_first { x } else { y };
        k -= usize::from(is_first);
        l -= usize::from(!is_first);
    }
}

/// Sorts at most [`ALL`] words whose lower halves have [`LOW_BITS`] bits.
fn sort_piece(words: &mut [u64]) {
    match words.len().div_ceil(WIDTH) {
        0..=8 => sort_in::<8>(words),
        9..=16 => sort_in::<16>(words),
        17..=32 => sort_in::<32>(words),
        _ => sort_in::<DEPTH>(words),
    }
}

/// [`sort_piece`] of words that `MOST` rows have room for.
fn sort_in<const MOST: usize>(words: &mut [u64]) {
    let len = words.len();
    let depth = len.div_ceil(WIDTH);
    let mut rows = [[f64::INFINITY; WIDTH]; MOST];
    let (mut one, mut two) = ([[0; WIDTH]; MOST], [[0; WIDTH]; MOST]);
    let (one, two) = (one.as_flattened_mut(), two.as_flattened_mut());
    let rows = &mut rows[..depth];
    for (number, word) in rows.as_flattened_mut().iter_mut().zip(words.iter()) {
        *number = f64::from_bits(EXPONENT | (*word >> 32 << LOW_BITS) | (*word & ((1 << LOW_BITS) - 1)));
    }
    sort_columns(rows);
    for (at, column) in one.chunks_exact_mut(depth).take(WIDTH).enumerate() {
        column.iter_mut().zip(rows.iter()).for_each(|(word, row)| *word = row[at].to_bits());
    }
    let (mut from, mut to) = (&mut one[..depth * WIDTH], &mut two[..depth * WIDTH]);
    let mut run = depth;
    while run < depth * WIDTH {
        for (sorted, merged) in from.chunks_exact(2 * run).zip(to.chunks_exact_mut(2 * run)) {
            let (a, b) = sorted.split_at(run);
            merge(a, b, merged);
        }
        std::mem::swap(&mut from, &mut to);
        run *= 2;
    }
    for (word, sorted) in words.iter_mut().zip(from.iter()) {
        *word = (*sorted >> LOW_BITS << 32) | (*sorted & ((1 << LOW_BITS) - 1));
    }
}

/// Whether words rise, or fall, nearly everywhere.
fn is_in_runs(words: &[u64]) -> bool {
    let falls = words.windows(2).filter(|pair| pair[0] > pair[1]).count();
    falls.min(words.len().saturating_sub(1 + falls)) * 16 < words.len()
}

/// Sorts words of two halves of 32 bits that differ from one another: fast where lower halves, places in a list, are below
/// 2^[`LOW_BITS`].
pub(super) fn sort(words: &mut [u64]) {
    let lower_halves = words.iter().fold(0, |all, word| all | *word) & u64::from(u32::MAX);
    // This one merges runs, which recency and what was kept in the order of its scores come as.
    if is_in_runs(words) || lower_halves >> LOW_BITS != 0 {
        words.sort();
        return;
    }
    words.chunks_mut(ALL).for_each(sort_piece);
    if words.len() > ALL {
        words.sort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_out_as_from_any_sort() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 32
        };
        // Every length up to beyond two pieces; upper halves over the whole range, few different ones, and one only.
        for len in (0..300).chain([511, 512, 513, 777, 1024, 1025, 1300]) {
            for mask in [u64::from(u32::MAX), 0xC000_0003, 0] {
                let words: Vec<u64> = (0..len).map(|place| ((next() & mask) << 32) | place).collect();
                let (mut found, mut expected) = (words.clone(), words);
                sort(&mut found);
                expected.sort_unstable();
                assert_eq!(found, expected, "{len} words under {mask:x}");
            }
        }
        // Places as of a list of which most was left out.
        let far: Vec<u64> = (0..300).map(|place| ((next() & 7) << 32) | (place * 14_000)).collect();
        let (mut found, mut expected) = (far.clone(), far);
        sort(&mut found);
        expected.sort_unstable();
        assert_eq!(found, expected);
        // Two runs, one of them falling.
        let runs: Vec<u64> = (0..200).rev().chain(200..400).map(|place: u64| (place << 32) | place).collect();
        let mut found = runs.clone();
        sort(&mut found);
        assert!(found.is_sorted() && found.len() == runs.len());
    }
}
