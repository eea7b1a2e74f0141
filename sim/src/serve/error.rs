//! What ends a serving run early.

use crate::ledger::LedgerError;

/// A run that could not be finished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Decisions that contradict each other.
    #[error("problem `{item}`{}: {why}", branch.map_or(String::new(), |branch| format!(", branch {branch}")))]
    Decisions {
        /// The problem.
        item: String,
        /// The branch, from 0.
        branch: Option<u32>,
        /// What is wrong, with numbers.
        why: String,
    },
    /// Nothing can go on although problems are left. This is never the user's fault.
    #[error("no progress at {nanos} ns: {open} problems are open, {held} of {capacity} blocks are held")]
    Stuck {
        /// Simulated time.
        nanos: u64,
        /// Problems that arrived and are not over.
        open: usize,
        /// Blocks held.
        held: u64,
        /// Blocks that there are, as text.
        capacity: String,
    },
    /// More passes than the work could need: branches push each other out without end.
    #[error(
        "{passes} passes at {nanos} ns are more than the work can need: branches push each other out without end"
    )]
    Endless {
        /// Passes so far.
        passes: u64,
        /// Simulated time.
        nanos: u64,
    },
    /// Fewer recorded arrivals than problems.
    #[error("`serve.arrivals.millis` has {given} times, accepted is one for each of the {problems} problems")]
    Arrivals {
        /// Times given.
        given: usize,
        /// Problems to serve.
        problems: usize,
    },
    /// A pass or an arrival lies beyond the end of simulated time.
    #[error(
        "simulated time comes to {nanos} ns, accepted is at most {latest}: the cost model or the arrivals are out of scale"
    )]
    TooLong {
        /// The time asked for.
        nanos: u64,
        /// The latest there is.
        latest: u64,
    },
    /// The ledger refused a change. This is never the user's fault.
    #[error("at {nanos} ns: {source}")]
    Ledger {
        /// Simulated time.
        nanos: u64,
        /// What it refused.
        source: LedgerError,
    },
}
