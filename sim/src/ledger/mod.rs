//! Who holds which KV entries, and in which physical blocks.
//!
//! [`BlockPool`] knows blocks and how often each is held; [`Ledger`] knows what lives per branch, layer and KV head,
//! with the logical position of an entry kept apart from the slot it is stored in; [`check`] states what must hold
//! after every change. Nothing here knows time, events or policies.

mod blocks;
mod check;
mod error;
mod kept;
mod resident;

pub use blocks::{BlockPool, Release};
pub use check::check;
pub use error::LedgerError;
pub use kept::{Kept, KeptSet};
pub use resident::{BranchKey, Change, Ledger, Occupancy, Tracking};
