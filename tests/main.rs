//! All integration tests in one binary: `cargo test --test suite contract::` selects.

mod cli;
mod contract;
mod engine;
mod executor;
mod figures;
mod golden;
mod ledger;
mod scenarios;
mod support;
mod table;
mod threads;
mod trace;
