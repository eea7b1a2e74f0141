//! The executor against an independent implementation, and against itself.
//!
//! Expected numbers come from `tests/golden/forward` (made with another implementation: see ORIGIN.md there). Tests set up
//! what they need by themselves and fail when it cannot be had.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod branches;
mod buglog;
mod chain_text;
mod device;
mod exported;
mod families;
pub(crate) mod gguf_files;
mod lanes;
mod model_check;
mod parity;
mod published;
mod record;
mod setup;
pub(crate) mod support;
mod times;
mod tiny;
