//! From a study and a trace to result tables: the public entry point.

mod error;
mod eviction;
mod exit;
mod lint;
mod next_token;
mod plan_columns;
mod pool;
mod reading;
mod recording;
mod serve;
mod study;
mod timeline;
mod trees;

pub use error::RunError;
pub use lint::never_triggered;
pub use plan_columns::plan_columns;
pub use serve::{ArmResult, ClaimResult, claims, serve_arms};
pub use study::{Generated, RunOptions, source_info, study};
pub use timeline::timeline;
