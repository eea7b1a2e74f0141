//! Keyed random streams and the few samplers the generator needs. No `usize` is sampled, no float is used.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// One keyed stream. Equal keys give equal draws on every machine.
pub(super) struct Draw(ChaCha8Rng);

impl Draw {
    /// The stream of `key`; the four words fill the 256-bit ChaCha key.
    pub(super) fn keyed(key: [u64; 4]) -> Self {
        let mut seed = [0u8; 32];
        for (chunk, word) in seed.chunks_exact_mut(8).zip(key) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(seed))
    }

    /// Uniform in `0..bound`, by multiply-shift with rejection (Lemire), so it is unbiased.
    ///
    /// `bound` must be positive; 0 is treated as 1.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        let bound = bound.max(1);
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.0.next_u32()) * u64::from(bound);
            let [low, high] = split(product);
            if low >= threshold {
                return high;
            }
        }
    }

    /// Uniform in `low..=high`.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True with probability `percent / 100`.
    pub(super) fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    /// A uniform digit `0..=9`.
    pub(super) fn digit(&mut self) -> u8 {
        u8::try_from(self.below(10)).expect("a number below 10 fits u8")
    }

    /// A uniform index below `len`, which must be at least 1 and below 2^32.
    pub(super) fn index(&mut self, len: usize) -> usize {
        let bound = u32::try_from(len).expect("lists here are short");
        usize::try_from(self.below(bound)).expect("usize has at least 32 bits")
    }

    /// Fisher–Yates, from the last element down.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }
}

/// The low and the high 32 bits of `product`.
fn split(product: u64) -> [u32; 2] {
    let low = u32::try_from(product & u64::from(u32::MAX)).expect("masked to 32 bits");
    let high = u32::try_from(product >> 32).expect("shifted to 32 bits");
    [low, high]
}
