//! A prompt, prefilled once: every cell of a study forks from here.

use std::num::NonZeroUsize;

use super::live::QueryRing;
use crate::{
    decode::{DecodeError, Decoder, KvCache, Taps, greedy},
    error::ExecutorError,
    model::Model,
};

/// Cache and recent queries after a prompt, nothing evicted.
#[derive(Debug)]
pub struct Prefix {
    pub(super) cache: KvCache,
    pub(super) queries: QueryRing,
    pub(super) len: u32,
    pub(super) next: u32,
}

impl Prefix {
    /// Prefills `prompt` in chunks of at most `chunk` tokens and remembers the last `window` queries: at least as many as
    /// any stack that forks from here looks at.
    ///
    /// # Errors
    /// An empty prompt, and as [`Decoder::forward`].
    pub fn new(
        model: &mut Model,
        prompt: &[u32],
        chunk: NonZeroUsize,
        window: u32,
    ) -> Result<Self, ExecutorError> {
        let len = u32::try_from(prompt.len()).map_err(|_| DecodeError::PositionsExhausted)?;
        let mut queries = QueryRing::new(model.config(), window);
        let mut decoder = model.decoder()?;
        let taps = Taps { queries: window > 0, ..Taps::NONE };
        let remember = |_: &mut Decoder<'_>, pass: &_| {
            queries.take(pass);
            Ok::<_, DecodeError>(())
        };
        let last = decoder.prefill(prompt, chunk, taps, remember)?;
        let next = greedy(&decoder.last_logits(&last)?);
        Ok(Self { cache: decoder.cache().clone(), queries, len, next })
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none; never, since an empty prompt is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most probable token after the prompt.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }
}
