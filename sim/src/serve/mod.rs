//! Serving: requests that fork into branches, in simulated time on a described device.
//!
//! [`ProblemDecisions`] say what is to be done, as plain numbers; where they come from (a replay of recorded branch trees, a
//! generator, a published protocol) is nobody's business here.

mod decisions;

pub use decisions::{BranchDecisions, PartialPass, ProblemDecisions};
