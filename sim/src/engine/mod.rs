//! The event engine: requests, branches, passes, blocks and virtual time. It moves counts and knows no tensors.
//!
//! ```text
//!  Workload ─► queue ─pop─► handle (decides, pure) ─effects─► apply (ledger, branch tree) ─records─► Observer
//!                ▲                                               │
//!                └────────────── later events ───────────────────┘
//! ```
//!
//! [`Event`]s drive, [`Record`]s report. Events are handled in the total order of [`EventKey`]; nothing else decides
//! what comes first, so equal workloads give equal logs, whatever the order in which requests are listed.

mod admission;
mod apply;
mod branch;
mod clock;
mod cost;
mod demand;
mod encode;
mod error;
mod event;
mod handle;
mod queue;
mod record;
mod step;
mod workload;

pub use branch::{BranchError, BranchTree, Node};
pub use cost::{CostModel, Pass, PassKind, UnitCost};
pub use error::{EngineError, WorkloadError};
pub use event::{Event, EventKey, Phase};
pub use queue::EventQueue;
pub use record::{Observer, Record, Stamp};
pub use step::{Checking, Limits, Settings, Summary, run};
pub use workload::{Eviction, Fork, Request, Workload};
