//! Branches: what they share, and what they keep to themselves.

use super::{Outcome, STREAMS, checked, keep_last, outcome, request, workload};
use kvlab_sim::engine::{Eviction, Fork, Request, Settings, Workload};
use kvlab_sim::ledger::Tracking;
use kvlab_sim::types::BranchId;
use proptest::prelude::*;
use serde_json::Value;

fn forked(root_evicts: bool, child_evicts: bool) -> Workload {
    let child_evictions = if child_evicts { vec![keep_last(14, 6)] } else { Vec::new() };
    let (parent, child) = (BranchId::new(0), BranchId::new(1));
    let fork = Fork { parent, child, at_seen: 10, len: 18, evictions: child_evictions };
    let evictions = if root_evicts { vec![keep_last(12, 3)] } else { Vec::new() };
    workload(vec![Request { evictions, forks: vec![fork], ..request(0, 6, 16) }])
}

fn with_positions() -> Settings {
    Settings { tracking: Tracking::Positions, ..checked() }
}

/// What a branch stores, over its life: tokens seen, entries, blocks.
fn stored(outcome: &Outcome, branch: u32) -> Vec<(Value, Value, Value)> {
    let lines = outcome.records("stored").into_iter().filter(move |line| line["branch"] == branch);
    lines.map(|line| (line["seen"].clone(), line["live_entries"].clone(), line["blocks"].clone())).collect()
}

fn any_forked_workload() -> impl Strategy<Value = Workload> {
    let cut = || prop::option::of((0..8u32, 0..6u32));
    (1..9u32, 0..12u32, prop::collection::vec((0..3u32, 0..12u32, 0..10u32, cut()), 0..4), cut()).prop_map(
        |(prompt_len, decode, plans, root_cut)| {
            let mut lengths = vec![(prompt_len, prompt_len + decode)];
            let mut forks = Vec::new();
            for (index, (parent, at, more, cut)) in plans.into_iter().enumerate() {
                let parent = (parent as usize).min(index);
                let (from, to) = lengths[parent];
                let (at_seen, len) = ((from + at).min(to), (from + at).min(to) + more);
                let evictions = cut.into_iter().filter_map(|cut| prefix_cut(at_seen, len, cut)).collect();
                let id = |index: usize| BranchId::new(u32::try_from(index).unwrap());
                forks.push(Fork { parent: id(parent), child: id(index + 1), at_seen, len, evictions });
                lengths.push((at_seen, len));
            }
            let evictions =
                root_cut.into_iter().filter_map(|cut| prefix_cut(prompt_len, lengths[0].1, cut)).collect();
            workload(vec![Request { evictions, forks, ..request(0, prompt_len, lengths[0].1) }])
        },
    )
}

/// An eviction some tokens after `start` that leaves the tokens which came last, all of them after `start`.
fn prefix_cut(start: u32, len: u32, (after, keep): (u32, u32)) -> Option<Eviction> {
    let seen = start + 1 + after;
    (seen <= len).then(|| keep_last(seen, keep.min(seen - start)))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn forked_requests_never_need_more_than_they_reserve(workload in any_forked_workload()) {
        for settings in [checked(), with_positions()] {
            let free = outcome(&workload, &settings);
            let reserved = free.records("admitted")[0]["reserved_blocks"].as_u64().unwrap();
            let tight = Workload { capacity_blocks: Some(u32::try_from(reserved).unwrap()), ..workload.clone() };
            prop_assert_eq!(free.log, outcome(&tight, &settings).log);
        }
    }

    #[test]
    fn branches_in_one_pool_measure_as_if_alone(workload in any_forked_workload()) {
        let counted = outcome(&workload, &checked());
        let listed = outcome(&workload, &with_positions());
        prop_assert_eq!(&counted.memory, &listed.memory);
        prop_assert_eq!(counted.records("released").len(), workload.requests[0].forks.len() + 1);
    }
}

#[test]
fn evictions_of_a_child_leave_its_parent_untouched_and_vice_versa() {
    let [neither, root, child] = [(false, false), (true, false), (false, true)]
        .map(|(r, c)| outcome(&forked(r, c), &with_positions()));
    assert_eq!(stored(&neither, 0), stored(&child, 0));
    assert_eq!(stored(&neither, 1), stored(&root, 1));
    assert_ne!(stored(&neither, 0), stored(&root, 0));
    assert_ne!(stored(&neither, 1), stored(&child, 1));
}

#[test]
fn a_fork_shares_blocks_until_the_first_write() {
    let outcome = outcome(&forked(false, false), &with_positions());
    // At 10 tokens, 3 blocks of 4 in each stream are shared; the third one has room and is copied by its first writer.
    assert_eq!(outcome.records("shared")[0]["blocks"], 3 * STREAMS);
    assert_eq!(outcome.records("copied").iter().map(|line| line["blocks"].as_u64().unwrap()).sum::<u64>(), 4);
    assert_eq!(stored(&outcome, 1).len(), 8);
}

#[test]
fn a_parent_that_ends_at_a_fork_hands_its_blocks_on() {
    let fork = |child: u32| Fork {
        parent: BranchId::new(child - 1),
        child: BranchId::new(child),
        at_seen: 8,
        len: 8 + child,
        evictions: Vec::new(),
    };
    let request = Request { forks: vec![fork(1), fork(2)], ..request(0, 8, 8) };
    let outcome = outcome(&workload(vec![request]), &with_positions());
    assert_eq!(outcome.records("released").len(), 3);
    assert_eq!((stored(&outcome, 1).len(), stored(&outcome, 2).len()), (1, 2));
    assert!(outcome.records("copied").is_empty(), "8 tokens fill two blocks of 4: nothing is rewritten");
}
