//! What several test modules share.

pub(crate) mod naive;
pub(crate) mod synth;
