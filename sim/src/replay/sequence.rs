//! One sequence under one cell: what its layers add up to, small enough to keep for every sequence of a trace.

use super::layer::{LayerEviction, LayerOutcome};
use super::next_token::NextTokenEffect;
use super::pos_set::PosSet;
use super::projection::{self, ProjectedError};
use super::served::Reading;
use crate::ledger::KeptSet;
use crate::policy::store::Moments;

/// Bins of a sequence in [`SequenceOutcome::survivors`].
pub const SURVIVAL_BINS: usize = 20;

/// What one cell did to all layers of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceOutcome {
    /// Evictions in order: tokens seen, and what stayed, `[layer, kv_head]`.
    pub evictions: Vec<(u32, Vec<KeptSet>)>,
    /// Attention-mass recall at each decode step, summed over layers and query heads, `[step]`.
    pub recall: Vec<f64>,
    /// The same summed over decode steps and the query heads of each group, `[layer, kv_head]`.
    pub head_recall: Vec<f64>,
    /// Relative output error summed over layers, query heads and sampled steps.
    pub error_sum: f64,
    /// Terms in `error_sum`.
    pub error_terms: u64,
    /// Evictions of a KV head in which equal scores met at the boundary.
    pub ties: u64,
    /// Tokens that evictions kept only since nothing with weight was left, over evictions, layers and KV heads.
    pub filled: u64,
    /// Tokens among the widest sixteenth that are resident at the end, over layers and KV heads.
    pub wide_kept: u64,
    /// Tokens among the widest sixteenth, over layers and KV heads.
    pub wide_total: u64,
    /// Tokens that at least one KV head of at least one layer holds at the end.
    pub union_kept: u64,
    /// Tokens of the sequence.
    pub len: u64,
    /// Blocks of consecutive positions, all KV heads of a layer together, that hold a resident token at the end, over layers.
    pub blocks_held: u64,
    /// Such blocks, over layers.
    pub blocks: u64,
    /// Jaccard index of the residents at the end, summed over pairs of KV heads of a layer and over layers.
    pub jaccard_sum: f64,
    /// Terms in `jaccard_sum`; 0 with one KV head.
    pub jaccard_terms: u64,
    /// Residents at the end, summed over layers and KV heads, by twentieth of the sequence.
    pub survivors: [u64; SURVIVAL_BINS],
    /// Tokens times layers times KV heads, by twentieth of the sequence.
    pub candidates: [u64; SURVIVAL_BINS],
    /// What the output errors come to after the output matrix, by sampled step; empty where that is not known.
    pub projected: Vec<ProjectedSample>,
    /// What was read and held; nothing where every query reads all resident tokens as they were made.
    pub reading: Option<SequenceReading>,
    /// Effects on the next token, by sampled step; empty where they were not asked for.
    pub next_token: Vec<NextTokenEffect>,
}

/// Output errors after the output matrix at one sampled decode step, over layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProjectedSample {
    /// The decode step, from 0.
    pub step: u32,
    /// Relative errors, summed over layers.
    pub error_sum: f64,
    /// Their squares, summed over layers.
    pub square_sum: f64,
    /// Layers in both sums.
    pub layers: u32,
    /// What the layers change in the residual stream, summed over layers, `[hidden]`; empty where it was not asked for or
    /// is zero.
    pub delta: Vec<f32>,
}

/// [`Reading`] of all layers of a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceReading {
    /// Sums over layers; see [`Reading`].
    pub all: Reading,
    /// Range of a value against the squared error of what is read back of it, `[layer]`.
    pub range_error: Vec<Moments>,
}

impl SequenceOutcome {
    /// Adds up the layers of a sequence of `len` tokens, in order; a physical block holds `block_tokens`.
    #[must_use]
    pub fn of(layers: &[LayerOutcome], len: u32, block_tokens: u32) -> Self {
        let mut all = Self { len: u64::from(len), ..Self::default() };
        let mut union = PosSet::default();
        for layer in layers {
            all.recall.resize(layer.recall.len().max(all.recall.len()), 0.0);
            all.recall.iter_mut().zip(&layer.recall).for_each(|(sum, recall)| *sum += recall);
            all.head_recall.extend(&layer.head_recall);
            all.error_sum += layer.error_sum;
            all.error_terms += layer.error_terms;
            all.ties += layer.ties;
            all.filled += layer.filled;
            all.wide_kept += layer.wide_kept;
            all.wide_total += layer.wide_total;
            for (at, LayerEviction { seen, heads }) in layer.evictions.iter().enumerate() {
                if all.evictions.len() == at {
                    all.evictions.push((*seen, Vec::new()));
                }
                all.evictions[at].1.extend(heads);
            }
            all.count_residents(&layer.resident, len, &mut union);
            all.count_blocks(&layer.resident, len, block_tokens.max(1));
            layer.projected.iter().for_each(|error| all.add_projected(error));
            if let Some(reading) = &layer.reading {
                all.reading.get_or_insert_default().add(reading);
            }
        }
        all.union_kept = union.count();
        all
    }

    fn count_blocks(&mut self, heads: &[PosSet], len: u32, tokens: u32) {
        let mut layer = PosSet::default();
        heads.iter().for_each(|head| layer.add(head));
        let blocks = (0..len).step_by(tokens as usize).map(|begin| begin..len.min(begin + tokens));
        self.blocks_held += blocks.clone().filter(|block| layer.count_in(block.clone()) > 0).count() as u64;
        self.blocks += blocks.count() as u64;
    }

    fn add_projected(&mut self, found: &ProjectedError) {
        let at = match self.projected.iter().position(|sample| sample.step == found.step) {
            Some(at) => at,
            None => {
                self.projected.push(ProjectedSample { step: found.step, ..ProjectedSample::default() });
                self.projected.len() - 1
            }
        };
        let sample = &mut self.projected[at];
        sample.error_sum += found.error;
        sample.square_sum += found.error * found.error;
        sample.layers += 1;
        projection::add(&mut sample.delta, &found.delta);
    }

    #[expect(clippy::cast_precision_loss, reason = "token counts stay far below 2^53")]
    fn count_residents(&mut self, heads: &[PosSet], len: u32, union: &mut PosSet) {
        for (at, head) in heads.iter().enumerate() {
            union.add(head);
            for other in &heads[..at] {
                let shared = head.shared(other);
                let either = head.count() + other.count() - shared;
                self.jaccard_sum += if either > 0 { shared as f64 / either as f64 } else { 1.0 };
                self.jaccard_terms += 1;
            }
            for (bin, (survivors, candidates)) in
                self.survivors.iter_mut().zip(&mut self.candidates).enumerate()
            {
                let range = bin_start(bin, len)..bin_start(bin + 1, len);
                *candidates += u64::from(range.end - range.start);
                *survivors += head.count_in(range);
            }
        }
    }
}

impl SequenceReading {
    fn add(&mut self, layer: &Reading) {
        let all = &mut self.all;
        for (sums, more) in [(&mut all.held_bits, &layer.held_bits), (&mut all.read_bits, &layer.read_bits)] {
            sums.resize(sums.len().max(more.len()), 0);
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        all.attended += layer.attended;
        all.key_error_sum += layer.key_error_sum;
        all.value_error_sum += layer.value_error_sum;
        all.stored_tokens += layer.stored_tokens;
        all.range_error.merge(&layer.range_error);
        self.range_error.push(layer.range_error);
    }
}

/// The first position of a bin of a sequence of `len` tokens; bins are as equal as whole tokens allow.
#[expect(clippy::cast_possible_truncation, reason = "at most `len`")]
fn bin_start(bin: usize, len: u32) -> u32 {
    (bin as u64 * u64::from(len) / SURVIVAL_BINS as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Pos;

    #[test]
    fn residents_of_all_heads_are_joined_and_compared() {
        let set = |positions: &[u32]| PosSet::of(&positions.iter().map(|p| Pos::new(*p)).collect::<Vec<_>>());
        let layer =
            |a: &[u32], b: &[u32]| LayerOutcome { resident: vec![set(a), set(b)], ..LayerOutcome::default() };
        let all = SequenceOutcome::of(&[layer(&[0, 1], &[1, 2]), layer(&[39], &[39])], 40, 16);
        // Two layers of three blocks; tokens 0 to 2 are in the first, 39 in the last.
        assert_eq!((all.blocks_held, all.blocks), (2, 6));
        assert_eq!((all.union_kept, all.len), (4, 40));
        // One token of three, and one of one.
        assert!((all.jaccard_sum - 4.0 / 3.0).abs() < 1e-12);
        assert_eq!(all.jaccard_terms, 2);
        // Two tokens a bin, four heads.
        assert_eq!((all.survivors[0], all.survivors[1], all.survivors[19]), (3, 1, 2));
        assert!(all.candidates.iter().all(|tokens| *tokens == 8));
    }

    #[test]
    fn bins_of_a_short_sequence_cover_it_once() {
        for len in 1..50 {
            let all = SequenceOutcome::of(
                &[LayerOutcome { resident: vec![PosSet::default()], ..LayerOutcome::default() }],
                len,
                16,
            );
            assert_eq!(all.candidates.iter().sum::<u64>(), u64::from(len));
        }
    }
}
