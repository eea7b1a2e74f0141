//! Who may run, and what ends a run early.

use super::{any_workload, checked, keep_last, outcome, periodic, request, workload};
use kvlab_sim::engine::{
    CostModel, EngineError, Eviction, Fork, Limits, Request, Settings, UnitCost, Workload, WorkloadError, run,
};
use kvlab_sim::ledger::{Kept, KeptSet};
use kvlab_sim::observe::Fanout;
use kvlab_sim::types::{BranchId, Nanos, ReqId};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;

fn failure(workload: &Workload, settings: &Settings, cost: &dyn CostModel) -> EngineError {
    run(workload, settings, cost, &mut Fanout::default()).unwrap_err()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn reservations_never_exceed_the_memory(workload in any_workload(), capacity in 8..80u32) {
        let unlimited = outcome(&workload, &checked());
        let limited = outcome(&Workload { capacity_blocks: Some(capacity), ..workload.clone() }, &checked());
        let (mut running, mut reserved) = (BTreeMap::new(), 0);
        for line in limited.lines() {
            let req = line["req"].as_u64();
            match line["what"].as_str().unwrap() {
                "admitted" => {
                    let blocks = line["reserved_blocks"].as_u64().unwrap();
                    running.insert(req, blocks);
                    reserved += blocks;
                }
                "released" => reserved -= running.remove(&req).unwrap(),
                _ => {}
            }
            prop_assert!(reserved <= u64::from(capacity));
        }
        // Who is not refused runs as it would with more memory, only later.
        let refused = &limited.summary.refused;
        let runs: Vec<_> =
            unlimited.memory.sequences.into_iter().filter(|s| !refused.contains(&s.branch.req)).collect();
        prop_assert_eq!(limited.memory.sequences, runs);
    }
}

#[test]
fn one_release_lets_in_as_many_as_fit() {
    // Request 0 needs 40 of 40 blocks; the others need 2 blocks in each of 4 streams = 8 each: five of six fit.
    let small = (1..=6).map(|req| request(req, 4, 8));
    let requests = std::iter::once(request(0, 4, 40)).chain(small).collect();
    let outcome = outcome(&Workload { capacity_blocks: Some(40), ..workload(requests) }, &checked());
    let admitted = outcome.records("admitted");
    let with_the_first = admitted[1..].iter().filter(|line| line["time_nanos"] == admitted[1]["time_nanos"]);
    assert_eq!((with_the_first.count(), admitted.len()), (5, 7));
}

#[test]
fn a_request_larger_than_the_memory_is_refused_and_the_others_run() {
    // 10,000 tokens in blocks of 16 are 625 blocks in each of 4 streams; there are 50 blocks.
    let big = |req| request(req, 9_000, 10_000);
    let requests = vec![big(0), request(1, 20, 40), big(2)];
    let workload = Workload { block_tokens: 16, capacity_blocks: Some(50), ..workload(requests) };
    let outcome = outcome(&workload, &checked());
    assert_eq!(outcome.summary.refused, [ReqId::new(0), ReqId::new(2)]);
    let refused = &outcome.records("refused")[0];
    assert_eq!(
        (&refused["needed_blocks"], &refused["capacity_blocks"]),
        (&Value::from(2500), &Value::from(50))
    );
    assert_eq!(outcome.memory.sequences.len(), 1);
    assert_eq!(outcome.memory.refused, outcome.summary.refused);
    assert_eq!(outcome.lines().last().unwrap()["what"], "ended");
}

#[test]
fn a_request_that_fits_only_alone_waits_its_turn() {
    // Each needs 10 blocks of 4 in 4 streams = 40 of 50 blocks.
    let requests = vec![request(0, 4, 40), request(1, 4, 40), request(2, 4, 8)];
    let workload = Workload { capacity_blocks: Some(50), ..workload(requests) };
    let outcome = outcome(&workload, &checked());
    let order: Vec<_> =
        outcome.records("admitted").iter().map(|line| line["req"].as_u64().unwrap()).collect();
    // Request 2 would fit beside request 0, but it came after request 1: no overtaking.
    assert_eq!(order, [0, 1, 2]);
    assert_eq!(outcome.records("waiting").len(), 2);
    let released = outcome.records("released")[0]["time_nanos"].as_u64();
    assert_eq!(outcome.records("admitted")[1]["time_nanos"].as_u64(), released);
    assert!(outcome.summary.refused.is_empty());
}

#[test]
fn a_request_of_exactly_the_memory_runs() {
    let at = |capacity| Workload { capacity_blocks: Some(capacity), ..workload(vec![request(0, 4, 40)]) };
    assert!(outcome(&at(40), &checked()).summary.refused.is_empty());
    assert_eq!(outcome(&at(39), &checked()).summary.refused, [ReqId::new(0)]);
}

#[test]
fn evictions_lower_the_demand_of_a_request() {
    // Never more than 8 entries = 2 blocks in each of 4 streams.
    let request = Request { evictions: periodic(4, 100, 4, 4), ..request(0, 4, 100) };
    let workload = Workload { capacity_blocks: Some(8), ..workload(vec![request]) };
    assert!(outcome(&workload, &checked()).summary.refused.is_empty());
}

#[test]
fn the_progress_guard_names_the_event_beyond_the_limit() {
    let limits = Limits { max_events: Some(10), max_time: None };
    let error =
        failure(&workload(vec![request(3, 4, 40)]), &Settings { limits, ..checked() }, &UnitCost::default());
    let EngineError::LimitReached { limit: "events", value: 10, key } = error else { panic!("{error}") };
    assert_eq!(key.req, ReqId::new(3));
    let limits = Limits { max_events: None, max_time: Some(Nanos::new(2_500)) };
    let error =
        failure(&workload(vec![request(3, 4, 40)]), &Settings { limits, ..checked() }, &UnitCost::default());
    assert!(matches!(error, EngineError::LimitReached { value: 2_500, .. }), "{error}");
}

#[test]
fn a_pass_that_takes_no_time_is_caught() {
    let free = UnitCost { per_pass: Nanos::ZERO, per_token: Nanos::ZERO };
    let error = failure(&workload(vec![request(0, 4, 40)]), &checked(), &free);
    assert!(matches!(error, EngineError::Invariant { .. }), "{error}");
}

#[test]
fn nothing_to_do_is_a_run_too() {
    let outcome = outcome(&workload(Vec::new()), &checked());
    assert_eq!((outcome.summary.events, outcome.lines().len()), (1, 1));
}

#[test]
fn workloads_that_make_no_sense_are_refused() {
    let refusal = |request: Request| match failure(&workload(vec![request]), &checked(), &UnitCost::default())
    {
        EngineError::Workload(error) => error,
        other => panic!("{other}"),
    };
    let evicting = |evictions| Request { evictions, ..request(0, 4, 10) };
    assert!(matches!(refusal(request(0, 0, 3)), WorkloadError::PromptLength { .. }));
    assert!(matches!(refusal(request(0, 4, 3)), WorkloadError::PromptLength { .. }));
    let twice = evicting(vec![keep_last(6, 2), keep_last(6, 2)]);
    assert!(matches!(refusal(twice), WorkloadError::EvictionOrder { seen: 6, from: 7, len: 10, .. }));
    assert!(matches!(refusal(evicting(vec![keep_last(11, 2)])), WorkloadError::EvictionOrder { .. }));
    let grows = evicting(vec![keep_last(6, 2), keep_last(8, 5)]);
    assert!(matches!(refusal(grows), WorkloadError::KeptTooMany { kept: 5, live: 4, seen: 8, .. }));
    let partial = Eviction { seen: 6, kept: Kept::Sets(vec![KeptSet::of(&[])]) };
    assert!(matches!(
        refusal(evicting(vec![partial])),
        WorkloadError::KeptSets { found: 1, expected: 4, .. }
    ));
    let (parent, child) = (BranchId::new(0), BranchId::new(0));
    let taken = Fork { parent, child, at_seen: 5, len: 8, evictions: Vec::new() };
    assert!(matches!(
        refusal(Request { forks: vec![taken], ..request(0, 4, 10) }),
        WorkloadError::Fork { .. }
    ));
    let twins = workload(vec![request(1, 4, 10), request(1, 4, 10)]);
    let error = failure(&twins, &checked(), &UnitCost::default());
    assert_eq!(error, EngineError::Workload(WorkloadError::DuplicateRequest { req: ReqId::new(1) }));
}
