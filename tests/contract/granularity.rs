//! What is kept or evicted as one: a token of a head, a token of a layer, a block of a layer.

use super::outcomes;
use crate::support::synth;
use kvlab_sim::policy::compose::{Granularity, Knobs, Part, Stack, StackSpec};
use kvlab_sim::policy::{PolicyError, registry};
use kvlab_sim::replay::{RecordedHead, SequenceOutcome};
use kvlab_sim::trace::TraceSource;
use kvlab_sim::types::{KvHead, LayerIdx, Pos};

const KNOBS: Knobs = Knobs { capacity: 24, recent: 4, sinks: 2, period: 4, window: 4 };

fn stack(score: &str, granularity: Granularity) -> Result<Stack, PolicyError> {
    let spec = StackSpec::periodic(score, KNOBS, Part::plain(score))?;
    Stack::checked(StackSpec { granularity, ..spec })
}

/// A layer keeps one set; the score of a token is the mean over the heads, and the top of it is kept.
#[test]
fn a_layer_keeps_the_tokens_with_the_highest_mean_score() {
    let trace = synth::fixed();
    let together = stack("value-magnitude", Granularity::TokenLayer).unwrap();
    for outcome in outcomes(&trace, &together, 0, 0) {
        for eviction in &outcome.evictions {
            assert!(eviction.heads.windows(2).all(|pair| pair[0] == pair[1]), "one set a layer");
            assert_eq!(eviction.heads[0].count, 24);
        }
        assert!(outcome.resident.windows(2).all(|pair| pair[0] == pair[1]));
    }
    // The first eviction of the first layer by hand: 26 tokens are up for choice, without two sinks and four recent ones.
    let (layer, meta) = (LayerIdx::new(0), &trace.sequences()[0]);
    let tensors = trace.layer(meta.seq, layer).unwrap();
    let heads: Vec<RecordedHead<'_>> = [0, 1]
        .map(|head| RecordedHead::new(&tensors, trace.shape(), layer, KvHead::new(head), meta.len).unwrap())
        .into();
    let mean = |pos: u32| heads.iter().map(|head| head.ranges()[pos as usize]).sum::<f32>();
    let first = &outcomes(&trace, &together, 0, 0)[0].evictions[0];
    let mut choice: Vec<u32> = (2..first.seen - 4).collect();
    choice.sort_by(|a, b| mean(*b).total_cmp(&mean(*a)).then(a.cmp(b)));
    let kept: Vec<Pos> =
        (0..2).chain(choice.into_iter().take(18)).chain(first.seen - 4..first.seen).map(Pos::new).collect();
    assert_eq!(first.heads[0], kvlab_sim::ledger::KeptSet::of(&kept));
}

/// Under blocks whole runs of positions leave, never more than the budget stays, and a paged cache gives back in place what a
/// choice of single tokens leaves scattered.
#[test]
fn blocks_leave_as_wholes_and_can_be_given_back_in_place() {
    let trace = synth::fixed();
    let held = |granularity| {
        let stack = stack("window-mass", granularity).unwrap();
        let all = outcomes(&trace, &stack, 0, 0);
        let counts: Vec<u32> =
            all.iter().flat_map(|o| &o.evictions).flat_map(|e| &e.heads).map(|set| set.count).collect();
        let sums: Vec<SequenceOutcome> = all
            .chunks(2)
            .zip(trace.sequences())
            .map(|(layers, meta)| SequenceOutcome::of(layers, meta.len, 4))
            .collect();
        let blocks = sums.iter().map(|sum| sum.blocks_held).sum::<u64>();
        (all, counts, blocks, sums.iter().map(|sum| sum.blocks).sum::<u64>())
    };
    let (_, _, scattered, all) = held(Granularity::TokenHead);
    let (_, _, of_layers, _) = held(Granularity::TokenLayer);
    let (outcomes, counts, whole, _) = held(Granularity::Block(4));
    assert!(
        whole < of_layers && of_layers < scattered && scattered <= all,
        "{whole} {of_layers} {scattered} {all}"
    );
    assert!(counts.iter().all(|count| (20..=24).contains(count)), "{counts:?}");
    for (outcome, meta) in outcomes.iter().zip(trace.sequences().iter().flat_map(|meta| [meta, meta])) {
        let set = &outcome.resident[0];
        for begin in (0..meta.len.saturating_sub(8)).step_by(4) {
            let kept = set.count_in(begin..begin + 4);
            assert!(kept == 0 || kept == 4, "block at {begin}: {kept} tokens of four");
        }
    }
}

#[test]
fn what_cannot_be_chosen_together_is_refused_by_name() {
    let built = |change: &dyn Fn(StackSpec) -> StackSpec| {
        let spec = StackSpec::periodic("x", KNOBS, Part::plain("window-mass")).unwrap();
        Stack::checked(change(spec)).unwrap_err().to_string()
    };
    let block = Granularity::Block(4);
    let reserve = Part::plain("value-magnitude");
    let error = built(&|spec| StackSpec { granularity: block, reserve: reserve.clone(), ..spec });
    assert!(error.contains("value-magnitude") && error.contains("single tokens"), "{error}");
    let ada = Part::plain("ada");
    let error =
        built(&|spec| StackSpec { granularity: Granularity::TokenLayer, budget: ada.clone(), ..spec });
    assert!(error.contains("`ada`") && error.contains("same tokens"), "{error}");
    let error = built(&|spec| StackSpec { granularity: Granularity::Block(16), ..spec });
    assert!(error.contains("a block of 16") && error.contains("51 tokens are needed"), "{error}");
    assert!(stack("window-mass", Granularity::TokenLayer).is_ok());
    assert!(registry::composition("vase-attnv").is_ok());
}
