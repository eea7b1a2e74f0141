//! The smallest noise that a number can have.

use kvlab_sim::{
    rng::{Purpose, Stream, StreamKey},
    trace::{Confidences, LayerTensors, Outcome, Problem},
    types::{LayerIdx, SeqIdx},
};

/// The tensors with every number moved by one unit in the last place, up or down by a fair coin: what another processor or another
/// order of additions might have given.
pub(super) fn nudged(tensors: &LayerTensors, seq: SeqIdx, layer: LayerIdx) -> LayerTensors {
    let key = StreamKey { seq: seq.get(), layer: layer.get(), ..StreamKey::new(0, Purpose::Report, "ulp") };
    let mut stream = key.stream();
    let mut nudged = tensors.clone();
    for array in [&mut nudged.q, &mut nudged.k, &mut nudged.v] {
        nudge(array.iter_mut(), &mut stream);
    }
    nudged
}

/// A recorded problem with every fact moved by one unit in the last place, up or down by a fair coin. What is a function of other facts (the
/// confidences over steps) is computed from the moved ones where those are stored.
pub(super) fn nudged_problem(problem: &Problem, index: u32) -> Problem {
    let key = StreamKey { seq: index, ..StreamKey::new(0, Purpose::Report, "ulp of a problem") };
    let mut stream = key.stream();
    let mut nudged = problem.clone();
    for branch in &mut nudged.branches {
        let cosines = branch.similarity.iter_mut().flat_map(|s| [&mut s.cos_last, &mut s.cos_mean]);
        nudge(cosines, &mut stream);
        for outcome in [&mut branch.own, &mut branch.root].into_iter().flatten() {
            nudge_outcome(outcome, &mut stream);
        }
    }
    nudged
}

fn nudge_outcome(outcome: &mut Outcome, stream: &mut Stream) {
    nudge(
        outcome.steps.iter_mut().flat_map(|step| {
            [
                &mut step.prob,
                &mut step.top1_prob,
                &mut step.entropy_nats,
                &mut step.top20_surprise_nats,
                &mut step.uniform_kl_nats,
            ]
        }),
        stream,
    );
    if outcome.steps.is_empty() {
        let of = &mut outcome.confidences;
        nudge(
            [
                &mut of.mean_top1_prob,
                &mut of.geometric_mean_prob,
                &mut of.min_prob,
                &mut of.mean_entropy_nats,
                &mut of.mean_top20_surprise_nats,
                &mut of.mean_uniform_kl_nats,
            ]
            .into_iter(),
            stream,
        );
    } else {
        outcome.confidences = Confidences::over(&outcome.steps);
    }
    let layers = outcome.verdict.iter_mut().flat_map(|verdict| &mut verdict.layers);
    nudge(
        layers.flat_map(|layer| {
            [
                &mut layer.p_yes,
                &mut layer.raw_p_yes,
                &mut layer.entropy_nats,
                &mut layer.raw_entropy_nats,
                &mut layer.top1_prob,
                &mut layer.top2_prob,
                &mut layer.cos_previous,
                &mut layer.js_previous_nats,
            ]
        }),
        stream,
    );
}

fn nudge<'a>(numbers: impl Iterator<Item = &'a mut f32>, stream: &mut Stream) {
    let (mut coins, mut left) = (0u64, 0u32);
    for number in numbers {
        if left == 0 {
            (coins, left) = (stream.bits(), u64::BITS);
        }
        let next = if coins & 1 == 1 { number.next_up() } else { number.next_down() };
        if next.is_finite() {
            *number = next;
        }
        coins >>= 1;
        left -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_moves_by_one_step_and_both_ways() {
        let mut numbers = vec![1.5f32; 200];
        nudge(numbers.iter_mut(), &mut StreamKey::new(0, Purpose::Report, "ulp").stream());
        let up = numbers.iter().filter(|x| **x > 1.5).count();
        assert!(numbers.iter().all(|x| (x.to_bits().abs_diff(1.5f32.to_bits())) == 1));
        assert!((60..140).contains(&up), "{up}");
    }
}
