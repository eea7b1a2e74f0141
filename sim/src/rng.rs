//! Keyed random streams: the only place where randomness comes from, and the only file that names `rand_chacha`.
//!
//! A stream is named by coordinates, so what is drawn for (sequence, layer, head, eviction) does not depend on
//! thread count, on the order of cells, or on what was drawn elsewhere. A generator dies with the call that asked
//! for it. Budget and scenario are left out of the key on purpose: policies at two budgets share their noise.

use crate::num;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// What a stream is for. Streams of different purposes never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Draws of a policy.
    Policy,
    /// Generated workloads and synthetic traces: the same for all policies.
    Workload,
    /// Resampling in reports.
    Report,
}

impl Purpose {
    const fn tag(self) -> u8 {
        match self {
            Self::Policy => 1,
            Self::Workload => 2,
            Self::Report => 3,
        }
    }
}

/// Coordinates of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamKey<'a> {
    /// The user's seed.
    pub seed: u64,
    /// What the stream is for.
    pub purpose: Purpose,
    /// Id of the policy part, generator or metric that draws.
    pub id: &'a str,
    /// Sequence or request, below 2²⁰.
    pub seq: u32,
    /// Branch, below 2²⁰.
    pub branch: u32,
    /// Layer, below 2¹².
    pub layer: u16,
    /// Head, below 2¹².
    pub head: u16,
    /// Eviction or step. Each step owns 2²⁰ 32-bit words.
    pub step: u32,
}

impl<'a> StreamKey<'a> {
    /// A key with all coordinates at 0.
    #[must_use]
    pub fn new(seed: u64, purpose: Purpose, id: &'a str) -> Self {
        Self { seed, purpose, id, seq: 0, branch: 0, layer: 0, head: 0, step: 0 }
    }

    /// The stream that this key names.
    #[must_use]
    pub fn stream(&self) -> Stream {
        let mut hash = Sha256::new();
        hash.update(b"kvlab stream 1\0");
        hash.update(self.seed.to_le_bytes());
        hash.update([self.purpose.tag()]);
        hash.update(self.id.as_bytes());
        let mut rng = ChaCha8Rng::from_seed(hash.finalize().into());
        debug_assert!(
            self.seq < 1 << 20 && self.branch < 1 << 20 && self.layer < 1 << 12 && self.head < 1 << 12
        );
        let packed = (u64::from(self.seq) << 44)
            | (u64::from(self.branch & 0xF_FFFF) << 24)
            | (u64::from(self.layer & 0xFFF) << 12)
            | u64::from(self.head & 0xFFF);
        rng.set_stream(packed);
        rng.set_word_pos(u128::from(self.step) << 20);
        Stream(rng)
    }
}

/// A stream of draws. All draws are made from whole 64-bit words, so that they never depend on a library's samplers.
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in the open interval (0, 1), in steps of 2⁻⁵³.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Uniform in `0..bound`, unbiased.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no member");
        // Lemire's multiply-shift with rejection of the biased low part.
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.bits()) * u128::from(bound);
            #[expect(clippy::cast_possible_truncation, reason = "the low half is wanted")]
            if (product as u64) >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// The logarithms of `count` standard exponential draws: `ln(e)`, `e ~ Exp(1)`.
    pub fn ln_exponentials(&mut self, count: usize) -> Vec<f64> {
        let mut draws: Vec<f64> = (0..count).map(|_| self.uniform()).collect();
        num::logs::logarithms(&mut draws);
        draws.iter_mut().for_each(|draw| *draw = -*draw);
        num::logs::logarithms(&mut draws);
        draws
    }

    /// The next `count` draws of [`Stream::normal`].
    pub fn normals(&mut self, count: usize) -> Vec<f64> {
        let (mut radii, mut turns): (Vec<f64>, Vec<f64>) =
            (0..count).map(|_| (self.uniform(), self.uniform())).unzip();
        num::logs::logarithms(&mut radii);
        num::cosines_of_turns(&mut turns);
        radii.iter().zip(turns).map(|(ln, cos)| (-2.0 * ln).sqrt() * cos).collect()
    }

    /// A standard normal draw (Box–Muller, cosine branch; two words each).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * num::ln(self.uniform())).sqrt();
        radius * num::cos_turn(self.uniform())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(step: u32) -> StreamKey<'static> {
        StreamKey { seq: 3, layer: 2, head: 1, step, ..StreamKey::new(7, Purpose::Policy, "random") }
    }

    #[test]
    fn a_key_always_names_the_same_draws() {
        let first: Vec<u64> = std::iter::repeat_with({
            let mut s = key(0).stream();
            move || s.bits()
        })
        .take(4)
        .collect();
        let second: Vec<u64> = std::iter::repeat_with({
            let mut s = key(0).stream();
            move || s.bits()
        })
        .take(4)
        .collect();
        assert_eq!(first, second);
    }

    #[test]
    fn each_coordinate_moves_the_stream() {
        let base = key(0).stream().bits();
        let others = [
            StreamKey { seed: 8, ..key(0) },
            StreamKey { purpose: Purpose::Workload, ..key(0) },
            StreamKey { id: "weighted-sample", ..key(0) },
            StreamKey { seq: 4, ..key(0) },
            StreamKey { branch: 1, ..key(0) },
            StreamKey { layer: 3, ..key(0) },
            StreamKey { head: 2, ..key(0) },
            key(1),
        ];
        for other in others {
            assert_ne!(base, other.stream().bits(), "{other:?}");
        }
    }

    #[test]
    fn draws_are_pinned() {
        // A change of these numbers changes every stochastic result: it needs a line in CHANGELOG.md.
        let mut stream = key(5).stream();
        assert_eq!([stream.bits(), stream.bits()], PINNED);
    }

    #[test]
    fn normal_draws_at_once_are_those_one_by_one() {
        let (mut together, mut alone) = (key(6).stream(), key(6).stream());
        for draw in together.normals(1000) {
            assert_eq!(draw.to_bits(), alone.normal().to_bits());
        }
        assert_eq!(together.bits(), alone.bits());
    }

    const PINNED: [u64; 2] = [15_775_305_829_221_694_828, 5_622_982_108_007_021_750];

    #[test]
    fn uniform_normal_and_below_have_the_right_moments() {
        let mut stream = StreamKey::new(1, Purpose::Report, "moments").stream();
        let n = 20_000;
        let (mut sum, mut square, mut uniform, mut counts) = (0.0, 0.0, 0.0, [0u32; 5]);
        for _ in 0..n {
            let x = stream.normal();
            sum += x;
            square += x * x;
            uniform += stream.uniform();
            counts[usize::try_from(stream.below(5)).unwrap()] += 1;
        }
        let n = f64::from(n);
        // Six standard errors: the mean of a normal has 1/sqrt(n) = 0.0071, its square sqrt(2/n), the uniform sqrt(1/12n).
        assert!((sum / n).abs() < 0.043, "{sum}");
        assert!((square / n - 1.0).abs() < 0.06, "{square}");
        assert!((uniform / n - 0.5).abs() < 0.0123, "{uniform}");
        assert!(counts.iter().all(|&c| (f64::from(c) - n / 5.0).abs() < 340.0), "{counts:?}");
    }
}
