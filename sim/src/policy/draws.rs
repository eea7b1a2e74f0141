//! The random streams of one decision.

use super::{At, MemoKey};
use crate::rng::{Purpose, Stream, StreamKey};

/// The streams that a policy may draw from at one eviction of one KV head.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    seed: u64,
    at: At,
}

impl Draws {
    /// Streams for the decision at `at` under the user's `seed`.
    #[must_use]
    pub fn new(seed: u64, at: At) -> Self {
        Self { seed, at }
    }

    fn key<'a>(&self, id: &'a str) -> StreamKey<'a> {
        StreamKey {
            seq: self.at.seq.get(),
            layer: self.at.layer.get(),
            step: self.at.eviction,
            ..StreamKey::new(self.seed, Purpose::Policy, id)
        }
    }

    /// The stream of the policy part `id` at this KV head and eviction.
    #[must_use]
    pub fn of_head(&self, id: &str) -> Stream {
        StreamKey { head: self.at.head.get() + 1, ..self.key(id) }.stream()
    }

    /// The stream of `id` that all KV heads of the layer share at this eviction.
    #[must_use]
    pub fn of_layer(&self, id: &str) -> Stream {
        self.key(id).stream()
    }

    /// The stream of `id` that all KV heads of the layer share at every eviction of the sequence.
    #[must_use]
    pub fn of_layer_fixed(&self, id: &str) -> Stream {
        StreamKey { step: 0, branch: 1, ..self.key(id) }.stream()
    }

    /// The key of work of the part `part` that depends on these draws for one KV head; `variant` tells apart the rest.
    #[must_use]
    pub fn key_of_head(&self, part: &'static str, variant: u64) -> MemoKey {
        MemoKey { head: u32::from(self.at.head.get()) + 1, ..self.key_of_layer(part, variant) }
    }

    /// As [`Draws::key_of_head`], for work that is the same for all heads of the layer.
    #[must_use]
    pub fn key_of_layer(&self, part: &'static str, variant: u64) -> MemoKey {
        MemoKey { seed: self.seed, eviction: self.at.eviction, head: 0, variant, part }
    }
}
