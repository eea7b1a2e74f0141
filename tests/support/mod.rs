//! What several test modules share.

pub(crate) mod alloc;
pub(crate) mod mutate;
pub(crate) mod naive;
pub(crate) mod synth;
