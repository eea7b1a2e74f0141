//! The event queue: a binary heap that owns the total order and never goes back.

use super::{EngineError, Event, EventKey};
use crate::types::Nanos;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: EventKey,
    event: Event,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

/// Events to come, in the order of their [`EventKey`]s.
#[derive(Clone, Debug, Default)]
pub struct EventQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    scheduled: u64,
    last: Option<EventKey>,
}

impl EventQueue {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Schedules `event` at `time`.
    ///
    /// # Errors
    /// [`EngineError::Invariant`] when it would come before an event that has already happened.
    pub fn push(&mut self, time: Nanos, event: Event) -> Result<EventKey, EngineError> {
        let key = EventKey::new(time, &event, self.scheduled);
        if let Some(last) = self.last.filter(|&last| key < last) {
            let detail = format!("{event:?} is scheduled at {key}");
            return Err(EngineError::Invariant {
                rule: "no event is scheduled before the present one",
                key: last,
                detail,
            });
        }
        self.scheduled += 1;
        self.heap.push(Reverse(Entry { key, event }));
        Ok(key)
    }

    /// The next event; `None` when there is none.
    ///
    /// # Errors
    /// [`EngineError::Invariant`] when order is lost, which `push` rules out.
    pub fn pop(&mut self) -> Result<Option<(EventKey, Event)>, EngineError> {
        let Some(Reverse(Entry { key, event })) = self.heap.pop() else {
            return Ok(None);
        };
        if let Some(last) = self.last.filter(|&last| key < last) {
            let detail = format!("{event:?} at {key} comes after it");
            return Err(EngineError::Invariant { rule: "events happen in key order", key: last, detail });
        }
        self.last = Some(key);
        Ok(Some((key, event)))
    }

    /// Events to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ReqId;

    #[test]
    fn the_past_is_refused_even_within_an_instant() {
        let now = Nanos::new(5);
        let mut queue = EventQueue::new();
        queue.push(now, Event::End).unwrap();
        queue.pop().unwrap();
        let arrival = Event::RequestArrived { req: ReqId::new(0) };
        assert!(matches!(queue.push(now, arrival), Err(EngineError::Invariant { .. })));
        assert!(queue.push(Nanos::new(6), arrival).is_ok());
    }

    #[test]
    fn equal_meanings_leave_in_the_order_they_came() {
        let mut queue = EventQueue::new();
        let first = queue.push(Nanos::ZERO, Event::End).unwrap();
        let second = queue.push(Nanos::ZERO, Event::End).unwrap();
        assert_eq!(queue.pop().unwrap().unwrap().0, first);
        assert_eq!(queue.pop().unwrap().unwrap().0, second);
    }
}
