//! From a study and a trace to result tables: the public entry point.

mod assemble;
mod claims;
mod compare;
mod context;
mod error;
mod eviction;
mod eviction_series;
mod exit;
mod generated;
mod items;
mod lint;
mod next_token;
mod plan_columns;
mod pool;
mod reading;
mod recording;
mod repeats;
mod retained;
mod serve;
mod shard;
mod study;
mod timeline;
mod trees;

pub use assemble::assemble;
pub use claims::claim_results;
pub(crate) use context::{read_problems, read_sequences};
pub use error::RunError;
pub use generated::{Generated, source_info};
pub use lint::never_triggered;
pub use plan_columns::plan_columns;
pub use pool::pool_measures;
pub use serve::{ArmResult, ClaimResult, Measured, claims, serve_arms, serve_timeline};
pub use shard::{Shard, batches, usual_batch};
pub use study::{Finding, Keep, RunOptions, Study, study};
pub use timeline::timeline;
pub use trees::{TreeMeasures, tree_keys, tree_log_digest, tree_problem};
