//! Workloads: generated problems whose answers can be checked, for runs where accuracy is the measure.
//!
//! - [`chain`]: multi-step arithmetic over named variables, solved step by step.
//! - [`retrieval`]: something said once in a long text is asked for at its end.

pub mod chain;
mod draw;
pub mod retrieval;
