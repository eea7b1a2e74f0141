//! All integration tests in one binary: `cargo test --test suite contract::` selects.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::cast_possible_truncation, reason = "test sizes are small")]

mod cli;
mod contract;
mod drawn;
mod durability;
mod engine;
mod executor;
mod fidelity;
mod figures;
mod fuzz;
mod fuzz_models;
mod golden;
mod ledger;
mod pool;
mod reading;
mod refusals;
mod scenarios;
mod serve;
mod support;
mod sweeps;
mod table;
mod threads;
mod trace;
mod trees;
mod tune;
