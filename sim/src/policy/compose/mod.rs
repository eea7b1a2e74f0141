//! Compositions: one policy of each eviction family, with the budget they share.

pub mod adakv;
pub mod attn_range;
pub mod criticalkv;
pub mod cur;
pub mod curdkv;
mod evict;
pub mod evict_large_range;
pub mod expected_attention;
pub mod full;
pub mod h2o;
pub mod h2o_normalised;
pub mod keydiff;
pub mod knorm;
pub mod lagkv;
pub mod leverage;
pub mod oracle;
pub mod pyramidkv;
pub mod r_kv;
pub mod r_kv_vase;
pub mod random;
pub mod snapkv;
pub mod snapkv_prefill;
mod spec;
mod stack;
mod state;
pub mod streaming_llm;
pub mod tova;
pub mod vase_attnv;
pub mod vase_dkv;
pub mod vatp;

pub use evict::{Eviction, HeadInput, Reason};
pub use spec::{CompositionEntry, Driver, KeepOrder, Knobs, Part, StackSpec};
pub use stack::Stack;
pub use state::{HeadState, accumulate, prompt_mass};
