//! Workloads: generated problems whose answers can be checked, for runs where accuracy is the measure.
//!
//! - [`chain`]: multi-step arithmetic over named variables, solved step by step.

pub mod chain;
