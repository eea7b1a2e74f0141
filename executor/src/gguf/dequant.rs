//! Block formats of 32 elements, and plain floats, to `f32`.
//!
//! The order of the operations is that of the reference implementation in Python, so results are the same bits.

use half::{bf16, f16};

use super::{
    k_quants::{q4_k, q5_k, q6_k},
    tensor_type::TensorType,
};

/// Undoes a format. `bytes` holds whole blocks.
pub(super) fn dequantise(format: TensorType, bytes: &[u8]) -> Vec<f32> {
    let blocks = bytes.chunks_exact(format.block_bytes());
    let mut out = Vec::with_capacity(blocks.len() * format.block_elements());
    for block in blocks {
        match format {
            TensorType::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            TensorType::F16 => out.push(half_at(block, 0)),
            TensorType::BF16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            TensorType::Q4_0 => q4(block, 2, half_at(block, 0), None, &mut out),
            TensorType::Q4_1 => q4(block, 4, half_at(block, 0), Some(half_at(block, 2)), &mut out),
            TensorType::Q5_0 => q5(block, 2, half_at(block, 0), None, &mut out),
            TensorType::Q5_1 => q5(block, 4, half_at(block, 0), Some(half_at(block, 2)), &mut out),
            TensorType::Q8_0 => {
                let scale = half_at(block, 0);
                out.extend(block[2..].iter().map(|byte| f32::from(byte.cast_signed()) * scale));
            }
            TensorType::Q4_K => q4_k(block, &mut out),
            TensorType::Q5_K => q5_k(block, &mut out),
            TensorType::Q6_K => q6_k(block, &mut out),
        }
    }
    out
}

/// The 16-bit float at a place in a block.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// A value of `bits` bits: with a minimum it counts from there, without one it is centred.
fn value(quant: u8, centre: i16, scale: f32, minimum: Option<f32>) -> f32 {
    match minimum {
        Some(minimum) => f32::from(quant) * scale + minimum,
        None => f32::from(i16::from(quant) - centre) * scale,
    }
}

fn q4(block: &[u8], quants: usize, scale: f32, minimum: Option<f32>, out: &mut Vec<f32>) {
    let quants = &block[quants..];
    out.extend(quants.iter().map(|byte| value(byte & 15, 8, scale, minimum)));
    out.extend(quants.iter().map(|byte| value(byte >> 4, 8, scale, minimum)));
}

fn q5(block: &[u8], fifth_bits: usize, scale: f32, minimum: Option<f32>, out: &mut Vec<f32>) {
    let (high, quants) = block[fifth_bits..].split_at(4);
    let fifth = |element: usize| ((high[element / 8] >> (element % 8)) & 1) << 4;
    out.extend(quants.iter().enumerate().map(|(i, byte)| value((byte & 15) | fifth(i), 16, scale, minimum)));
    out.extend(
        quants.iter().enumerate().map(|(i, byte)| value((byte >> 4) | fifth(i + 16), 16, scale, minimum)),
    );
}
