//! Policies: what to keep, when to evict, when to stop at a layer, what branches share, which one answers.
//!
//! A family is a trait, a policy is one file with its `SPEC` and its own `Params`, and a registry line makes it
//! known everywhere: in scenarios, in `kvlab list policies` and in the contract suite. Policies propose: they see
//! borrowed views, never a ledger, an engine or a counter. [`Stack::evict`](compose::Stack::evict) disposes: it
//! protects sinks and recent tokens, enforces the budget and breaks ties.

pub mod attend;
mod attention;
pub mod budget;
pub mod compose;
pub mod confidence;
pub(crate) mod doc;
mod draws;
mod error;
pub mod exit;
pub(crate) mod lists;
mod magnitude;
mod memo;
mod params;
pub mod pool;
pub mod registry;
pub mod reserve;
pub mod schedule;
pub mod score;
pub mod select;
pub mod share;
mod spec;
pub mod store;
pub mod verify;
mod view;
pub mod winner;

pub use attention::Weights;
pub(crate) use attention::{TILE, divide_by_terms, mean_attention, tiles, weights_from_logits};
pub use doc::ParamDoc;
pub use draws::Draws;
pub use error::PolicyError;
pub use magnitude::Magnitude;
pub use memo::{Memo, MemoKey};
pub use params::RawParams;
pub(crate) use params::from_yaml_text;
pub use spec::{Entry, Family, Law, Needs, PolicySpec, Randomness};
pub(crate) use view::scale;
pub use view::{At, HeadData, HeadView, Peer};
