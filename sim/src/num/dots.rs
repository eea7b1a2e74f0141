//! Inner products of sixteen queries with every key: the logits of a tile.
//!
//! The rules are those of [`super::rows`]: additions in a fixed order, so all instruction sets give the same bits.

use super::{LANES, add};
use multiversion::multiversion;

/// The products of [`LANES`] queries with `K` keys, summed as far as they are.
type Block<const K: usize> = [[f32; LANES]; K];

#[inline(always)]
fn sum_of<const K: usize>(mut a: Block<K>, b: Block<K>) -> Block<K> {
    for key in 0..K {
        add(&mut a[key], &b[key]);
    }
    a
}

/// The products of one lane of [`super::dot`], for sixteen queries and `K` keys at once.
#[inline(always)]
fn lane_sums<const K: usize>(queries: &[[f32; LANES]], keys: &[&[f32]; K], lane: usize) -> Block<K> {
    let mut sums = [[0.0; LANES]; K];
    let mut channel = lane;
    while channel < queries.len() {
        let row = &queries[channel];
        for key in 0..K {
            let k = keys[key][channel];
            for i in 0..LANES {
                sums[key][i] = row[i].mul_add(k, sums[key][i]);
            }
        }
        channel += LANES;
    }
    sums
}

#[inline(always)]
fn two_lanes<const K: usize>(queries: &[[f32; LANES]], keys: &[&[f32]; K], lane: usize) -> Block<K> {
    sum_of(lane_sums(queries, keys, lane), lane_sums(queries, keys, lane + 8))
}

#[inline(always)]
fn four_lanes<const K: usize>(queries: &[[f32; LANES]], keys: &[&[f32]; K], lane: usize) -> Block<K> {
    sum_of(two_lanes(queries, keys, lane), two_lanes(queries, keys, lane + 4))
}

#[inline(always)]
fn eight_lanes<const K: usize>(queries: &[[f32; LANES]], keys: &[&[f32]; K], lane: usize) -> Block<K> {
    sum_of(four_lanes(queries, keys, lane), four_lanes(queries, keys, lane + 2))
}

/// [`dots`] of `K` keys that follow one another; `out` begins at the first one's place.
#[inline(always)]
fn dots_of<const K: usize>(
    queries: &[[f32; LANES]],
    keys: &[f32],
    scale: f32,
    stride: usize,
    out: &mut [f32],
) {
    let head_dim = queries.len();
    let keys: [&[f32]; K] = std::array::from_fn(|key| &keys[key * head_dim..][..head_dim]);
    let all = sum_of(eight_lanes(queries, &keys, 0), eight_lanes(queries, &keys, 1));
    for key in 0..K {
        if let Some(out) = out[key * stride..].first_chunk_mut::<LANES>() {
            for i in 0..LANES {
                out[i] = all[key][i] * scale;
            }
        }
    }
}

/// Keys that are taken together: each row of queries is read once for all of them, which is what bounds this otherwise.
const KEYS: usize = 4;

/// [`dots`], for a number of channels that may be known when this is compiled.
#[inline(always)]
fn dots_by_four(queries: &[[f32; LANES]], keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    let head_dim = queries.len();
    let mut fours = keys.chunks_exact(KEYS * head_dim);
    let mut out = out.chunks_mut(KEYS * stride);
    for (keys, out) in fours.by_ref().zip(out.by_ref()) {
        dots_of::<KEYS>(queries, keys, scale, stride, out);
    }
    if let Some(out) = out.next() {
        for (key, out) in fours.remainder().chunks_exact(head_dim).zip(out.chunks_mut(stride)) {
            dots_of::<1>(queries, key, scale, stride, out);
        }
    }
}

/// Scaled inner products of sixteen queries with every key, the bits of [`super::dot`] each.
///
/// `queries` is `[head_dim][query]`, `keys` is `[kv_pos, head_dim]`; key `i` goes to `out[i * stride..][..16]`. The usual
/// numbers of channels are compiled for themselves: their loops are written out.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn dots(queries: &[[f32; LANES]], keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    if let Ok(queries) = <&[[f32; LANES]; 64]>::try_from(queries) {
        dots_by_four(queries, keys, scale, stride, out);
    } else if let Ok(queries) = <&[[f32; LANES]; 128]>::try_from(queries) {
        dots_by_four(queries, keys, scale, stride, out);
    } else {
        dots_by_four(queries, keys, scale, stride, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(i: usize) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let x = (i * 7919 % 1013) as f32;
        (x / 1013.0 - 0.5) * 6.0
    }

    #[test]
    fn sixteen_products_at_once_have_the_bits_of_one() {
        for head_dim in [1, 8, 16, 20, 64, 80, 128] {
            // Twice as many keys as are taken together, and three more.
            let keys: Vec<f32> = (0..11 * head_dim).map(value).collect();
            let queries: Vec<[f32; LANES]> =
                (0..head_dim).map(|c| std::array::from_fn(|q| value(1000 + c * LANES + q))).collect();
            let mut out = vec![0.0; 11 * LANES];
            dots(&queries, &keys, 0.3, LANES, &mut out);
            for (at, found) in out.iter().enumerate() {
                let (key, query) = (at / LANES, at % LANES);
                let query: Vec<f32> = queries.iter().map(|row| row[query]).collect();
                let expected = crate::num::dot(&query, &keys[key * head_dim..][..head_dim]) * 0.3;
                assert_eq!(found.to_bits(), expected.to_bits(), "{head_dim} channels, {at}");
            }
        }
    }
}
