//! Kernels over rows of sixteen-lane chunks: exponentials of attention logits, sums and mixtures over chosen rows.
//!
//! A *row* belongs to a key position and holds one number a lane; lanes are queries, in chunks of [`LANES`]. Every
//! function fixes the order of its additions and says where a product and a sum are one operation (`mul_add`), so all instruction sets give the same bits;
//! `multiversion` only chooses how many lanes an instruction takes. Loops count places instead of zipping: a closure is compiled
//! for the least instruction set, and a call of it stays a call.

use super::{LANES, add};
use crate::types::Pos;
use multiversion::multiversion;
use multiversion::target::target_cfg_f;

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

/// Widens `low` and `high`, `[lane]`, to what the rows hold. A lane with infinity or NaN gets an infinite `high`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
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
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn exponentials(rows: &mut [f32], tops: &[u32]) {
    for row in rows.chunks_exact_mut(tops.len()) {
        for (values, tops) in row.as_chunks_mut::<LANES>().0.iter_mut().zip(tops.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                values[i] = scaled(values[i], tops[i]);
            }
        }
    }
}

/// Adds the rows of one block, from their lane `first` on, to as many chunks as `C`.
#[inline(always)]
fn add_block<const C: usize>(
    rows: &[f32],
    (lanes, first): (usize, usize),
    block: &[Pos],
    partial: &mut [[f32; LANES]; C],
) {
    for slot in block {
        let from = slot.idx() * lanes + first;
        // A key after every query of the rows has none.
        let Some(row) = rows.get(from..from + C * LANES) else {
            continue;
        };
        let row = row.as_chunks::<LANES>().0;
        for c in 0..C {
            add(&mut partial[c], &row[c]);
        }
    }
}

/// Adds the rows `slots`, from their lane `first` on, to as many chunks of `out` as `C`; see [`sums`]. With `CUT`, `before` gets what the
/// first `cut` of them alone come to.
#[inline(always)]
fn sum_chunks<const C: usize, const CUT: bool>(
    rows: &[f32],
    (lanes, first): (usize, usize),
    (slots, cut): (&[Pos], usize),
    out: &mut [[f64; LANES]],
    before: &mut [[f64; LANES]],
) {
    let mut at = 0;
    while at < slots.len() {
        let block = &slots[at..slots.len().min(at + BLOCK)];
        let mut partial = [[0.0f32; LANES]; C];
        if CUT && at < cut {
            let (head, tail) = block.split_at(block.len().min(cut - at));
            add_block(rows, (lanes, first), head, &mut partial);
            for c in 0..C {
                for i in 0..LANES {
                    before[c][i] = out[c][i] + f64::from(partial[c][i]);
                }
            }
            add_block(rows, (lanes, first), tail, &mut partial);
        } else {
            add_block(rows, (lanes, first), block, &mut partial);
        }
        for c in 0..C {
            for i in 0..LANES {
                out[c][i] += f64::from(partial[c][i]);
            }
        }
        at += BLOCK;
    }
}

#[inline(always)]
fn sums_of<const CUT: bool>(
    rows: &[f32],
    (lanes, first): (usize, usize),
    slots: (&[Pos], usize),
    out: &mut [f64],
    before: &mut [f64],
) {
    out.fill(0.0);
    before.fill(0.0);
    let (mut out, mut before) = (out.as_chunks_mut::<LANES>().0, before.as_chunks_mut::<LANES>().0);
    let mut at = first;
    while !out.is_empty() {
        // Chunks wait for their own additions only: three at once hide most of the waiting.
        let width = match out.len() {
            1 => {
                sum_chunks::<1, CUT>(rows, (lanes, at), slots, out, before);
                1
            }
            2 | 4 => {
                sum_chunks::<2, CUT>(rows, (lanes, at), slots, out, before);
                2
            }
            _ => {
                sum_chunks::<3, CUT>(rows, (lanes, at), slots, out, before);
                3
            }
        };
        out = &mut out[width..];
        if CUT {
            before = &mut before[width..];
        }
        at += width * LANES;
    }
}

/// Sums over the rows `slots` of the lanes from `first` on (a multiple of 16), as many as `out` has room for: blocks of 64
/// rows in f32, one row after the other, then f64. A row has `lanes` lanes.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn sums(rows: &[f32], lanes: usize, first: usize, slots: &[Pos], out: &mut [f64]) {
    sums_of::<false>(rows, (lanes, first), (slots, 0), out, &mut []);
}

/// As [`sums`], and into `before`, of equal length, what it gives for the first `cut` slots, in one walk.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn sums_and_before(
    rows: &[f32],
    (lanes, first): (usize, usize),
    (slots, cut): (&[Pos], usize),
    out: &mut [f64],
    before: &mut [f64],
) {
    sums_of::<true>(rows, (lanes, first), (slots, cut), out, before);
}

/// The channels `at..at + N` of `M` weighted sums over one block of tokens.
#[inline(always)]
fn mix_block<const M: usize, const N: usize>(
    weights: &[[f32; BLOCK]; M],
    values: &[f32],
    (head_dim, at): (usize, usize),
    block: &[Pos],
    out: &mut [f64],
) {
    let mut partial = [[0.0f32; N]; M];
    for (i, slot) in block.iter().enumerate() {
        let Some(value) = values[slot.idx() * head_dim + at..].first_chunk::<N>() else {
            continue;
        };
        for m in 0..M {
            let weight = weights[m][i];
            for c in 0..N {
                partial[m][c] = weight.mul_add(value[c], partial[m][c]);
            }
        }
    }
    for m in 0..M {
        let out = &mut out[m * head_dim + at..][..N];
        for c in 0..N {
            out[c] += f64::from(partial[m][c]);
        }
    }
}

/// [`mix`] of `M` lanes.
#[inline(always)]
fn mix_lanes<const M: usize, const WIDE: bool>(
    rows: &[f32],
    (lanes, first): (usize, usize),
    values: &[f32],
    head_dim: usize,
    slots: &[Pos],
    out: &mut [f64],
) {
    for block in slots.chunks(BLOCK) {
        let mut weights = [[0.0; BLOCK]; M];
        for (i, slot) in block.iter().enumerate() {
            let row = &rows[slot.idx() * lanes + first..][..M];
            for m in 0..M {
                weights[m][i] = row[m];
            }
        }
        let mut at = 0;
        while at < head_dim {
            let place = (head_dim, at);
            at += match head_dim - at {
                // Registers for as many sums as wait for one another.
                64.. if WIDE => {
                    mix_block::<M, 64>(&weights, values, place, block, out);
                    64
                }
                32.. => {
                    mix_block::<M, 32>(&weights, values, place, block, out);
                    32
                }
                16.. => {
                    mix_block::<M, 16>(&weights, values, place, block, out);
                    16
                }
                _ => {
                    mix_block::<M, 1>(&weights, values, place, block, out);
                    1
                }
            };
        }
    }
}

/// [`mix`], with 64 channels at once where the registers are wide enough for that.
#[inline(always)]
fn mix_all<const WIDE: bool>(
    rows: &[f32],
    (lanes, first): (usize, usize),
    values: &[f32],
    head_dim: usize,
    slots: &[Pos],
    out: &mut [f64],
) {
    out.fill(0.0);
    let (mut out, mut lane) = (out, first);
    while out.len() >= head_dim && head_dim > 0 {
        // A value is read once for up to three lanes.
        let place = (lanes, lane);
        let width = match out.len() / head_dim {
            1 => {
                mix_lanes::<1, WIDE>(rows, place, values, head_dim, slots, &mut out[..head_dim]);
                1
            }
            2 | 4 => {
                mix_lanes::<2, WIDE>(rows, place, values, head_dim, slots, &mut out[..2 * head_dim]);
                2
            }
            _ => {
                mix_lanes::<3, WIDE>(rows, place, values, head_dim, slots, &mut out[..3 * head_dim]);
                3
            }
        };
        out = &mut out[width * head_dim..];
        lane += width;
    }
}

/// Sums of `values` (`[kv_pos, head_dim]`) over `slots`, weighted by the lanes of the rows from `first` on, as many as `out`,
/// `[lane, head_dim]`, has room for: blocks of 64 tokens in f32, one token after the other, then f64. A row has `lanes` lanes.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn mix(
    rows: &[f32],
    place: (usize, usize),
    values: &[f32],
    head_dim: usize,
    slots: &[Pos],
    out: &mut [f64],
) {
    if target_cfg_f!(target_feature = "avx512f") {
        mix_all::<true>(rows, place, values, head_dim, slots, out);
    } else {
        mix_all::<false>(rows, place, values, head_dim, slots, out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::value;
    use super::*;

    // Each lane by itself, in the order that is promised: whatever is worked out beside it must not show.
    #[test]
    fn sums_and_mixtures_have_the_bits_of_one_lane_alone() {
        for (group, head_dim) in [(1, 8), (2, 20), (3, 64), (4, 16), (5, 33), (7, 64)] {
            let lanes = group * LANES;
            let rows: Vec<f32> = (0..150 * lanes).map(|i| value(i) + 3.0).collect();
            let values: Vec<f32> = (0..150 * head_dim).map(|i| value(i + 77)).collect();
            let slots: Vec<Pos> = (0..101u32).map(|i| Pos::new(i * 37 % 150)).collect();
            let lane_sum = |lane: usize| {
                slots.chunks(BLOCK).fold(0.0f64, |sum, block| {
                    sum + f64::from(
                        block.iter().fold(0.0f32, |sum, slot| sum + rows[slot.idx() * lanes + lane]),
                    )
                })
            };
            let mut found = vec![f64::NAN; lanes];
            sums(&rows, lanes, 0, &slots, &mut found);
            assert!(
                (0..lanes).all(|lane| found[lane].to_bits() == lane_sum(lane).to_bits()),
                "{group} chunks"
            );
            for cut in [0, 1, 63, 64, 65, 100, 101] {
                let mut expected = vec![f64::NAN; lanes];
                sums(&rows, lanes, 0, &slots[..cut], &mut expected);
                let (mut all, mut before) = (vec![f64::NAN; lanes], vec![f64::NAN; lanes]);
                sums_and_before(&rows, (lanes, 0), (&slots, cut), &mut all, &mut before);
                let are_same =
                    |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(are_same(&all, &found) && are_same(&before, &expected), "{group} chunks, cut {cut}");
            }
            let mut found = vec![f64::NAN; group * head_dim];
            let first = LANES - 1;
            mix(&rows, (lanes, first.min(lanes - group)), &values, head_dim, &slots, &mut found);
            for (at, found) in found.iter().enumerate() {
                let (lane, channel) = (first.min(lanes - group) + at / head_dim, at % head_dim);
                let expected = slots.chunks(BLOCK).fold(0.0f64, |sum, block| {
                    let of = |sum: f32, slot: &Pos| {
                        rows[slot.idx() * lanes + lane].mul_add(values[slot.idx() * head_dim + channel], sum)
                    };
                    sum + f64::from(block.iter().fold(0.0f32, of))
                });
                assert_eq!(found.to_bits(), expected.to_bits(), "{group} lanes, {head_dim} channels, {at}");
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
