//! Kernels over rows of sixteen-lane chunks: attention logits, their exponentials, sums and products over chosen rows.
//!
//! A *row* belongs to a key position and holds one number a lane; lanes are queries, in chunks of [`LANES`]. Every
//! function fixes the order of its additions and uses no fused operation, so all instruction sets give the same bits;
//! `multiversion` only chooses how many lanes an instruction takes.

use super::{LANES, add, fold};
use crate::types::Pos;
use multiversion::multiversion;

/// Rows that are added in f32 before the sum goes to f64.
const BLOCK: usize = 64;

/// Power of two that the largest weight of a lane is scaled to.
pub(crate) const TOP: i32 = 60;

/// Powers of two below the largest weight at which a weight becomes 0: all others are normal numbers, so that weights under
/// different scales differ by an exact power of two.
pub(crate) const SPREAD: i32 = 180;

/// Logits beyond this are not decomposed exactly.
pub(crate) const LARGEST_LOGIT: f32 = 8192.0;

const MAGIC: f32 = 12_582_912.0;

/// `e^x = p · 2^k` with `p` in [0.7, 1.42] and `k` an integer, for |x| up to [`LARGEST_LOGIT`]; `k` comes as the bits of
/// `MAGIC + k`, so that differences of bits are differences of `k`.
#[inline(always)]
fn parts(x: f32) -> (f32, u32) {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let rounded = shifted - MAGIC;
    let r = (x - rounded * LN2_HIGH) - rounded * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    (p, shifted.to_bits())
}

/// The exponent of `e^x` in the form that [`parts`] gives.
pub(crate) fn exponent(x: f32) -> u32 {
    parts(x).1
}

/// `e^x` scaled so that a logit with the exponent `top` gives about `2^TOP`; 0 further than [`SPREAD`] below.
#[inline(always)]
#[expect(clippy::cast_sign_loss, reason = "the biased exponent is clamped to what f32 has")]
fn scaled(x: f32, top: u32) -> f32 {
    let (p, bits) = parts(x);
    let below = bits.wrapping_sub(top).cast_signed();
    let biased = if below < -SPREAD { 0 } else { below + TOP + 127 };
    p * f32::from_bits((biased as u32) << 23)
}

/// Turns the logits of one lane into weights proportional to `e^x`, with the largest near `2^TOP`. Minus infinity gives 0.
///
/// A weight is a function of the logit and of an integer power of two that belongs to the whole lane; all that is made of
/// weights divided by their sum is the same whatever other logits were in the lane. Logits beyond [`LARGEST_LOGIT`] are
/// taken relative to the largest instead; NaN gives NaN.
pub(crate) fn weights_of(logits: &mut [f32]) {
    let largest = super::max(logits);
    let is_tame = logits.iter().all(|x| x.abs() <= LARGEST_LOGIT || *x == f32::NEG_INFINITY);
    if is_tame {
        let top = exponent(largest.max(-LARGEST_LOGIT));
        for x in logits {
            *x = if *x == f32::NEG_INFINITY { 0.0 } else { scaled(*x, top) };
        }
    } else {
        for x in logits {
            *x = if *x == f32::NEG_INFINITY { 0.0 } else { super::exp(*x - largest) };
        }
    }
}

#[inline(always)]
fn sum_of(mut a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
    add(&mut a, &b);
    a
}

/// The products of one lane of [`super::dot`], for sixteen queries at once.
#[inline(always)]
fn lane_sums(queries: &[[f32; LANES]], key: &[f32], lane: usize) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    let mut channel = lane;
    while channel < key.len() {
        let k = key[channel];
        let row = &queries[channel];
        for i in 0..LANES {
            sums[i] += row[i] * k;
        }
        channel += LANES;
    }
    sums
}

#[inline(always)]
fn two_lanes(queries: &[[f32; LANES]], key: &[f32], lane: usize) -> [f32; LANES] {
    sum_of(lane_sums(queries, key, lane), lane_sums(queries, key, lane + 8))
}

#[inline(always)]
fn four_lanes(queries: &[[f32; LANES]], key: &[f32], lane: usize) -> [f32; LANES] {
    sum_of(two_lanes(queries, key, lane), two_lanes(queries, key, lane + 4))
}

#[inline(always)]
fn eight_lanes(queries: &[[f32; LANES]], key: &[f32], lane: usize) -> [f32; LANES] {
    sum_of(four_lanes(queries, key, lane), four_lanes(queries, key, lane + 2))
}

/// Scaled inner products of sixteen queries with every key, the bits of [`super::dot`] each.
///
/// `queries` is `[head_dim][query]`, `keys` is `[kv_pos, head_dim]`; key `i` goes to `out[i * stride..][..16]`.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn dots(queries: &[[f32; LANES]], keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    let head_dim = queries.len();
    for (key, out) in keys.chunks_exact(head_dim).zip(out.chunks_mut(stride)) {
        let queries = &queries[..head_dim];
        let all = sum_of(eight_lanes(queries, key, 0), eight_lanes(queries, key, 1));
        for (out, value) in out.iter_mut().zip(all) {
            *out = value * scale;
        }
    }
}

/// Widens `low` and `high`, `[lane]`, to what the rows hold. A lane with infinity or NaN gets an infinite `high`.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn extremes(rows: &[f32], low: &mut [f32], high: &mut [f32]) {
    let lanes = low.len();
    for (at, (low, high)) in
        low.as_chunks_mut::<LANES>().0.iter_mut().zip(high.as_chunks_mut::<LANES>().0).enumerate()
    {
        let mut zero = [0.0f32; LANES];
        for row in rows.chunks_exact(lanes) {
            let Some(row) = row[at * LANES..].first_chunk::<LANES>() else {
                continue;
            };
            for i in 0..LANES {
                high[i] = if row[i] > high[i] { row[i] } else { high[i] };
                low[i] = if row[i] < low[i] { row[i] } else { low[i] };
                zero[i] += row[i] * 0.0;
            }
        }
        for (high, zero) in high.iter_mut().zip(zero) {
            if zero.is_nan() {
                *high = f32::INFINITY;
            }
        }
    }
}

/// Logits to weights in place; `tops` has the exponent of the largest logit, `[lane]`.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn exponentials(rows: &mut [f32], tops: &[u32]) {
    for row in rows.chunks_exact_mut(tops.len()) {
        for (values, tops) in row.as_chunks_mut::<LANES>().0.iter_mut().zip(tops.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                values[i] = scaled(values[i], tops[i]);
            }
        }
    }
}

/// Sums over the rows `slots` of the lanes from `first` on (a multiple of 16), as many as `out` has room for: blocks of 64
/// rows in f32, one row after the other, then f64. A row has `lanes` lanes.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn sums(rows: &[f32], lanes: usize, first: usize, slots: &[Pos], out: &mut [f64]) {
    for (at, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        *out = [0.0; LANES];
        let at = first + at * LANES;
        for block in slots.chunks(BLOCK) {
            let mut partial = [0.0; LANES];
            for slot in block {
                let Some(row) = rows[slot.idx() * lanes + at..].first_chunk::<LANES>() else {
                    continue;
                };
                add(&mut partial, row);
            }
            for i in 0..LANES {
                out[i] += f64::from(partial[i]);
            }
        }
    }
}

/// The product of each row of `slots` with `factors` (`[lane]` a tile), the tiles one after the other, folded as
/// [`super::dot`] folds. `tiles` holds (rows, factors); `out` is `[slot]`.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn products(tiles: &[(&[f32], &[f32])], slots: &[Pos], out: &mut [f32]) {
    for (slot, out) in slots.iter().zip(out) {
        let mut partial = [0.0; LANES];
        for (rows, factors) in tiles {
            let lanes = factors.len();
            let row = &rows[slot.idx() * lanes..][..lanes];
            for (row, factors) in row.as_chunks::<LANES>().0.iter().zip(factors.as_chunks::<LANES>().0) {
                for i in 0..LANES {
                    partial[i] += row[i] * factors[i];
                }
            }
        }
        *out = fold(partial);
    }
}

/// The channels `at..at + N` of the weighted sum over one block of tokens.
#[inline(always)]
fn mix_block<const N: usize>(
    weights: &[f32],
    values: &[f32],
    head_dim: usize,
    at: usize,
    block: &[Pos],
    out: &mut [f64],
) {
    let mut partial = [0.0f32; N];
    for (slot, weight) in block.iter().zip(weights) {
        let Some(value) = values[slot.idx() * head_dim + at..].first_chunk::<N>() else {
            continue;
        };
        for i in 0..N {
            partial[i] += weight * value[i];
        }
    }
    for (out, partial) in out[at..].iter_mut().zip(partial) {
        *out += f64::from(partial);
    }
}

/// Sums of `values` (`[kv_pos, head_dim]`) over `slots`, weighted by one lane of the rows: blocks of 64 tokens in f32, one
/// token after the other, then f64. `out` is `[head_dim]`.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn mix(rows: &[f32], lanes: usize, lane: usize, values: &[f32], slots: &[Pos], out: &mut [f64]) {
    let head_dim = out.len();
    out.fill(0.0);
    for block in slots.chunks(BLOCK) {
        let mut weights = [0.0; BLOCK];
        for (weight, slot) in weights.iter_mut().zip(block) {
            *weight = rows[slot.idx() * lanes + lane];
        }
        let mut at = 0;
        while at < head_dim {
            match head_dim - at {
                64.. => {
                    mix_block::<64>(&weights, values, head_dim, at, block, out);
                    at += 64;
                }
                16.. => {
                    mix_block::<16>(&weights, values, head_dim, at, block, out);
                    at += 16;
                }
                _ => {
                    mix_block::<1>(&weights, values, head_dim, at, block, out);
                    at += 1;
                }
            }
        }
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
        for head_dim in [1, 8, 16, 20, 64, 80] {
            let keys: Vec<f32> = (0..5 * head_dim).map(value).collect();
            let queries: Vec<[f32; LANES]> =
                (0..head_dim).map(|c| std::array::from_fn(|q| value(1000 + c * LANES + q))).collect();
            let mut out = vec![0.0; 5 * LANES];
            dots(&queries, &keys, 0.3, LANES, &mut out);
            for (at, found) in out.iter().enumerate() {
                let (key, query) = (at / LANES, at % LANES);
                let query: Vec<f32> = queries.iter().map(|row| row[query]).collect();
                let expected = crate::num::dot(&query, &keys[key * head_dim..][..head_dim]) * 0.3;
                assert_eq!(found.to_bits(), expected.to_bits(), "{head_dim} channels, {at}");
            }
        }
    }

    #[test]
    fn weights_are_exponentials_and_change_scale_exactly() {
        let logits: Vec<f32> = (0..200).map(|i| value(i) * 4.0).collect();
        let mut all = logits.clone();
        weights_of(&mut all);
        let largest = crate::num::max(&logits);
        for (w, x) in all.iter().zip(&logits) {
            let exact = (f64::from(*x) - f64::from(largest)).exp();
            let found = f64::from(*w) / f64::from(crate::num::max(&all));
            assert!((found / exact - 1.0).abs() < 1e-6, "{x}: {found} against {exact}");
        }
        // Without the largest ones, every weight is the same times one power of two.
        let mut some: Vec<f32> = logits.iter().copied().filter(|x| *x < 2.0).collect();
        let same: Vec<f32> = logits.iter().zip(&all).filter(|(x, _)| **x < 2.0).map(|(_, w)| *w).collect();
        weights_of(&mut some);
        let ratio = some[0] / same[0];
        assert!(ratio > 1.0 && (ratio.to_bits() << 9) == 0, "{ratio} is a power of two");
        assert!(some.iter().zip(&same).all(|(a, b)| a.to_bits() == (b * ratio).to_bits()));
    }

    #[test]
    fn weights_of_impossible_and_extreme_logits() {
        let mut none = [f32::NEG_INFINITY; 3];
        weights_of(&mut none);
        assert!(none.iter().all(|w| w.to_bits() == 0));
        let mut far = [0.0, -100.0, -200.0, f32::NEG_INFINITY];
        weights_of(&mut far);
        assert!(far[0] > far[1] && far[1] > 0.0 && far[2].to_bits() == 0 && far[3].to_bits() == 0);
        let mut wild = [1e9, 1e9, -1e9];
        weights_of(&mut wild);
        assert!(wild[0].to_bits() == wild[1].to_bits() && wild[0] > 0.0 && wild[2].to_bits() == 0);
        let mut broken = [f32::NAN, 1.0];
        weights_of(&mut broken);
        assert!(broken[0].is_nan());
    }
}
