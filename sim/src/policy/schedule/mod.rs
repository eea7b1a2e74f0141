//! Schedule policies: when an eviction is due.

pub mod decode_interval;
pub mod end_of_prefill;
pub mod every_n;
pub mod never;
pub mod on_overflow;

use super::{PolicyError, PolicySpec};

/// What has just happened to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The whole prompt is stored.
    PrefillDone,
    /// One decoded token was stored and has attended.
    DecodeStep,
}

/// What a schedule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// What has just happened.
    pub moment: Moment,
    /// Tokens that a head with the mean budget holds.
    pub stored: u32,
    /// C: the mean budget.
    pub capacity: u32,
    /// Decode steps so far.
    pub steps: u32,
}

/// Decides when to evict. All layers and heads of a sequence follow the same schedule.
pub trait Schedule: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// Whether an eviction is due.
    fn is_due(&self, tick: Tick) -> bool;

    /// The eviction period in tokens; absent when there is none.
    fn period(&self) -> Option<u32> {
        None
    }

    /// # Errors
    /// When the schedule cannot work with a budget of `capacity` tokens.
    fn check(&self, _capacity: u32) -> Result<(), PolicyError> {
        Ok(())
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;
}
