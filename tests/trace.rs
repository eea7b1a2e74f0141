//! The trace format: round trips, interrupted recordings, damage, hostile content, versions.

mod branches;
mod corruption;
mod edit;
mod facts;
mod fixture;
mod hostile;
mod looking;
mod mutation;
mod recording;
mod round_trip;
mod support;
mod times;
mod weights;

pub(crate) use support::{files, reseal, seal_manifest};
