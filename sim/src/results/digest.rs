//! Content hashes of cells and texts.

use super::RESULTS_VERSION;
use sha2::{Digest, Sha256};

/// SHA-256 of `bytes`, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16);
    Sha256::digest(bytes).iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).flatten().collect()
}

/// Content hash of everything that decides a row: 12 hex digits.
#[must_use]
pub fn cell_id(parts: &serde_json::Value) -> String {
    let text = serde_json::json!({ "results": RESULTS_VERSION.to_string(), "cell": parts }).to_string();
    sha256_hex(text.as_bytes())[..12].to_owned()
}
