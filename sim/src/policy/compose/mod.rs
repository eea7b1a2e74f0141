//! Compositions: one policy of each eviction family, with the budget they share.

pub mod full;
pub mod random;
pub mod snapkv;
pub mod snapkv_prefill;
mod spec;
mod stack;
pub mod streaming_llm;
pub mod vase_attnv;
pub mod vase_dkv;

pub use spec::{CompositionEntry, KeepOrder, Knobs, Part, StackSpec};
pub use stack::{Eviction, Reason, Stack};
