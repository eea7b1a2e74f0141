//! What the memory observer measures.

use super::{ENTRY, STREAMS, any_workload, checked, keep_last, outcome, periodic, request, workload};
use kvlab_sim::engine::{Eviction, Request, Settings, Workload};
use kvlab_sim::ledger::Kept;
use kvlab_sim::types::{Pos, Tokens};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn the_size_of_prefill_chunks_changes_no_measure(workload in any_workload(), chunk in 1..13u32) {
        let whole = outcome(&workload, &checked());
        let cut = outcome(&workload, &Settings { prefill_chunk: Some(Tokens::new(chunk)), ..checked() });
        prop_assert_eq!(whole.memory, cut.memory);
    }

    #[test]
    fn company_does_not_change_what_a_request_takes_up(workload in any_workload()) {
        let together = outcome(&workload, &checked()).memory.sequences;
        let alone = workload.requests.iter().flat_map(|request| {
            let workload = Workload { requests: vec![request.clone()], ..workload.clone() };
            outcome(&workload, &checked()).memory.sequences
        });
        prop_assert_eq!(together, alone.collect::<Vec<_>>());
    }
}

#[test]
fn occupancy_is_a_saw_tooth_measured_before_each_eviction() {
    // Budget 4, period 2, prompt 3: stored 3, 4, 5, 6 -> 4 after seen 6, then 5, 6 -> 4 after seen 8.
    let request = Request { evictions: periodic(3, 8, 4, 2), ..request(0, 3, 8) };
    let memory = outcome(&workload(vec![request]), &checked()).memory;
    let points: Vec<_> =
        memory.curve.iter().map(|p| (p.seen, p.live_kv_tokens, p.allocated_kv_tokens)).collect();
    let expected = [(3, 3.0, 4.0), (4, 4.0, 4.0), (5, 5.0, 8.0), (6, 6.0, 8.0), (7, 5.0, 8.0), (8, 6.0, 8.0)];
    assert_eq!(points, expected);
    assert_eq!(memory.evictions, 2);
    let streams = STREAMS as u64;
    assert_eq!(memory.kv_byte_steps.get(), (3 + 4 + 5 + 6 + 5 + 6) * streams * ENTRY);
    assert_eq!(memory.peak_kv_bytes.get(), 6 * streams * ENTRY);
    assert_eq!(memory.peak_allocated_kv_bytes.get(), 8 * streams * ENTRY);
    // Decode steps only: 4/4, 5/5, 6/6, 5/7, 6/8. The tolerance covers the rounding of five additions.
    let ratio = memory.sequences[0].mean_keep_ratio.unwrap();
    assert!((ratio - (3.0 + 5.0 / 7.0 + 6.0 / 8.0) / 5.0).abs() < 1e-12, "{ratio}");
}

#[test]
fn the_curve_averages_over_sequences_with_a_step_at_that_length() {
    let short = request(0, 2, 3);
    let long = Request { evictions: vec![keep_last(3, 1)], ..request(1, 2, 4) };
    let memory = outcome(&workload(vec![short, long]), &checked()).memory;
    let points: Vec<_> = memory.curve.iter().map(|p| (p.seen, p.sequences, p.live_kv_tokens)).collect();
    assert_eq!(points, [(2, 2, 2.0), (3, 2, 3.0), (4, 1, 2.0)]);
}

#[test]
fn uneven_heads_are_averaged() {
    // After seen 4, streams keep 1, 2, 3 and 4 entries; one token more makes 2 + 3 + 4 + 5 = 14 entries in 4 streams.
    let lists = (1..=4u32).map(|count| (0..count).map(Pos::new).collect()).collect();
    let request =
        Request { evictions: vec![Eviction { seen: 4, kept: Kept::Positions(lists) }], ..request(0, 3, 5) };
    let memory = outcome(&workload(vec![request]), &checked()).memory;
    let last = memory.curve.last().unwrap();
    assert_eq!((last.live_kv_tokens, last.allocated_kv_tokens), (3.5, 5.0));
}

#[test]
fn a_sequence_without_decode_steps_has_no_keep_ratio() {
    let memory = outcome(&workload(vec![request(0, 5, 5)]), &checked()).memory;
    assert_eq!(memory.sequences[0].mean_keep_ratio, None);
    assert_eq!(memory.curve.len(), 1);
}

#[test]
fn an_eviction_inside_the_prompt_splits_the_pass() {
    let request = Request { evictions: vec![keep_last(6, 2)], ..request(0, 10, 11) };
    let whole = outcome(&workload(vec![request]), &checked());
    let passes: Vec<_> =
        whole.records("pass-done").iter().map(|line| line["tokens"].as_u64().unwrap()).collect();
    assert_eq!(passes, [6, 4, 1]);
    // The peak is 2 + 5 = 7 entries at the end.
    assert_eq!(whole.memory.peak_kv_bytes.get(), 7 * STREAMS as u64 * ENTRY);
}

#[test]
fn uneven_chunks_of_a_long_prompt_keep_the_peak() {
    // A prompt of 4,000 tokens, cut to 512 at its end: the peak is the whole prompt, however it is cut.
    let request = Request { evictions: vec![keep_last(4000, 512)], ..request(0, 4000, 4040) };
    let workload = workload(vec![request]);
    for chunk in [None, Some(2000), Some(531)] {
        let settings = Settings { prefill_chunk: chunk.map(Tokens::new), ..checked() };
        let memory = outcome(&workload, &settings).memory;
        assert_eq!(memory.peak_kv_bytes.get(), 4000 * STREAMS as u64 * ENTRY, "{chunk:?}");
        assert!((memory.curve.last().unwrap().live_kv_tokens - 552.0).abs() < 1e-12);
    }
}
