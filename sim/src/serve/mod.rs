//! Serving: requests that fork into branches, in simulated time on a described device.
//!
//! [`ProblemDecisions`] say what is to be done, as plain numbers; where they come from (a replay of recorded branch trees, a
//! generator, a published protocol) is nobody's business here. [`run()`] serves them: prompts in chunks, all branches that generate in one
//! batch (continuous batching), under a budget of physical blocks. A branch that finds no block takes those of a younger one, which computes
//! its tokens again later, counted apart. Prefixes are shared by reference, copied on the first write. When all branches of a problem have
//! generated, the verifier runs or is skipped, and the problem is answered.
//!
//! Time comes from a [`crate::cost::BatchCost`] and is an integer; records go to the observers of [`crate::observe`]. Which tokens an eviction
//! keeps is left to the replay of tensors: here the first and the most recent ones stand for any choice, since only counts
//! decide memory and time.

mod decisions;
mod error;
mod plan;
mod report;
mod run;
mod state;
mod workload;

pub use decisions::{BranchDecisions, Follows, PartialPass, ProblemDecisions};
pub use error::ServeError;
pub use report::{PhaseTimes, ProblemOutcome, ServeReport};
pub use run::run;
pub use workload::{
    Arrivals, BranchEviction, Growth, PrefixMemory, Scheduler, ServeSettings, SharedEviction,
};
