//! The smallest noise that a number can have.

use kvlab_sim::{
    rng::{Purpose, Stream, StreamKey},
    trace::LayerTensors,
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
