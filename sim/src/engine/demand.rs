//! Checks a workload before it runs, and computes what each request will need at most.

use super::{Eviction, Fork, Request, Workload, WorkloadError};
use crate::ledger::{BranchKey, Kept, Tracking};
use crate::types::{BranchId, KvHead, LayerIdx, ReqId};
use std::collections::BTreeMap;

/// What a request will need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// Blocks at the worst moment, as if no block were ever shared between branches.
    pub(super) peak_blocks: u64,
    /// Events that it causes, at most, when each prefill pass computes one token.
    pub(super) events: u64,
}

/// Demands of all requests.
pub(super) fn demands(
    workload: &Workload,
    tracking: Tracking,
) -> Result<BTreeMap<ReqId, Demand>, WorkloadError> {
    workload.shape.check()?;
    if workload.block_tokens == 0 {
        return Err(WorkloadError::Zero { what: "block_tokens" });
    }
    let mut demands = BTreeMap::new();
    for request in &workload.requests {
        if demands.insert(request.req, demand(workload, tracking, request)?).is_some() {
            return Err(WorkloadError::DuplicateRequest { req: request.req });
        }
    }
    Ok(demands)
}

/// One branch as planned: where it starts, with how many entries per stream, and what is evicted when.
struct Line<'w> {
    key: BranchKey,
    start: u32,
    counts: Vec<u64>,
    len: u32,
    evictions: &'w [Eviction],
}

fn demand(workload: &Workload, tracking: Tracking, request: &Request) -> Result<Demand, WorkloadError> {
    let Request { req, prompt_len, len, .. } = *request;
    if prompt_len == 0 || prompt_len > len {
        return Err(WorkloadError::PromptLength { req, prompt_len, len });
    }
    let counts = vec![0; workload.streams()];
    let root = Line { key: BranchKey::root(req), start: 0, counts, len, evictions: &request.evictions };
    let mut demand = Demand { peak_blocks: root.peak_blocks(workload, tracking)?, events: root.events() };
    let mut lines = BTreeMap::from([(BranchId::new(0), root)]);
    for fork in &request.forks {
        let line = branch_off(request, fork, &lines)?;
        demand.peak_blocks += line.peak_blocks(workload, tracking)?;
        demand.events += line.events();
        lines.insert(fork.child, line);
    }
    Ok(demand)
}

fn branch_off<'w>(
    request: &Request,
    fork: &'w Fork,
    lines: &BTreeMap<BranchId, Line<'w>>,
) -> Result<Line<'w>, WorkloadError> {
    let key = BranchKey { req: request.req, branch: fork.child };
    let Fork { parent, at_seen, len, .. } = *fork;
    let refuse = |why| WorkloadError::Fork { branch: key, parent: parent.get(), at_seen, len, why };
    if lines.contains_key(&fork.child) {
        return Err(refuse("the branch exists already"));
    }
    let Some(parent) = lines.get(&parent) else {
        return Err(refuse("its parent must be listed before it"));
    };
    if at_seen < request.prompt_len.max(parent.start) || at_seen > parent.len {
        return Err(refuse("a fork lies between the end of the prompt and the end of its parent"));
    }
    if len < at_seen {
        return Err(refuse("it ends before it begins"));
    }
    Ok(Line { key, start: at_seen, counts: parent.counts_at(at_seen), len, evictions: &fork.evictions })
}

impl Line<'_> {
    /// Entries per stream after `seen` tokens, an eviction at that length included.
    fn counts_at(&self, seen: u32) -> Vec<u64> {
        let (from, mut counts) = match self.evictions.iter().rev().find(|eviction| eviction.seen <= seen) {
            None => (self.start, self.counts.clone()),
            Some(eviction) => {
                (eviction.seen, (0..self.counts.len()).map(|at| eviction.kept.count(at)).collect())
            }
        };
        counts.iter_mut().for_each(|count| *count += u64::from(seen - from));
        counts
    }

    /// Blocks at the worst moment; checks the evictions on the way.
    fn peak_blocks(&self, workload: &Workload, tracking: Tracking) -> Result<u64, WorkloadError> {
        let blocks = |counts: &[u64]| -> u64 {
            counts.iter().map(|count| count.div_ceil(u64::from(workload.block_tokens))).sum()
        };
        let (mut counts, mut seen, mut peak) = (self.counts.clone(), self.start, blocks(&self.counts));
        for eviction in self.evictions {
            if eviction.seen <= seen || eviction.seen > self.len {
                let from = seen.saturating_add(1);
                return Err(WorkloadError::EvictionOrder {
                    branch: self.key,
                    seen: eviction.seen,
                    from,
                    len: self.len,
                });
            }
            counts.iter_mut().for_each(|count| *count += u64::from(eviction.seen - seen));
            seen = eviction.seen;
            peak = peak.max(blocks(&counts));
            self.keep(workload, tracking, eviction, &mut counts)?;
        }
        counts.iter_mut().for_each(|count| *count += u64::from(self.len - seen));
        Ok(peak.max(blocks(&counts)))
    }

    fn keep(
        &self,
        workload: &Workload,
        tracking: Tracking,
        eviction: &Eviction,
        counts: &mut [u64],
    ) -> Result<(), WorkloadError> {
        let (branch, seen, expected, found) =
            (self.key, eviction.seen, counts.len(), eviction.kept.streams());
        if expected != found {
            return Err(WorkloadError::KeptSets { branch, seen, found, expected });
        }
        if tracking == Tracking::Positions && matches!(eviction.kept, Kept::Sets(_)) {
            return Err(WorkloadError::PositionsNeeded { branch, seen });
        }
        let places = workload.shape.layer_ids().flat_map(|layer| {
            workload.shape.kv_head_ids().map(move |head| (layer, head)).collect::<Vec<(LayerIdx, KvHead)>>()
        });
        for ((at, live), (layer, head)) in counts.iter_mut().enumerate().zip(places) {
            let kept = eviction.kept.count(at);
            if kept > *live {
                return Err(WorkloadError::KeptTooMany { branch, layer, head, seen, kept, live: *live });
            }
            *live = kept;
        }
        Ok(())
    }

    /// Arrival or fork, three events a pass, evictions, one more scheduling, release.
    fn events(&self) -> u64 {
        3 * u64::from(self.len - self.start) + self.evictions.len() as u64 + 3
    }
}
