//! How much a cache may hold: blocks, bytes, or a share of everything that is asked for.

use super::{BlockStream, PoolError};
use std::fmt;
use std::str::FromStr;

/// A limit of a block cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// Blocks.
    Blocks(u64),
    /// Bytes; whole blocks that fit into them.
    Bytes(u64),
    /// A share of the working set: of all distinct full blocks of the stream, rounded up.
    Share(f64),
}

impl Capacity {
    /// The limit in blocks for `stream`.
    ///
    /// # Errors
    /// When bytes are asked for and the stream does not know how large a block is.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is in 0..=1")]
    pub fn blocks(self, stream: &BlockStream) -> Result<u64, PoolError> {
        match self {
            Self::Blocks(blocks) => Ok(blocks),
            Self::Share(share) => Ok((f64::from(stream.distinct()) * share).ceil() as u64),
            Self::Bytes(bytes) => match stream.block_bytes() {
                Some(size) => Ok(bytes / size.get().max(1)),
                None => Err(PoolError::NoModel { given: self.to_string(), stream: stream.name().to_owned() }),
            },
        }
    }
}

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for Capacity {
    type Err = PoolError;

    fn from_str(given: &str) -> Result<Self, PoolError> {
        let refuse = || PoolError::Capacity { given: given.to_owned() };
        let text = given.trim();
        let number = |text: &str, high: f64| {
            text.trim().parse::<f64>().ok().filter(|n| *n >= 0.0 && *n <= high).ok_or_else(refuse)
        };
        if let Some(percent) = text.strip_suffix('%') {
            return Ok(Self::Share(number(percent, 100.0)? / 100.0));
        }
        for (unit, size) in UNITS {
            if let Some(amount) = text.strip_suffix(unit) {
                #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
                let bytes = number(amount, 9e9)? * size as f64;
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^63")]
                return Ok(Self::Bytes(bytes as u64));
            }
        }
        if text.contains('.') {
            return Ok(Self::Share(number(text, 1.0)?));
        }
        text.parse().map(Self::Blocks).map_err(|_| refuse())
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(blocks) => write!(f, "{blocks}"),
            Self::Bytes(bytes) => write!(f, "{bytes}B"),
            // Always with a point: a whole number would be blocks.
            Self::Share(share) => write!(f, "{share:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_spellings_are_told_apart() {
        for (text, expected) in [
            ("512", Capacity::Blocks(512)),
            ("1", Capacity::Blocks(1)),
            ("1.0", Capacity::Share(1.0)),
            ("25%", Capacity::Share(0.25)),
            ("1.5GiB", Capacity::Bytes(3 << 29)),
            ("64 KiB", Capacity::Bytes(1 << 16)),
            ("7B", Capacity::Bytes(7)),
        ] {
            let found: Capacity = text.parse().unwrap();
            assert_eq!(found, expected, "{text}");
            assert_eq!(found.to_string().parse::<Capacity>().unwrap(), expected, "{found}");
        }
        for text in ["", "-1", "1.5", "200%", "NaN", "inf", "x", "12 blocks"] {
            assert!(text.parse::<Capacity>().is_err(), "{text}");
        }
    }
}
