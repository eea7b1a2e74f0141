//! Deterministic replay of recorded LLM traces.
//!
//! ```text
//!  trace ──► replay (tensors: scores, kept sets, proxies) ──► engine (counts: requests, blocks, virtual time)
//!   │                         ▲                                   │ records
//!   └─► facts (entropies) ────┤                                   ▼
//!  scenario ──► plan of cells ┘                      observers ──► results: cells + series
//! ```
//!
//! Nothing here reads a clock, the environment or a thread's identity: the same trace, scenario and seed give the
//! same bytes on every machine and for every thread count. Policies propose, the engine disposes, observers count.

pub mod contract;
pub mod cost;
pub mod engine;
pub mod fidelity;
pub mod ledger;
pub mod metrics;
pub mod num;
pub mod observe;
pub mod policy;
pub mod pool;
pub mod replay;
pub mod results;
pub mod rng;
pub mod rope;
pub mod run;
pub mod scenario;
pub mod serve;
pub mod steps;
pub mod table;
pub mod trace;
pub mod trees;
pub mod tune;
pub mod types;
