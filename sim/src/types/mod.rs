//! Index spaces, amounts and shapes: the words everything else is written in.
//!
//! Each index space is its own type, so that a logical position can never be used as a cache slot, nor a query
//! head as a KV head. None of them dereferences; `.get()` and `.idx()` leave on purpose.

mod amount;
mod index;
mod shape;

pub use amount::{Bytes, Nanos, Tokens};
pub use index::{BlockId, BranchId, KvHead, LayerIdx, Pos, QHead, ReqId, SeqIdx, Slot, TokenId};
pub use shape::{ModelShape, ShapeError};
