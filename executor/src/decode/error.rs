//! What can go wrong while decoding.

use std::fmt;

use crate::runtime::RuntimeError;

/// A quantity that must be finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantity {
    /// The residual stream after a layer.
    Hidden,
    /// A query after rotation.
    Query,
    /// A key after rotation.
    Key,
    /// A value.
    Value,
    /// An attention probability.
    Attention,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hidden => "the hidden state",
            Self::Query => "a query",
            Self::Key => "a key",
            Self::Value => "a value",
            Self::Attention => "an attention probability",
        })
    }
}

fn at_head(head: Option<usize>) -> String {
    head.map(|head| format!(", head {head}")).unwrap_or_default()
}

/// Why decoding stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The runtime.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A number that is not finite. The cache is as it was before the pass.
    #[error("failed to decode: {quantity} is {value} in layer {layer}{} at position {pos} (token {token})", at_head(*head))]
    NonFinite {
        /// Which number.
        quantity: Quantity,
        /// The layer.
        layer: usize,
        /// The query head or key-value head, where there is one.
        head: Option<usize>,
        /// The position in the sequence.
        pos: u32,
        /// The token there.
        token: u32,
        /// The number.
        value: f32,
    },
    /// Logits with a NaN or plus infinity, or nothing but minus infinity.
    #[error("failed to read logits of row {row}: {why}")]
    Logits {
        /// Row within the call.
        row: usize,
        /// What is wrong with them.
        why: BadLogits,
    },
    /// A pass without tokens.
    #[error("failed to decode: no token was given")]
    NoTokens,
    /// A token that the model does not have.
    #[error("failed to decode: token {token} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A layer that the model does not have.
    #[error("failed to use layer {layer}: the model has {layers}")]
    NoSuchLayer {
        /// The layer.
        layer: usize,
        /// How many there are.
        layers: usize,
    },
    /// Kept sets for another number of heads.
    #[error("failed to keep positions in layer {layer}: sets are given for {given} heads, it has {heads}")]
    HeadCount {
        /// The layer.
        layer: usize,
        /// Sets given.
        given: usize,
        /// Key-value heads of the model.
        heads: usize,
    },
    /// A position to keep that is not there, or is named twice.
    #[error("failed to keep position {pos} in layer {layer}, head {head}: it is {}", if *twice { "named twice" } else { "not resident" })]
    NotResident {
        /// The layer.
        layer: usize,
        /// The key-value head.
        head: usize,
        /// The position.
        pos: u32,
        /// It is resident, but named twice.
        twice: bool,
    },
    /// A next position that does not follow what is resident.
    #[error("failed to continue at position {asked}: position {resident} is resident")]
    PositionTaken {
        /// The position asked for.
        asked: u32,
        /// The largest resident position.
        resident: u32,
    },
    /// Positions ran out.
    #[error("failed to decode: positions end at {}", u32::MAX)]
    PositionsExhausted,
    /// Attention was tapped, and the model was loaded without it.
    #[error("failed to tap attention: the model was loaded without its attention outputs")]
    NoAttentionOutput,
    /// Rows of another width than the residual stream.
    #[error("failed to run the head: rows are {found} wide, the model's are {expected}")]
    RowWidth {
        /// Width given.
        found: usize,
        /// Width needed.
        expected: usize,
    },
}

/// What is wrong with logits.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BadLogits {
    /// Neither finite nor minus infinity.
    #[error("entry {index} is {value}")]
    NotANumber {
        /// Vocabulary index.
        index: usize,
        /// The value.
        value: f32,
    },
    /// No token is allowed.
    #[error("every entry is minus infinity")]
    AllMasked,
    /// No entry at all.
    #[error("there are none")]
    Empty,
}
