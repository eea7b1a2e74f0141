//! What can be wrong with a stream, a capacity or a replay of it.

use crate::trace::TraceError;

/// A block cache that cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// An id stands behind another block than before.
    #[error(
        "request {request}, block {block}: id {id} stands behind {found}, and before it stood behind {before}; ids must name all that comes before a block too"
    )]
    Chain {
        /// Request, from 0.
        request: u64,
        /// Block of its prompt, from 0.
        block: usize,
        /// The id.
        id: u64,
        /// What comes before it here.
        found: String,
        /// What came before it there.
        before: String,
    },
    /// There is nothing to replay.
    #[error("{stream} has no request")]
    Empty {
        /// Name of the stream.
        stream: String,
    },
    /// More than can be counted in 32 bits.
    #[error("{what}: more than {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are possible.
        limit: u64,
    },
    /// A text that names no capacity.
    #[error(
        "capacity `{given}`: accepted are blocks (`512`), bytes (`1.5GiB`; also B, KiB, MiB) and a share of all distinct blocks (`0.25`, `25%`)"
    )]
    Capacity {
        /// The text.
        given: String,
    },
    /// Bytes mean nothing without a model.
    #[error(
        "capacity `{given}`: {stream} does not say which model its blocks belong to, so bytes mean nothing; give blocks or a share"
    )]
    NoModel {
        /// The capacity.
        given: String,
        /// Name of the stream.
        stream: String,
    },
    /// A block size that differs from the stream's.
    #[error("{stream} has blocks of {found} tokens, and {asked} are asked for; its ids cannot be cut again")]
    BlockTokens {
        /// Name of the stream.
        stream: String,
        /// Tokens of its blocks.
        found: u32,
        /// Tokens asked for.
        asked: u32,
    },
    /// A parameter of a generator.
    #[error("stream `{stream}`: {what} is {found}; accepted: {accepted}")]
    Spec {
        /// The generator.
        stream: &'static str,
        /// The parameter.
        what: &'static str,
        /// The value found.
        found: String,
        /// What is accepted.
        accepted: String,
    },
    /// No generator has this name.
    #[error("no stream is called `{given}`; known: {}", known.join(", "))]
    UnknownStream {
        /// The name given.
        given: String,
        /// The known names.
        known: Vec<&'static str>,
    },
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}
