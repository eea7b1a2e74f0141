//! One file a verb: raw arguments, checked options, one library call, output.

mod check;
mod chrome;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod exec;
pub(crate) mod fidelity;
mod findings;
mod folder;
pub(crate) mod inspect;
pub(crate) mod items;
pub(crate) mod list;
pub(crate) mod live;
pub(crate) mod merge;
pub(crate) mod model;
pub(crate) mod paper;
pub(crate) mod pareto;
pub(crate) mod plot;
pub(crate) mod record;
pub(crate) mod record_branches;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod runtime;
mod sample;
pub(crate) mod setup;
pub(crate) mod shard;
pub(crate) mod status;
pub(crate) mod studies;
pub(crate) mod study;
pub(crate) mod sweep;
pub(crate) mod sweep_plan;
pub(crate) mod trace;
pub(crate) mod tune;
pub(crate) mod validate;

/// A whole number that is not 0.
pub(crate) fn above_0<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "accepted is a whole number from 1".to_owned())
}
