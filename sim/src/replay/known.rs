//! What measuring a class has found out already, and a scorer that looks at the last queries would work out again.

use crate::num::Row;
use crate::num::products::{self, Factors};
use crate::policy::score::window_mass::Normaliser;
use crate::types::Pos;
use std::ops::Range;

/// Sums of attention weights of consecutive queries on the tokens of a class.
///
/// Tokens that came after a query have no weight, so a sum made when the query was measured is that over the longer list, to the bit.
#[derive(Debug)]
pub(super) struct Sums {
    /// The first query.
    pub(super) first: u32,
    /// Slots that the next eviction is expected to score: those before the recent buffer.
    pub(super) cut: usize,
    /// On all slots, `[query, member]`.
    pub(super) all: Vec<f64>,
    /// On the slots before `cut`, `[query, member]`.
    pub(super) before: Vec<f64>,
    /// What the next eviction is expected to ask for; absent where its scorer says nothing of it.
    pub(super) mean: Option<Mean>,
}

/// The mean attention of a window on the slots before the cut, as far as its queries are measured: their rows are at hand then, and far away later.
#[derive(Debug)]
pub(super) struct Mean {
    /// The queries.
    pub(super) window: Range<u32>,
    /// What the softmax of a query runs over.
    pub(super) normaliser: Normaliser,
    /// Queries that are taken in: those of the window before this one.
    upto: u32,
    /// Their attention before it is folded and divided, `[slot]`.
    partial: Vec<Row>,
}

impl Mean {
    /// More slots than that are not worth a row of sixteen numbers each for every class.
    pub(super) const MOST_SLOTS: usize = 1024;

    /// Nothing yet. Whatever is in `room` is written over.
    pub(super) fn of(window: Range<u32>, normaliser: Normaliser, room: Vec<Row>) -> Self {
        let upto = window.start;
        Self { window, normaliser, upto, partial: room }
    }

    /// Takes in the queries up to `upto`, those of one tile that `factors` counts, on `slots`, those before the cut.
    pub(super) fn add(&mut self, factors: &Factors<'_>, slots: &[Pos], upto: u32) {
        let is_begun = self.upto > self.window.start;
        self.partial.resize(slots.len(), Row::default());
        products::add_products(factors, slots, is_begun, &mut self.partial);
        self.upto = upto;
    }

    /// Its room, for another one.
    pub(super) fn into_room(self) -> Vec<Row> {
        self.partial
    }
}

impl Sums {
    /// None yet, of queries from `first` on, with room for `count` numbers as far as that is little.
    pub(super) fn from(first: u32, cut: usize, count: usize) -> Self {
        const MOST: usize = 1024;
        let room = || Vec::with_capacity(count.min(MOST));
        Self { first, cut, all: room(), before: room(), mean: None }
    }
}

/// The class that is being evicted.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Its resident tokens in slot order.
    pub(super) slots: Vec<Pos>,
    /// What its queries gave them; absent where nobody will ask.
    pub(super) sums: Option<Sums>,
}

impl Known {
    /// The sums of the weights of `queries` on `keys`, `[query, member]`, where those are the class's slots or begin them.
    pub(super) fn totals(&self, queries: &Range<u32>, keys: &[Pos], group: usize) -> Option<&[f64]> {
        let sums = self.sums.as_ref()?;
        let is_prefix = std::ptr::eq(keys.as_ptr(), self.slots.as_ptr());
        let list = match keys.len() {
            len if is_prefix && len == self.slots.len() => &sums.all,
            len if is_prefix && len == sums.cut => &sums.before,
            _ => return None,
        };
        let place = |query: u32| Some(query.checked_sub(sums.first)? as usize * group);
        list.get(place(queries.start)?..place(queries.end)?)
    }

    /// The attention of `queries` on the first `scored` of `keys`, with the softmax over all of `keys`, before it is folded and divided,
    /// `[slot]`, where those are the class's slots or begin them.
    pub(super) fn mean(&self, queries: &Range<u32>, keys: &[Pos], scored: usize) -> Option<&[Row]> {
        let sums = self.sums.as_ref()?;
        let mean = sums.mean.as_ref()?;
        let expected = match mean.normaliser {
            Normaliser::Candidates => sums.cut,
            Normaliser::Visible => self.slots.len(),
        };
        let is_that = std::ptr::eq(keys.as_ptr(), self.slots.as_ptr())
            && (keys.len(), scored) == (expected, sums.cut)
            && mean.window == *queries
            && mean.upto == queries.end;
        is_that.then_some(mean.partial.as_slice()).filter(|partial| partial.len() == scored)
    }
}

#[cfg(test)]
mod tests {
    use super::super::RecordedHead;
    use super::super::attention::Masses;
    use super::*;
    use crate::policy::HeadData;
    use crate::trace::TraceSource;
    use crate::trace::synth::{SynthLength, SynthSpec, Synthetic};
    use crate::types::{KvHead, LayerIdx, ModelShape};

    // A copy of the slots lies elsewhere in memory: for it the sums are worked out.
    #[test]
    fn scores_from_known_sums_have_the_bits_of_those_worked_out() {
        let shape = ModelShape { layers: 1, q_heads: 2, kv_heads: 1, head_dim: 8, hidden: 16, vocab: 32 };
        let spec = SynthSpec { shape, lengths: vec![SynthLength { prompt_len: 40, len: 60 }], seed: 3 };
        let source = Synthetic::build("sinks-and-hitters", spec).expect("the shape is valid");
        let (layer, len) = (LayerIdx::new(0), 60);
        let tensors = source.layer(source.sequences()[0].seq, layer).expect("generated");
        let mut head = RecordedHead::new(&tensors, &shape, layer, KvHead::new(0), len).expect("that shape");
        let mut slots: Vec<Pos> = (0..40).rev().filter(|pos| pos % 4 != 1).map(Pos::new).collect();
        let scored = slots.len();
        let measured = |head: &RecordedHead<'_>, slots: &mut Vec<Pos>, mean: Option<Mean>| {
            let mut sums = Sums { mean, ..Sums::from(40, scored, 0) };
            slots.truncate(scored);
            // A tile in two parts, and one that is left before its end.
            for queries in [40..45, 45..48, 48..56] {
                slots.extend(queries.clone().map(Pos::new));
                Masses::remembered(head, queries, slots, &mut sums);
            }
            Known { slots: slots.clone(), sums: Some(sums) }
        };
        head.known = measured(&head, &mut slots, None);
        let (window, keys) = (43..56, &head.known.slots);
        for used in [keys.len(), scored] {
            assert!(head.known.totals(&window, &keys[..used], 2).is_some(), "{used} are known");
            assert!(head.known.totals(&window, &slots[..used], 2).is_none(), "a copy is not");
            let (mut known, mut worked_out) = (Vec::new(), Vec::new());
            head.mean_attention(window.clone(), &keys[..used], scored, 1.0, &mut known);
            head.mean_attention(window.clone(), &slots[..used], scored, 1.0, &mut worked_out);
            assert_eq!(known.len(), scored);
            assert!(known.iter().zip(&worked_out).all(|(a, b)| a.to_bits() == b.to_bits()), "{used}");
        }
        assert!(head.known.totals(&(39..56), keys, 2).is_none(), "a query from before");
        for (normaliser, used) in [(Normaliser::Visible, slots.len()), (Normaliser::Candidates, scored)] {
            let room = vec![Row([f32::NAN; 16]); 3];
            head.known = measured(&head, &mut slots, Some(Mean::of(43..56, normaliser, room)));
            let keys = &head.known.slots;
            assert!(head.known.mean(&window, &keys[..used], scored).is_some(), "{normaliser:?} is known");
            assert!(head.known.mean(&window, &slots[..used], scored).is_none(), "a copy is not");
            assert!(head.known.mean(&window, &keys[..used - 1], scored).is_none(), "fewer keys are not");
            assert!(head.known.mean(&(44..56), &keys[..used], scored).is_none(), "another window is not");
            let (mut known, mut worked_out) = (Vec::new(), Vec::new());
            head.mean_attention(window.clone(), &keys[..used], scored, 1.0, &mut known);
            head.mean_attention(window.clone(), &slots[..used], scored, 1.0, &mut worked_out);
            assert!(known.iter().zip(&worked_out).all(|(a, b)| a.to_bits() == b.to_bits()), "{normaliser:?}");
        }
    }
}
