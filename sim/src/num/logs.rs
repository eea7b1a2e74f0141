//! Natural logarithms: of one number, and the same bits for many at once.

use multiversion::multiversion;

/// Natural logarithm of a positive number, within 1e-15 relative; minus infinity at 0, NaN below.
#[must_use]
pub fn ln(x: f64) -> f64 {
    if !(x > 0.0) {
        return if x == 0.0 { f64::NEG_INFINITY } else { f64::NAN };
    }
    if x == f64::INFINITY {
        return x;
    }
    if x < f64::MIN_POSITIVE {
        ln_of_normal(x * 18_014_398_509_481_984.0, -54.0)
    } else {
        ln_of_normal(x, 0.0)
    }
}

/// `ln(x · 2^shift)` of a positive normal number.
///
/// `ln(m·2^e)` with `m` in [√½, √2): twice the series of `atanh((m-1)/(m+1))`.
#[inline(always)]
fn ln_of_normal(x: f64, shift: f64) -> f64 {
    const SERIES: [f64; 11] = [
        1.0 / 23.0,
        1.0 / 21.0,
        1.0 / 19.0,
        1.0 / 17.0,
        1.0 / 15.0,
        1.0 / 13.0,
        1.0 / 11.0,
        1.0 / 9.0,
        1.0 / 7.0,
        1.0 / 5.0,
        1.0 / 3.0,
    ];
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let bits = x.to_bits();
    // Eleven bits, as the narrowest number that every instruction set converts.
    let exponent = f64::from((bits >> 52) as i32) - 1023.0 + shift;
    let mantissa = f64::from_bits((bits & 0x000F_FFFF_FFFF_FFFF) | 0x3FF0_0000_0000_0000);
    let is_high = mantissa > std::f64::consts::SQRT_2;
    let mantissa = if is_high { mantissa * 0.5 } else { mantissa };
    let exponent = if is_high { exponent + 1.0 } else { exponent };
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let z = s * s;
    let mut series = SERIES[0];
    let mut term = 1;
    while term < SERIES.len() {
        series = series * z + SERIES[term];
        term += 1;
    }
    exponent * LN2_HIGH + (2.0 * s + (2.0 * s * z * series + exponent * LN2_LOW))
}

/// [`ln`] of every value, in place.
pub(crate) fn logarithms(values: &mut [f64]) {
    if values.iter().all(|value| value.is_normal() && *value > 0.0) {
        logarithms_of_normals(values);
    } else {
        values.iter_mut().for_each(|value| *value = ln(*value));
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn logarithms_of_normals(values: &mut [f64]) {
    let mut at = 0;
    while at < values.len() {
        values[at] = ln_of_normal(values[at], 0.0);
        at += 1;
    }
}

/// Keys of a weighted draw without replacement: `exponent · ln(weight) - ln_e` with the logarithm of [`ln`], minus infinity
/// where the weight is not above 0. Weights are finite; all are `[candidate]`, and keys replace the weights.
#[expect(
    clippy::cast_possible_truncation,
    reason = "keys are compared as f32; equal ones go to the earlier position"
)]
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub(crate) fn sampling_keys(weights: &mut [f32], exponent: f64, ln_e: &[f64]) {
    let len = weights.len().min(ln_e.len());
    let (weights, ln_e) = (&mut weights[..len], &ln_e[..len]);
    for i in 0..len {
        // As f64, what is subnormal in f32 is normal.
        let is_positive = weights[i] > 0.0;
        let weight = if is_positive { weights[i] } else { 1.0 };
        let key = (exponent * ln_of_normal(f64::from(weight), 0.0) - ln_e[i]) as f32;
        weights[i] = if is_positive { key } else { f32::NEG_INFINITY };
    }
}

#[cfg(test)]
mod tests {
    use super::super::value;
    use super::*;

    #[test]
    fn many_logarithms_have_the_bits_of_one() {
        for more in [&[][..], &[0.0, -1.0, f64::MIN_POSITIVE / 8.0, f64::INFINITY, f64::NAN]] {
            let mut values: Vec<f64> = (0..1001).map(|i| f64::from(value(i) * 90.0).exp()).collect();
            values.extend([1.0, f64::MIN_POSITIVE, f64::MAX, std::f64::consts::SQRT_2]);
            values.extend(more);
            let expected: Vec<u64> = values.iter().map(|x| ln(*x).to_bits()).collect();
            logarithms(&mut values);
            assert_eq!(values.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn many_sampling_keys_have_the_bits_of_one() {
        let mut weights: Vec<f32> = (0..1000).map(|i| (value(i) * 14.0).exp()).collect();
        weights.extend([
            0.0,
            -0.0,
            f32::MIN_POSITIVE,
            1e-45,
            f32::MAX,
            1.0,
            std::f32::consts::SQRT_2,
            0.707_106_77,
        ]);
        let ln_e: Vec<f64> = (0..weights.len()).map(|i| f64::from(value(i + 5))).collect();
        for exponent in [0.5, 1.0] {
            let mut keys = weights.clone();
            sampling_keys(&mut keys, exponent, &ln_e);
            for ((key, weight), ln_e) in keys.iter().zip(&weights).zip(&ln_e) {
                #[expect(clippy::cast_possible_truncation, reason = "keys are f32")]
                let expected = (exponent * ln(f64::from(*weight)) - ln_e) as f32;
                assert_eq!(key.to_bits(), expected.to_bits(), "{weight}");
            }
        }
    }
}
