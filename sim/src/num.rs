//! Portable arithmetic: the same bits on every machine.
//!
//! Sums run in sixteen lanes that are folded in a fixed order; where a product is added to a sum, as in inner products, both are one
//! operation that rounds once (`mul_add`), and nowhere else are they fused; `exp`, `ln` and `cos` are polynomials of our own. Orders are total: by score, then by position.

pub(crate) mod dots;
pub(crate) mod logs;
mod network;
mod order;
pub(crate) mod products;
pub(crate) mod rows;

pub use logs::ln;
pub use order::{keep_order, top};
pub(crate) use order::{place_of, top_places};

use multiversion::multiversion;

/// Lanes of a sum. The order of additions is part of the results: it must not depend on the machine.
pub(crate) const LANES: usize = 16;

/// One number a lane, where a load takes them without crossing a line of the cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Row(pub(crate) [f32; LANES]);

#[inline(always)]
fn add(sums: &mut [f32; LANES], more: &[f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] += more[lane];
    }
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Numbers for tests, between -3 and 3, none like its neighbours.
#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn value(i: usize) -> f32 {
    ((i * 7919 % 1013) as f32 / 1013.0 - 0.5) * 6.0
}

/// Inner product of two vectors of equal length.
#[must_use]
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut lanes = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (x, y) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] = x[lane].mul_add(y[lane], lanes[lane]);
        }
    }
    for lane in 0..a_rest.len() {
        lanes[lane] = a_rest[lane].mul_add(b_rest[lane], lanes[lane]);
    }
    fold(lanes)
}

/// Sum of a vector.
#[must_use]
pub fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value;
    }
    fold(lanes)
}

/// Largest value; minus infinity for none.
#[must_use]
pub fn max(values: &[f32]) -> f32 {
    values.iter().fold(f32::NEG_INFINITY, |best, &value| if value > best { value } else { best })
}

/// `target += factor * source`, element by element.
pub fn add_scaled(target: &mut [f32], factor: f32, source: &[f32]) {
    for (t, s) in target.iter_mut().zip(source) {
        *t += factor * s;
    }
}

/// Range of a vector: largest minus smallest element; 0 for none.
#[must_use]
pub fn range(values: &[f32]) -> f32 {
    let Some(&first) = values.first() else {
        return 0.0;
    };
    let (low, high) =
        values.iter().fold((first, first), |(low, high), &value| (low.min(value), high.max(value)));
    high - low
}

/// `e^x`, within 2 ulp for results above 1e-37; exactly 0 below `x = -87`.
///
/// The polynomial is the Taylor series to degree 7 on |r| ≤ ln 2 / 2, with Cody–Waite reduction.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the exponent is clamped to [-126, 127]")]
#[inline]
pub fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.0, 88.0);
    // Adding and subtracting 1.5·2²³ rounds to the nearest integer in every IEEE implementation.
    let rounded = (clamped * std::f32::consts::LOG2_E + 12_582_912.0) - 12_582_912.0;
    let r = (clamped - rounded * LN2_HIGH) - rounded * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    #[expect(clippy::cast_sign_loss, reason = "the biased exponent is positive")]
    let scale = f32::from_bits(((rounded as i32 + 127) as u32) << 23);
    if x < -87.0 { 0.0 } else { p * scale }
}

/// A length as counts are kept; lengths here are far below 2³².
#[must_use]
pub(crate) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// `e^x` in binary64, within 1e-14 relative for |x| ≤ 700; 0 below −700.
///
/// Taylor series to degree 13 on |r| ≤ ln 2 / 2, with the reduction of [`ln`] reversed.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the exponent is clamped")]
pub fn exp_f64(x: f64) -> f64 {
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    if x < -700.0 {
        return 0.0;
    }
    let clamped = x.min(700.0);
    let rounded = (clamped * std::f64::consts::LOG2_E + 0.5).floor();
    let r = (clamped - rounded * LN2_HIGH) - rounded * LN2_LOW;
    let (mut series, mut k) = (1.0, 13.0);
    while k > 0.0 {
        series = 1.0 + series * r / k;
        k -= 1.0;
    }
    series * f64::from_bits(((rounded as i64 + 1023) as u64) << 52)
}

/// `cos(2π·turn)` for `turn` in [0, 1], within 1e-14.
#[must_use]
#[inline(always)]
pub fn cos_turn(turn: f64) -> f64 {
    // k · (k - 1) for even k from 22 down.
    const STEPS: [f64; 11] = [462.0, 380.0, 306.0, 240.0, 182.0, 132.0, 90.0, 56.0, 30.0, 12.0, 2.0];
    // Fold to [0, ¼], where the Taylor series to degree 22 is exact to rounding.
    let folded = if turn > 0.5 { 1.0 - turn } else { turn };
    let is_beyond = folded > 0.25;
    let folded = if is_beyond { 0.5 - folded } else { folded };
    let x = folded * std::f64::consts::TAU;
    let z = x * x;
    let mut series = 1.0;
    let mut step = 0;
    while step < STEPS.len() {
        series = 1.0 - series * z / STEPS[step];
        step += 1;
    }
    if is_beyond { -series } else { series }
}

/// [`cos_turn`] of every value, in place.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub(crate) fn cosines_of_turns(values: &mut [f64]) {
    let mut at = 0;
    while at < values.len() {
        values[at] = cos_turn(values[at]);
        at += 1;
    }
}

/// Softmax in place, computed with the maximum subtracted. Minus infinity gets exactly 0.
///
/// All entries at minus infinity (or none at all) leave zeros: there is no distribution.
pub fn softmax(values: &mut [f32]) {
    let largest = max(values);
    if largest == f32::NEG_INFINITY {
        values.fill(0.0);
        return;
    }
    for value in values.iter_mut() {
        *value = exp(*value - largest);
    }
    let total = sum(values);
    for value in values.iter_mut() {
        *value /= total;
    }
}

/// Average pooling over `kernel` (odd) neighbours, stride 1, zero padding, into `pooled`; edges divide by `kernel` too and are
/// damped.
#[expect(clippy::cast_precision_loss, reason = "kernels are small")]
pub fn avg_pool(values: &[f32], kernel: usize, pooled: &mut Vec<f32>) {
    let (half, len) = (kernel / 2, values.len());
    pooled.clear();
    pooled.resize(len, 0.0);
    // One neighbour after the other, from left to right; those outside count as zeros.
    for offset in half.saturating_sub(len)..kernel.min(half + len) {
        let (from, to) = (offset.saturating_sub(half), half.saturating_sub(offset));
        if from < len && to < len {
            pooled[to..].iter_mut().zip(&values[from..]).for_each(|(sum, value)| *sum += value);
        }
    }
    pooled.iter_mut().for_each(|sum| *sum /= kernel as f32);
}

/// Largest of `kernel` (odd) neighbours, stride 1; beyond the edges there is nothing.
#[must_use]
pub fn max_pool(values: &[f32], kernel: usize) -> Vec<f32> {
    let half = kernel / 2;
    (0..values.len())
        .map(|at| max(&values[at.saturating_sub(half)..(at + half + 1).min(values.len())]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_in_binary64_are_those_of_the_library_to_a_few_ulp() {
        for x in [-700.5, -699.0, -20.0, -1.0, -0.3, 0.0, 1e-9, 0.5, 1.5, 30.0, 699.0] {
            let (found, expected) = (exp_f64(x), if x < -700.0 { 0.0 } else { x.exp() });
            assert!((found - expected).abs() <= 1e-14 * expected, "{x}: {found} {expected}");
        }
        assert_eq!(exp_f64(0.0).to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn exp_is_within_two_ulp_of_the_correctly_rounded_value() {
        let mut x = -86.0f32;
        while x < 86.0 {
            let exact = f64::from(x).exp();
            let relative = ((f64::from(exp(x)) - exact) / exact).abs();
            assert!(relative < 2.4e-7, "exp({x}) is off by {relative}");
            x += 0.003_7;
        }
        assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0.0f32.to_bits());
    }

    #[test]
    fn ln_and_cos_match_the_standard_library_closely() {
        for x in [1e-320, 5e-17, 0.1, 0.5, 0.707, 0.999_999, 1.0, 1.5, 2.0, 10.0, 1e300] {
            assert!((ln(x) - x.ln()).abs() <= 1e-15 * x.ln().abs().max(1.0), "ln({x})");
        }
        for k in 0..=1000 {
            let turn = f64::from(k) / 1000.0;
            assert!((cos_turn(turn) - (turn * std::f64::consts::TAU).cos()).abs() < 1e-14, "{turn}");
        }
    }

    // Golden vector G6 of the policy specification, computed by hand: zero padding, division by 5 at the edges too.
    #[test]
    fn average_pooling_damps_the_edges() {
        let mut pooled = Vec::new();
        avg_pool(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 5, &mut pooled);
        for (found, expected) in pooled.iter().zip([1.2, 2.0, 3.0, 4.0, 3.6, 3.0]) {
            assert!((found - expected).abs() < 1e-6);
        }
    }

    // A kernel wider than the list is the sum over all of it, and takes no longer for being much wider.
    #[test]
    fn pooling_wider_than_the_list_adds_all_of_it() {
        for kernel in [7, 1_000_000_001] {
            let mut pooled = Vec::new();
            avg_pool(&[1.0, 2.0, 3.0, 4.0], kernel, &mut pooled);
            assert!(pooled.iter().all(|sum| (sum * kernel as f32 - 10.0).abs() < 1e-3), "{pooled:?}");
        }
    }

    // Golden vector G6: maximum of seven neighbours.
    #[test]
    fn maximum_pooling_ignores_what_is_beyond_the_edges() {
        let pooled = max_pool(&[1.0, 5.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0], 7);
        assert_eq!(
            pooled.iter().map(|x| x.round()).collect::<Vec<_>>(),
            [5.0, 5.0, 5.0, 5.0, 5.0, 3.0, 3.0, 3.0, 3.0]
        );
    }

    #[test]
    fn softmax_of_nothing_possible_is_all_zero() {
        let mut values = [f32::NEG_INFINITY; 3];
        softmax(&mut values);
        assert!(values.iter().all(|v| v.to_bits() == 0));
    }

    // Golden vector G16: v = [-3, 1, 0.5, 4] has range 7.
    #[test]
    fn range_is_largest_minus_smallest() {
        assert!((range(&[-3.0, 1.0, 0.5, 4.0]) - 7.0).abs() < 1e-6);
        assert!(range(&[]).abs() < 1e-6);
    }
}
