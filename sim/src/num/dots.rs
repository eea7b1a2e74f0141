//! Inner products of sixteen queries with every key: the logits of a tile.
//!
//! The rules are those of [`super::rows`]: additions in a fixed order, so all instruction sets give the same bits.

use super::{LANES, Row};
use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// The products of one lane of [`super::dot`] with each key, before they are folded, `[lane][key]`.
type Lanes<const K: usize> = [[Row; K]; LANES];

#[inline(always)]
fn four_of<const K: usize>(lanes: &Lanes<K>, (key, i): (usize, usize), lane: usize) -> f32 {
    (lanes[lane][key].0[i] + lanes[lane + 8][key].0[i])
        + (lanes[lane + 4][key].0[i] + lanes[lane + 12][key].0[i])
}

/// [`dots`] of `K` keys that follow one another and have `D` channels, as many as there are rows where `D` is 0; `out` begins at the first one's
/// place. Whatever is in `room` is written over.
///
/// Each row of queries is read once for all keys. The sums of one lane stay in registers; that those of sixteen lanes do not fit is
/// why they go to memory before they are folded.
#[inline(always)]
fn dots_of<const K: usize, const D: usize>(
    queries: &[Row],
    keys: &[f32],
    scale: f32,
    stride: usize,
    room: &mut Lanes<K>,
    out: &mut [f32],
) {
    let head_dim = if D == 0 { queries.len() } else { D };
    let queries = &queries[..head_dim];
    let keys: [&[f32]; K] = std::array::from_fn(|key| &keys[key * head_dim..][..head_dim]);
    for (lane, room) in room.iter_mut().enumerate() {
        let mut sums = [[0.0; LANES]; K];
        let mut channel = lane;
        while channel < head_dim {
            let row = &queries[channel].0;
            for key in 0..K {
                let k = keys[key][channel];
                for i in 0..LANES {
                    sums[key][i] = row[i].mul_add(k, sums[key][i]);
                }
            }
            channel += LANES;
        }
        for key in 0..K {
            room[key].0 = sums[key];
        }
    }
    for key in 0..K {
        let Some(out) = out[key * stride..].first_chunk_mut::<LANES>() else {
            continue;
        };
        for (i, out) in out.iter_mut().enumerate() {
            // As `fold` adds.
            let even = four_of(room, (key, i), 0) + four_of(room, (key, i), 2);
            let odd = four_of(room, (key, i), 1) + four_of(room, (key, i), 3);
            *out = (even + odd) * scale;
        }
    }
}

/// [`dots`] of keys in groups of `K`; see [`dots_of`].
#[inline(always)]
fn dots_by<const K: usize, const D: usize>(
    queries: &[Row],
    keys: &[f32],
    scale: f32,
    stride: usize,
    out: &mut [f32],
) {
    let head_dim = queries.len();
    let (mut room, mut room_of_one) = ([[Row::default(); K]; LANES], [[Row::default(); 1]; LANES]);
    let mut groups = keys.chunks_exact(K * head_dim);
    let mut out = out.chunks_mut(K * stride);
    for (keys, out) in groups.by_ref().zip(out.by_ref()) {
        dots_of::<K, D>(queries, keys, scale, stride, &mut room, out);
    }
    if let Some(out) = out.next() {
        for (key, out) in groups.remainder().chunks_exact(head_dim).zip(out.chunks_mut(stride)) {
            dots_of::<1, D>(queries, key, scale, stride, &mut room_of_one, out);
        }
    }
}

/// [`dots`] of keys in groups of `K`. The usual numbers of channels are compiled for themselves: their loops are written out.
#[inline(always)]
fn dots_of_width<const K: usize>(queries: &[Row], keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    match queries.len() {
        64 => dots_by::<K, 64>(queries, keys, scale, stride, out),
        128 => dots_by::<K, 128>(queries, keys, scale, stride, out),
        _ => dots_by::<K, 0>(queries, keys, scale, stride, out),
    }
}

/// Scaled inner products of sixteen queries with every key, the bits of [`super::dot`] each.
///
/// `queries` is `[head_dim]`, `keys` is `[kv_pos, head_dim]`; key `i` goes to `out[i * stride..][..16]`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn dots(queries: &[Row], keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    // As many keys as there are registers for their sums.
    if target_cfg_f!(target_feature = "avx512f") {
        dots_of_width::<8>(queries, keys, scale, stride, out);
    } else {
        dots_of_width::<4>(queries, keys, scale, stride, out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::value;
    use super::*;

    #[test]
    fn sixteen_products_at_once_have_the_bits_of_one() {
        for head_dim in [1, 8, 16, 20, 64, 80, 128] {
            // Twice as many keys as are taken together, and three more.
            let keys: Vec<f32> = (0..11 * head_dim).map(value).collect();
            let row = |c: usize| Row(std::array::from_fn(|q| value(1000 + c * LANES + q)));
            let queries: Vec<Row> = (0..head_dim).map(row).collect();
            let mut out = vec![0.0; 11 * LANES];
            dots(&queries, &keys, 0.3, LANES, &mut out);
            for (at, found) in out.iter().enumerate() {
                let (key, query) = (at / LANES, at % LANES);
                let query: Vec<f32> = queries.iter().map(|row| row.0[query]).collect();
                let expected = crate::num::dot(&query, &keys[key * head_dim..][..head_dim]) * 0.3;
                assert_eq!(found.to_bits(), expected.to_bits(), "{head_dim} channels, {at}");
            }
        }
    }
}
