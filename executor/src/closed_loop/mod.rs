//! The closed loop: the simulator's policy objects on the cache of the running model.
//!
//! Data flow: a prompt is prefilled once ([`Prefix`]); each cell forks from there as a [`LiveRun`], which feeds tokens, shows
//! the cache to the stack ([`LiveHead`]) and carries out its evictions; [`exec`] runs items × cells, freely or
//! teacher-forced, and writes rows of `arm = real`.
//!
//! The order of events at a step is that of the replay (`kvlab_sim::replay`), so that equal states give equal evictions.
//! Not responsible for policies, nor for what an answer is worth: a grader says so.

mod asked;
mod divergence;
mod driver;
mod error;
mod forced;
mod free;
pub(crate) mod kept;
mod known;
mod live;
mod outcome;
mod prefix;
pub(crate) mod rows;
mod run;
pub(crate) mod study;

pub(crate) use forced::feed;
pub(crate) use free::decode;
pub(crate) use rows::{manifest_of, run_keys};

pub use driver::KeptTokens;
pub use error::ClosedLoopError;
pub use forced::{ForcedRun, force};
pub use free::{FinishReason, FreeRun, Limits, generate};
pub use live::{LiveHead, QueryRing};
pub use outcome::Footprint;
pub use prefix::Prefix;
pub use run::{LiveCell, LivePass, LiveRun, RecordedRun};
pub use study::{ExecPlan, Mode, exec, exec_within};
