//! A fingerprint of the log: equal digests = equal runs.

use crate::engine::{Observer, Record, Stamp};
use sha2::{Digest, Sha256};

/// SHA-256 over the canonical bytes of all records ([`Record::encode`]).
#[derive(Clone, Debug)]
pub struct LogDigest {
    hash: Sha256,
    buffer: Vec<u8>,
}

impl LogDigest {
    /// Bytes that are gathered before they are hashed.
    const BATCH: usize = 4096;

    /// The digest of an empty log.
    #[must_use]
    pub fn new() -> Self {
        let mut hash = Sha256::new();
        hash.update(b"kvlab log 1\0");
        Self { hash, buffer: Vec::with_capacity(2 * Self::BATCH) }
    }

    /// The first 16 hex digits, as result tables hold them.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.hash.update(&self.buffer);
        self.hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Default for LogDigest {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for LogDigest {
    fn note(&mut self, stamp: Stamp, record: &Record<'_>) {
        record.encode(stamp, &mut self.buffer);
        if self.buffer.len() >= Self::BATCH {
            self.hash.update(&self.buffer);
            self.buffer.clear();
        }
    }
}
