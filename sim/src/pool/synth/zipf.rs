//! Independent draws from a Zipf distribution: object ids as cache studies use them.

use super::check;
use crate::num;
use crate::pool::{BlockStream, PoolError};
use crate::rng::{Purpose, StreamKey};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Params {
    /// Requests.
    requests: u32,
    /// Objects to draw from.
    objects: u32,
    /// The object of rank k is drawn in proportion to k^-exponent.
    exponent: f64,
    /// Tokens of a block.
    block_tokens: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self { requests: 100_000, objects: 10_000, exponent: 1.0, block_tokens: 16 }
    }
}

pub(super) fn stream(params: &Params, seed: u64) -> Result<BlockStream, PoolError> {
    let Params { requests, objects, exponent, block_tokens } = *params;
    check("zipf", "requests", requests.into(), 1.0, 1e9)?;
    check("zipf", "objects", objects.into(), 1.0, 1e8)?;
    check("zipf", "exponent", exponent, 0.0, 10.0)?;
    check("zipf", "block_tokens", block_tokens.into(), 1.0, 1e6)?;
    BlockStream::flat("zipf", true, block_tokens, zipf_ids(requests, objects, exponent, seed))
}

/// `requests` ids drawn independently from `objects` objects, the one of rank k in proportion to k^-`exponent`. Ids are scattered over
/// 64 bits, so that their order says nothing about their rank. `objects` is at least 1.
pub fn zipf_ids(requests: u32, objects: u32, exponent: f64, seed: u64) -> impl Iterator<Item = u64> {
    let table = Alias::new(objects.max(1), exponent);
    let mut draws = StreamKey::new(seed, Purpose::Workload, "zipf").stream();
    (0..requests).map(move |_| scattered(u64::from(table.pick(draws.bits()))))
}

/// A bijection of 64-bit numbers (the finaliser of SplitMix64).
fn scattered(rank: u64) -> u64 {
    let mut z = rank.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Walker's alias table: a draw in constant time.
struct Alias {
    /// For each rank: below which 32-bit number it stands for itself, and for whom it stands above.
    cells: Vec<(u32, u32)>,
}

impl Alias {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares of a cell")]
    fn new(objects: u32, exponent: f64) -> Self {
        let weight = |rank: u32| f64::from(num::exp((-exponent * num::ln(f64::from(rank) + 1.0)) as f32));
        let total: f64 = (0..objects).map(weight).sum();
        let mut scaled: Vec<f64> =
            (0..objects).map(|rank| weight(rank) * f64::from(objects) / total).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..objects).partition(|&rank| scaled[rank as usize] < 1.0);
        let mut cells: Vec<(u32, u32)> = (0..objects).map(|rank| (u32::MAX, rank)).collect();
        while let (Some(&less), Some(&more)) = (small.last(), large.last()) {
            small.pop();
            cells[less as usize] = ((scaled[less as usize] * 4_294_967_296.0) as u32, more);
            scaled[more as usize] -= 1.0 - scaled[less as usize];
            if scaled[more as usize] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        Self { cells }
    }

    #[expect(clippy::cast_possible_truncation, reason = "halves of a word are wanted")]
    fn pick(&self, bits: u64) -> u32 {
        let cell = (((bits >> 32) * self.cells.len() as u64) >> 32) as u32;
        let (own, other) = self.cells[cell as usize];
        if (bits as u32) < own { cell } else { other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_drawn_in_proportion() {
        let mut counts = [0_u32; 4];
        let ranks: Vec<u64> = (0..4).map(scattered).collect();
        for id in zipf_ids(50_000, 4, 1.0, 3) {
            counts[ranks.iter().position(|&rank| rank == id).unwrap()] += 1;
        }
        // 1, 1/2, 1/3, 1/4 over 25/12; six standard errors of a count are at most 670.
        for (count, share) in counts.iter().zip([0.48, 0.24, 0.16, 0.12]) {
            assert!((f64::from(*count) - 50_000.0 * share).abs() < 670.0, "{counts:?}");
        }
    }
}
