//! Running a decoder: a cache with original positions, taps, logit lens, exit at a layer.
//!
//! Responsible for one sequence at a time, or several in one pass ([`Lanes`]). Not responsible for what is kept (a policy says so through
//! [`Decoder::retain`]), nor for where tapped arrays go.

mod ask;
mod bias;
mod blocks;
mod cache;
mod decoder;
mod error;
mod exp;
mod facts;
mod head;
mod lanes;
mod pass;
mod store;
mod walk;

pub use ask::{Ask, Attending};
pub(crate) use blocks::KvBlock;
pub use cache::{KvCache, LayerCache, Rewrite};
pub(crate) use decoder::greedy;
pub use decoder::{Decoder, Flow, LayerDone, Select};
pub use error::{BadLogits, DecodeError, Quantity};
pub use facts::{Distribution, TopToken};
pub(crate) use head::NewHead;
pub use head::{Head, LensFacts, LensOptions, RawLens};
pub use lanes::Lanes;
pub use pass::{Pass, Taps};
