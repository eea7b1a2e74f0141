//! One file a verb: raw arguments, checked options, one library call, output.

mod check;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod exec;
pub(crate) mod fidelity;
pub(crate) mod inspect;
pub(crate) mod items;
pub(crate) mod list;
pub(crate) mod live;
pub(crate) mod merge;
pub(crate) mod model;
pub(crate) mod paper;
pub(crate) mod plot;
pub(crate) mod record;
pub(crate) mod record_branches;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod runtime;
pub(crate) mod setup;
pub(crate) mod shard;
pub(crate) mod status;
pub(crate) mod study;
pub(crate) mod sweep;
pub(crate) mod sweep_plan;
pub(crate) mod trace;
pub(crate) mod tune;
pub(crate) mod validate;
