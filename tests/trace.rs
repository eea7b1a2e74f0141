//! The trace format: round trips, interrupted recordings, damage, hostile content, versions.

mod branches;
mod corruption;
mod facts;
mod fixture;
mod hostile;
mod mutation;
mod recording;
mod round_trip;
mod support;
mod weights;
