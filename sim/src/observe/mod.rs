//! Observers: what is made of the records of a run. They count; engine and policies do not.
//!
//! [`LogDigest`] fingerprints the log, [`EventLog`] writes it, [`Memory`] measures KV occupancy, and [`Fanout`] hands
//! every record to several of them.

mod chrome;
mod digest;
mod fanout;
mod log;
mod memory;

pub use chrome::ChromeTrace;
pub use digest::LogDigest;
pub use fanout::Fanout;
pub use log::EventLog;
pub use memory::{Memory, MemoryReport, OccupancyPoint, SequenceMemory};
