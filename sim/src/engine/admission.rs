//! Who may run: a request is admitted when its peak demand fits beside the demands of those that run.
//!
//! Demands are known before a run, so an admitted request can never run out of blocks, and nothing has to be
//! preempted. Who does not fit now waits in order of arrival; who never fits is refused.

use super::demand::Demand;
use crate::types::ReqId;
use std::collections::{BTreeMap, VecDeque};

/// What to do with a request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It runs.
    Admit,
    /// It waits.
    Wait {
        /// Blocks that nobody has reserved.
        unreserved: u64,
    },
    /// It can never run.
    Refuse {
        /// Blocks that there are.
        capacity: u32,
    },
}

/// Reservations and the waiting line.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    capacity: Option<u32>,
    demands: BTreeMap<ReqId, Demand>,
    reserved: BTreeMap<ReqId, u64>,
    total: u64,
    waiting: VecDeque<ReqId>,
}

impl Admission {
    pub(super) fn new(capacity: Option<u32>, demands: BTreeMap<ReqId, Demand>) -> Self {
        Self { capacity, demands, reserved: BTreeMap::new(), total: 0, waiting: VecDeque::new() }
    }

    /// Blocks that a request needs at most.
    pub(super) fn needed(&self, req: ReqId) -> u64 {
        self.demands.get(&req).map_or(0, |demand| demand.peak_blocks)
    }

    /// What happens to `req` when it arrives now.
    pub(super) fn judge(&self, req: ReqId) -> Verdict {
        let Some(capacity) = self.capacity else {
            return Verdict::Admit;
        };
        let needed = self.needed(req);
        if needed > u64::from(capacity) {
            return Verdict::Refuse { capacity };
        }
        let unreserved = u64::from(capacity) - self.total;
        if self.waiting.is_empty() && needed <= unreserved {
            Verdict::Admit
        } else {
            Verdict::Wait { unreserved }
        }
    }

    /// Those in the waiting line, from its head, that fit once `leaving` is gone.
    pub(super) fn next_after(&self, leaving: ReqId) -> Vec<ReqId> {
        let Some(capacity) = self.capacity else {
            return Vec::new();
        };
        let gone = self.reserved.get(&leaving).copied().unwrap_or(0);
        let mut unreserved = u64::from(capacity) - (self.total - gone);
        let fits = |&req: &ReqId| match unreserved.checked_sub(self.needed(req)) {
            Some(rest) => {
                unreserved = rest;
                true
            }
            None => false,
        };
        self.waiting.iter().copied().take_while(fits).collect()
    }

    /// Reserves the demand of `req`, which leaves the waiting line if it was there.
    pub(super) fn reserve(&mut self, req: ReqId) -> u64 {
        self.waiting.retain(|&waiting| waiting != req);
        let needed = self.needed(req);
        self.reserved.insert(req, needed);
        self.total += needed;
        needed
    }

    /// Gives back the reservation of `req`.
    pub(super) fn give_back(&mut self, req: ReqId) {
        self.total -= self.reserved.remove(&req).unwrap_or(0);
    }

    /// Puts `req` at the end of the waiting line.
    pub(super) fn wait(&mut self, req: ReqId) {
        self.waiting.push_back(req);
    }
}
