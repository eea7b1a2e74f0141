//! One observer that stands for several.

use crate::engine::{Observer, Record, Stamp};

/// Hands every record to each of its observers, in the order given.
#[derive(Default)]
pub struct Fanout<'a> {
    observers: Vec<&'a mut dyn Observer>,
}

impl<'a> Fanout<'a> {
    /// A fan-out to these observers; none is fine.
    #[must_use]
    pub fn new(observers: Vec<&'a mut dyn Observer>) -> Self {
        Self { observers }
    }
}

impl Observer for Fanout<'_> {
    fn note(&mut self, stamp: Stamp, record: &Record<'_>) {
        for observer in &mut self.observers {
            observer.note(stamp, record);
        }
    }
}
