//! What an eviction leaves: how many entries of a (layer, KV head), and which.

use crate::types::Pos;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::fmt;

/// The entries of one (layer, KV head) that survive an eviction, by number and fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KeptSet {
    /// Entries that stay.
    pub count: u32,
    /// Fingerprint of the positions that stay, in slot order; see [`KeptSet::of`].
    #[serde(serialize_with = "hex")]
    pub digest: [u8; 16],
}

impl KeptSet {
    /// The kept set with these positions, in slot order: two sets differ when their order does, because slots do.
    ///
    /// The digest is the first 16 bytes of SHA-256 over the positions as little-endian `u32`.
    #[must_use]
    pub fn of(positions: &[Pos]) -> Self {
        let mut hash = Sha256::new();
        let mut buffer = [0u8; 256];
        for chunk in positions.chunks(buffer.len() / 4) {
            for (bytes, pos) in buffer.chunks_exact_mut(4).zip(chunk) {
                bytes.copy_from_slice(&pos.get().to_le_bytes());
            }
            hash.update(&buffer[..4 * chunk.len()]);
        }
        let full: [u8; 32] = hash.finalize().into();
        let mut digest = [0; 16];
        digest.copy_from_slice(&full[..16]);
        let count = u32::try_from(positions.len()).expect("positions are distinct u32 values");
        Self { count, digest }
    }
}

impl fmt::Debug for KeptSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries, ", self.count)?;
        self.digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn hex<S: Serializer>(digest: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{:032x}", u128::from_be_bytes(*digest)))
}

/// What stays of every (layer, KV head) of a branch, `[layer, kv_head]`, layers outermost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// How many entries stay, with a fingerprint of which: small, and enough for everything that counts.
    Sets(Vec<KeptSet>),
    /// Which positions stay, in slot order: for tests and small studies.
    Positions(Vec<Vec<Pos>>),
}

impl Kept {
    /// Number of (layer, KV head) pairs that are named.
    #[must_use]
    pub fn streams(&self) -> usize {
        match self {
            Self::Sets(sets) => sets.len(),
            Self::Positions(lists) => lists.len(),
        }
    }

    /// Entries that stay of pair `stream` = layer · KV heads + KV head; 0 for a pair that is not named.
    #[must_use]
    pub fn count(&self, stream: usize) -> u64 {
        match self {
            Self::Sets(sets) => sets.get(stream).map_or(0, |set| u64::from(set.count)),
            Self::Positions(lists) => lists.get(stream).map_or(0, |list| list.len() as u64),
        }
    }

    /// All kept sets, fingerprints included.
    #[must_use]
    pub fn sets(&self) -> std::borrow::Cow<'_, [KeptSet]> {
        match self {
            Self::Sets(sets) => sets.into(),
            Self::Positions(lists) => lists.iter().map(|list| KeptSet::of(list)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_head_of_sha256_over_little_endian_positions() {
        // `printf '\x01\x00\x00\x00\x00\x01\x00\x00' | sha256sum`
        let set = KeptSet::of(&[Pos::new(1), Pos::new(256)]);
        assert_eq!(format!("{set:?}"), "2 entries, 242045e2f1bb37769b514f182fd91b3d");
    }

    #[test]
    fn order_is_part_of_the_digest() {
        let (a, b) = (Pos::new(1), Pos::new(2));
        assert_ne!(KeptSet::of(&[a, b]), KeptSet::of(&[b, a]));
    }
}
