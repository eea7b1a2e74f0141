//! Seeded damage.

use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// Mutants a target: `KVLAB_FUZZ_CASES`, or 64.
pub(crate) fn cases() -> u32 {
    number("KVLAB_FUZZ_CASES").map_or(64, |cases| u32::try_from(cases).unwrap_or(u32::MAX))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Draws mutants of one case.
pub(crate) struct Mutator {
    rng: rand_chacha::ChaCha8Rng,
}

impl Mutator {
    pub(crate) fn new(target: &str, case: u32) -> Self {
        let mut hash = Sha256::new();
        hash.update(target.as_bytes());
        hash.update(case.to_le_bytes());
        hash.update(number("KVLAB_FUZZ_SEED").unwrap_or(1).to_le_bytes());
        Self { rng: rand_chacha::ChaCha8Rng::from_seed(hash.finalize().into()) }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.next_u64() % bound.max(1) as u64).unwrap_or(0)
    }

    /// One file of the corpus with one to four changes: bytes, numbers, cuts, pieces moved within it or from another.
    pub(crate) fn mutant(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let at = self.below(corpus.len());
        let mut bytes = corpus[at].clone();
        for _ in 0..=self.below(4) {
            let (at, kind) = (self.below(bytes.len()), self.below(10));
            match kind {
                _ if bytes.is_empty() => bytes.push(b'{'),
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = *b"0919-,\":{}[]. \n\0\xff\x7f\x80".get(self.below(19)).unwrap_or(&0),
                2 => bytes[at] = self.rng.next_u64().to_le_bytes()[0],
                // Lengths, counts and offsets are 32- and 64-bit numbers.
                3 => {
                    let number: u64 =
                        [0, 1, u64::MAX, u64::MAX / 2, 1 << 32, 1 << 40, 0x7FFF_FFFF, 0xFFFF_FFFF]
                            [self.below(8)];
                    let width = if self.below(2) == 0 { 4 } else { 8 };
                    for (byte, value) in bytes[at..].iter_mut().zip(&number.to_le_bytes()[..width]) {
                        *byte = *value;
                    }
                }
                4 => bytes.truncate(at),
                5 => {
                    let end = at + self.below((bytes.len() - at).min(64) + 1);
                    bytes.drain(at..end);
                }
                6 => {
                    let end = at + self.below((bytes.len() - at).min(64) + 1);
                    let piece = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, piece);
                }
                7 => {
                    let other = self.below(corpus.len());
                    let from = self.below(corpus[other].len());
                    let piece =
                        corpus[other][from..].iter().take(1 + self.below(64)).copied().collect::<Vec<_>>();
                    bytes.splice(at..at, piece);
                }
                // Text formats: another number in place of one.
                8 => {
                    if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                        let numbers: [&[u8]; 7] =
                            [b"-1", b"0", b"1e999", b"99999999999999999999", b"4294967296", b"null", b"NaN"];
                        let text = numbers[self.below(7)].to_vec();
                        bytes.splice(at + digit..=at + digit, text);
                    }
                }
                _ => bytes.insert(at, b"{}[]\",:-0 \n"[self.below(11)]),
            }
        }
        bytes
    }
}
