//! The shape of a decoder, and the map from query heads to KV heads.

use super::{Bytes, KvHead, LayerIdx, QHead};
use serde::{Deserialize, Serialize};

/// A shape that no decoder has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// A count is zero.
    #[error("`{what}` is 0; at least 1 is needed")]
    Zero {
        /// Which count.
        what: &'static str,
    },
    /// Query heads cannot be shared out evenly.
    #[error(
        "{q_heads} query heads cannot be grouped over {kv_heads} KV heads: the first must be a multiple of the second"
    )]
    Grouping {
        /// Query heads.
        q_heads: u16,
        /// KV heads.
        kv_heads: u16,
    },
}

/// The shape of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Decoder blocks.
    pub layers: u16,
    /// Query heads a layer.
    pub q_heads: u16,
    /// Key-value heads a layer.
    pub kv_heads: u16,
    /// Channels a head.
    pub head_dim: u16,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Vocabulary size.
    pub vocab: u32,
}

impl ModelShape {
    /// # Errors
    /// When a count is zero or query heads are no multiple of KV heads.
    pub fn check(&self) -> Result<(), ShapeError> {
        for (what, count) in [
            ("layers", u32::from(self.layers)),
            ("q_heads", u32::from(self.q_heads)),
            ("kv_heads", u32::from(self.kv_heads)),
            ("head_dim", u32::from(self.head_dim)),
            ("hidden", self.hidden),
            ("vocab", self.vocab),
        ] {
            if count == 0 {
                return Err(ShapeError::Zero { what });
            }
        }
        if !self.q_heads.is_multiple_of(self.kv_heads) {
            return Err(ShapeError::Grouping { q_heads: self.q_heads, kv_heads: self.kv_heads });
        }
        Ok(())
    }

    /// Query heads that share one KV head.
    #[must_use]
    pub fn group(&self) -> u16 {
        self.q_heads / self.kv_heads
    }

    /// The KV head that `head` reads: groups are contiguous.
    #[must_use]
    pub fn kv_of(&self, head: QHead) -> KvHead {
        KvHead::new(head.get() / self.group())
    }

    /// The query heads that read `head`, in order.
    pub fn q_of(&self, head: KvHead) -> impl Iterator<Item = QHead> + use<> {
        let group = self.group();
        (head.get() * group..(head.get() + 1) * group).map(QHead::new)
    }

    /// All layers, in order.
    pub fn layer_ids(&self) -> impl Iterator<Item = LayerIdx> + use<> {
        (0..self.layers).map(LayerIdx::new)
    }

    /// All KV heads of a layer, in order.
    pub fn kv_head_ids(&self) -> impl Iterator<Item = KvHead> + use<> {
        (0..self.kv_heads).map(KvHead::new)
    }

    /// Bytes of one key and one value vector of one KV head at `bytes_per_scalar`.
    #[must_use]
    pub fn kv_bytes_per_entry(&self, bytes_per_scalar: u64) -> Bytes {
        Bytes::new(2 * u64::from(self.head_dim) * bytes_per_scalar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(q_heads: u16, kv_heads: u16) -> ModelShape {
        ModelShape { layers: 2, q_heads, kv_heads, head_dim: 8, hidden: 16, vocab: 32 }
    }

    #[test]
    fn query_heads_are_grouped_contiguously() {
        let shape = shape(8, 2);
        assert_eq!(shape.kv_of(QHead::new(3)), KvHead::new(0));
        assert_eq!(shape.kv_of(QHead::new(4)), KvHead::new(1));
        assert_eq!(shape.q_of(KvHead::new(1)).map(QHead::get).collect::<Vec<_>>(), [4, 5, 6, 7]);
    }

    #[test]
    fn indivisible_heads_are_refused_with_the_numbers() {
        let error = shape(6, 4).check().unwrap_err();
        assert_eq!(error, ShapeError::Grouping { q_heads: 6, kv_heads: 4 });
    }
}
