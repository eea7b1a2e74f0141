//! Simulated time. It moves only when an event is handled, and never backwards.

use super::{EngineError, EventKey};
use crate::types::Nanos;

/// The smallest step of time: what is decided at one instant and must follow it happens one step later.
pub(super) const INSTANT: Nanos = Nanos::new(1);

/// The present.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    now: Nanos,
}

impl Clock {
    /// Moves to the time of `key`.
    pub(super) fn advance(&mut self, key: EventKey) -> Result<(), EngineError> {
        if key.time < self.now {
            let detail = format!("the clock stands at {} ns", self.now);
            return Err(EngineError::Invariant { rule: "time never goes back", key, detail });
        }
        self.now = key.time;
        Ok(())
    }

    /// The present.
    pub(super) fn now(self) -> Nanos {
        self.now
    }
}

/// The time `delay` after the event of `key`.
pub(super) fn after(key: EventKey, delay: Nanos) -> Result<Nanos, EngineError> {
    match key.time.get().checked_add(delay.get()) {
        Some(time) => Ok(Nanos::new(time)),
        None => Err(EngineError::LimitReached { limit: "time (ns)", value: u64::MAX, key }),
    }
}
