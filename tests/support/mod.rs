//! What several test modules share.

pub(crate) mod heads;
pub(crate) mod naive;
pub(crate) mod stacks;
pub(crate) mod synth;
