//! The order of events, and what may and may not change the log.

use super::{Outcome, any_workload, checked, keep_last, outcome, periodic, request, workload};
use kvlab_sim::engine::{Event, EventQueue, Pass, PassKind, Request, Settings, Workload};
use kvlab_sim::ledger::{BranchKey, Kept, Tracking};
use kvlab_sim::types::{BranchId, Nanos, Pos, ReqId, Tokens};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;

fn any_event() -> impl Strategy<Value = Event> {
    let branch = || {
        (0..3u32, 0..3u32)
            .prop_map(|(req, branch)| BranchKey { req: ReqId::new(req), branch: BranchId::new(branch) })
    };
    let pass = Pass { kind: PassKind::Decode, first: Pos::new(0), tokens: Tokens::new(1) };
    prop_oneof![
        branch().prop_map(move |branch| Event::PassFinished { branch, pass }),
        branch().prop_map(move |branch| Event::TokensArrived { branch, pass }),
        branch().prop_map(|branch| Event::ReleaseDue { branch }),
        (branch(), 0..3u32)
            .prop_map(|(parent, child)| Event::BranchForked { parent, child: BranchId::new(child) }),
        (0..3u32).prop_map(|req| Event::RequestArrived { req: ReqId::new(req) }),
        branch().prop_map(|branch| Event::EvictDue { branch }),
        branch().prop_map(|branch| Event::StepDue { branch }),
        Just(Event::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn events_leave_the_queue_sorted_by_key(events in prop::collection::vec((0..4u64, any_event()), 0..60)) {
        let mut queue = EventQueue::new();
        let mut expected = Vec::new();
        for &(time, event) in &events {
            expected.push((queue.push(Nanos::new(time), event).unwrap(), event));
        }
        expected.sort_by_key(|&(key, _)| {
            (key.time, key.phase as u8, key.req.get(), key.branch.get(), key.layer.get(), key.seq)
        });
        let popped: Vec<_> = std::iter::from_fn(|| queue.pop().unwrap()).collect();
        prop_assert_eq!(popped, expected);
    }

    #[test]
    fn the_order_of_listing_changes_nothing(
        (listed, shuffled) in any_workload().prop_flat_map(|listed| {
            let shuffled = Just(listed.requests.clone()).prop_shuffle();
            (Just(listed), shuffled)
        })
    ) {
        let shuffled = Workload { requests: shuffled, ..listed.clone() };
        let (a, b) = (outcome(&listed, &checked()), outcome(&shuffled, &checked()));
        prop_assert_eq!(a.log, b.log);
        prop_assert_eq!(a.digest, b.digest);
    }

    #[test]
    fn two_runs_write_equal_bytes(workload in any_workload()) {
        let (a, b) = (outcome(&workload, &checked()), outcome(&workload, &checked()));
        prop_assert_eq!((a.log, a.digest, a.summary), (b.log, b.digest, b.summary));
    }

    #[test]
    fn the_log_is_in_order_of_time_and_phase(workload in any_workload()) {
        let phases =
            ["completion", "release", "structure", "arrival", "observation", "decision", "scheduling", "end"];
        let at = |line: &Value| {
            let phase = phases.iter().position(|&phase| line["phase"] == phase).unwrap();
            (line["time_nanos"].as_u64().unwrap(), phase)
        };
        let stamps: Vec<_> = outcome(&workload, &checked()).lines().iter().map(at).collect();
        prop_assert!(stamps.is_sorted());
    }

    #[test]
    fn new_names_for_requests_only_rename_the_log(workload in any_workload(), offset in 0..7u32) {
        let rename = |req: u64| (req * 5 + u64::from(offset)) % 7;
        let mut renamed = workload.clone();
        for request in &mut renamed.requests {
            request.req = ReqId::new(u32::try_from(rename(request.req.get().into())).unwrap());
        }
        let by_request = |outcome: &Outcome, name: &dyn Fn(u64) -> u64| {
            let mut logs: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
            for mut line in outcome.lines().into_iter().filter(|line| line["what"] != "ended") {
                let req = line.as_object_mut().unwrap().remove("req").unwrap().as_u64().unwrap();
                logs.entry(name(req)).or_default().push(line);
            }
            logs
        };
        let (before, after) = (outcome(&workload, &checked()), outcome(&renamed, &checked()));
        prop_assert_eq!(by_request(&before, &rename), by_request(&after, &|req| req));
        prop_assert_eq!(before.memory.curve, after.memory.curve);
    }

    #[test]
    fn all_blocks_come_back(workload in any_workload()) {
        let outcome = outcome(&workload, &checked());
        let blocks = |what: &str| outcome.records(what).iter().map(|line| line["blocks"].as_u64().unwrap()).sum::<u64>();
        prop_assert_eq!(blocks("allocated") + blocks("copied"), blocks("freed"));
        prop_assert_eq!(&outcome.records("ended")[0]["allocated_blocks"], &Value::from(blocks("freed")));
    }

    #[test]
    fn lists_of_positions_and_fingerprints_give_one_log(workload in any_workload()) {
        let listed = outcome(&workload, &Settings { tracking: Tracking::Positions, ..checked() });
        let mut short = workload.clone();
        for eviction in short.requests.iter_mut().flat_map(|request| &mut request.evictions) {
            eviction.kept = Kept::Sets(eviction.kept.sets().into_owned());
        }
        prop_assert_eq!(listed.log, outcome(&short, &checked()).log);
    }
}

#[test]
fn a_line_of_the_log_says_when_what_and_who() {
    let request = Request { evictions: vec![keep_last(2, 1)], ..request(5, 2, 2) };
    let log = String::from_utf8(outcome(&workload(vec![request]), &checked()).log).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(
        lines[0],
        r#"{"time_nanos":0,"phase":"arrival","what":"arrived","req":5,"prompt_len":2,"len":2}"#
    );
    assert!(lines.contains(
        &r#"{"time_nanos":1000,"phase":"arrival","what":"stored","req":5,"branch":0,"kind":"prefill","seen":2,"live_entries":8,"blocks":4}"#
    ));
    // One eviction in one line, one kept set for each of four streams.
    assert_eq!(log.matches(r#""what":"evicted""#).count(), 1);
    assert_eq!(log.matches(r#"{"count":1,"digest":"#).count(), 4);
}

#[test]
fn the_digest_of_a_fixed_run_is_pinned() {
    // A change of this value changes every log digest: it needs a line in CHANGELOG.md.
    let request = Request { evictions: periodic(3, 8, 4, 2), ..request(0, 3, 8) };
    assert_eq!(outcome(&workload(vec![request]), &checked()).digest, "87dbed836895d647");
}

#[test]
fn time_is_the_sum_of_passes() {
    // A prefill and 6 decode steps of 1,000 ns, and the release one instant later.
    let outcome = outcome(&workload(vec![request(0, 4, 10)]), &checked());
    assert_eq!(outcome.summary.end, Nanos::new(7_001));
}
