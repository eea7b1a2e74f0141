//! What can stop a study.

use crate::cost::CostError;
use crate::engine::EngineError;
use crate::policy::PolicyError;
use crate::pool::PoolError;
use crate::replay::ReplayError;
use crate::results::ResultsError;
use crate::scenario::ScenarioError;
use crate::serve::ServeError;
use crate::table::TableError;
use crate::trace::TraceError;

/// A study that cannot be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A replay failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The event engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A result row could not be stored.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A cell cannot run.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A stream of requests cannot be served.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A serving run failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A part could not be kept.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The scenario in a plan is none.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A cost model cannot be made.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The trace has no sequence that the study could use.
    #[error(
        "the trace `{source_name}` has no sequence to replay: eviction and exit policies need recorded sequences with tensors or lens facts, branch trees and requests have none"
    )]
    NoSequences {
        /// Name of the trace.
        source_name: String,
    },
    /// The head whose tokens are to be written down is not there.
    #[error(
        "eviction.retained.{key} is {found}, and the trace `{source_name}` has none of that number; accepted: 0 to {last}"
    )]
    NoSuchHead {
        /// The key.
        key: &'static str,
        /// Its value.
        found: u32,
        /// Name of the trace.
        source_name: String,
        /// The largest value that there is.
        last: u32,
    },
    /// The trace has no branch trees.
    #[error(
        "the trace `{source_name}` has no branch trees: record some with `kvlab record --branches N`, or generate them with `kvlab trace synth`"
    )]
    NoProblems {
        /// Name of the trace.
        source_name: String,
    },
    /// Decisions about layers of one model under the cost of another.
    #[error(
        "the cost model is of a model with {found} layers, and the trace `{source_name}` of one with {layers}: exits after a layer do not carry over; accepted: a cost \
         model of {layers} layers (`kvlab list costs`), or `unit`"
    )]
    CostLayers {
        /// Layers of the cost model.
        found: u16,
        /// Name of the trace.
        source_name: String,
        /// Layers of the trace's model.
        layers: u16,
    },
    /// There is no such serving arm.
    #[error("the scenario has no serving arm `{label}`; accepted: {}", if known.is_empty() { "none, it has no `serve` study".to_owned() } else { known.join(", ") })]
    NoArm {
        /// What was asked for.
        label: String,
        /// The arms that there are.
        known: Vec<String>,
    },
    /// A serving arm whose stack looks at what was not recorded.
    #[error("the serving arm `{label}` cannot be served: {reason}")]
    Unserved {
        /// The arm.
        label: String,
        /// Why.
        reason: String,
    },
    /// More rows than a table of problems should have.
    #[error(
        "{cells} cells over {problems} problems make too many rows a problem; accepted: at most {most} rows, or `per_problem: false` under `trees`"
    )]
    TooManyRows {
        /// Cells.
        cells: usize,
        /// Problems.
        problems: usize,
        /// Most rows.
        most: usize,
    },
    /// The worker threads could not be started.
    #[error("{threads} worker threads could not be started: {detail}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        detail: String,
    },
}
