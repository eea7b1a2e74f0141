//! From a study and a trace to result tables: the public entry point.

mod digest;
mod error;
mod eviction;
mod exit;
mod lint;
mod recording;
mod rows;
mod stats;
mod study;

pub use error::RunError;
pub use study::{RunOptions, source_info, study};
