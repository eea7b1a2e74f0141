//! Super-block formats of 256 elements.

use super::dequant::half_at;

/// The eight 6-bit scales and eight 6-bit minimums that share 12 bytes.
fn scale_and_minimum(packed: &[u8], index: usize) -> (f32, f32) {
    let (scale, minimum) = if index < 4 {
        (packed[index] & 63, packed[index + 4] & 63)
    } else {
        let low = packed[index + 4];
        ((low & 15) | ((packed[index - 4] >> 6) << 4), (low >> 4) | ((packed[index] >> 6) << 4))
    };
    (f32::from(scale), f32::from(minimum))
}

/// scale, minimum, scales `[12]`, quants `[128]`.
pub(super) fn q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let (packed, quants) = block[4..].split_at(12);
    for (pair, bytes) in quants.chunks_exact(32).enumerate() {
        for half in 0..2 {
            let (sub_scale, sub_minimum) = scale_and_minimum(packed, 2 * pair + half);
            let (step, shift) = (scale * sub_scale, minimum * sub_minimum);
            out.extend(bytes.iter().map(|byte| step * f32::from((byte >> (4 * half)) & 15) - shift));
        }
    }
}

/// scale, minimum, scales `[12]`, fifth bits `[32]`, quants `[128]`.
pub(super) fn q5_k(block: &[u8], out: &mut Vec<f32>) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let (packed, rest) = block[4..].split_at(12);
    let (high, quants) = rest.split_at(32);
    for (pair, bytes) in quants.chunks_exact(32).enumerate() {
        for half in 0..2 {
            let sub = 2 * pair + half;
            let (sub_scale, sub_minimum) = scale_and_minimum(packed, sub);
            let (step, shift) = (scale * sub_scale, minimum * sub_minimum);
            out.extend(bytes.iter().zip(high).map(|(byte, high)| {
                let quant = ((byte >> (4 * half)) & 15) | (((high >> sub) & 1) << 4);
                step * f32::from(quant) - shift
            }));
        }
    }
}

/// low bits `[128]`, high bits `[64]`, signed scales `[16]`, scale.
pub(super) fn q6_k(block: &[u8], out: &mut Vec<f32>) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, _) = rest.split_at(16);
    let scale = half_at(block, 208);
    for part in 0..2 {
        let (low, high) = (&low[64 * part..], &high[32 * part..]);
        for quarter in 0..4 {
            for i in 0..32 {
                let nibble = (low[32 * (quarter % 2) + i] >> (4 * (quarter / 2))) & 15;
                let quant = i16::from(nibble | (((high[i] >> (2 * quarter)) & 3) << 4)) - 32;
                let sub = f32::from(scales[8 * part + 2 * quarter + i / 16].cast_signed());
                out.push(scale * sub * f32::from(quant));
            }
        }
    }
}
