//! The block cache: prompts cut into blocks that later requests find again, under a limit.
//!
//! A [`BlockStream`] is what is asked for, request by request; [`replay()`] serves it from a cache of physical blocks and counts
//! hits, misses and tokens that had to be computed again. Blocks are known by chained ids: equal ids mean equal tokens in the
//! block and in all blocks before it. Who goes when the cache is full is ranked by a [`crate::policy::pool`] policy; who may go,
//! and how ties end, is decided here:
//!
//! - Only full blocks are kept, and at least one token of a prompt is always computed, as in vLLM.
//! - The blocks of a running request have a reader and stay. When nobody else is left to go, further blocks of the request are
//!   computed but not kept.
//! - A block whose continuation is cached stays (unless the policy says otherwise): without it nobody could find the rest.
//! - Equal ranks end with the block farther from the root, then the one that appeared later.

mod capacity;
mod error;
mod flat;
mod free;
mod intern;
mod replay;
mod source;
mod stream;
pub mod synth;

pub use capacity::Capacity;
pub use error::PoolError;
pub use replay::{Counts, Limits, PoolEvent, replay, replay_events, replay_told, replay_with};
pub use source::{from_problems, from_trace};
pub use stream::{Asked, BlockStream, StreamBuilder};
