//! The full-cache attention of one query, and what is left of it on a subset of the tokens.

use super::RecordedHead;
use crate::num;
use crate::policy::HeadData;
use crate::types::Pos;

/// Attention of the query heads of one group at one position, over all earlier tokens and itself.
#[derive(Debug, Default)]
pub(super) struct FullAttention {
    /// Probabilities, `[member][kv_pos]`.
    rows: Vec<Vec<f32>>,
    /// Their sums in position order, `[member]`: what a subset's mass is divided by, so that the full set gives 1.
    totals: Vec<f64>,
    /// Attention outputs, `[member][head_dim]`; empty unless asked for.
    outputs: Vec<Vec<f32>>,
}

impl FullAttention {
    /// Computes the rows at `pos`, where `positions` lists `0..=pos`.
    pub(super) fn compute(&mut self, head: &RecordedHead<'_>, pos: Pos, positions: &[Pos], outputs: Outputs) {
        head.with_logits(pos, |logits| self.rows = logits.to_vec());
        self.totals.clear();
        self.outputs.clear();
        for row in &mut self.rows {
            num::softmax(row);
            self.totals.push(row.iter().fold(0.0, |total, &p| total + f64::from(p)));
            if outputs == Outputs::Yes {
                self.outputs.push(weighted_values(head, row, positions));
            }
        }
    }

    /// Share of the probability that falls on `resident`, summed over the members of the group.
    pub(super) fn recall(&self, resident: &[Pos]) -> f64 {
        self.rows
            .iter()
            .zip(&self.totals)
            .map(|(row, total)| {
                resident.iter().fold(0.0, |mass, pos| mass + f64::from(row[pos.idx()])) / total
            })
            .sum()
    }

    /// Relative error of the output when only `resident` is attended, summed over the members of the group.
    pub(super) fn output_error(&self, head: &RecordedHead<'_>, resident: &[Pos]) -> f64 {
        self.rows
            .iter()
            .zip(&self.outputs)
            .map(|(row, full)| {
                let weights: Vec<f32> = resident.iter().map(|pos| row[pos.idx()]).collect();
                let mass = num::sum(&weights);
                let mut kept = weighted_values(head, &weights, resident);
                // With no mass left there is no output: the error is 1.
                let renormalise = if mass > 0.0 { 1.0 / mass } else { 0.0 };
                kept.iter_mut().for_each(|x| *x *= renormalise);
                relative_distance(&kept, full)
            })
            .sum()
    }
}

/// Whether attention outputs are wanted beside the probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outputs {
    Yes,
    No,
}

fn weighted_values(head: &RecordedHead<'_>, weights: &[f32], positions: &[Pos]) -> Vec<f32> {
    let mut output = vec![0.0; head.head_dim()];
    for (&weight, &pos) in weights.iter().zip(positions) {
        num::add_scaled(&mut output, weight, head.value(pos));
    }
    output
}

fn relative_distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let (mut apart, mut size) = (0.0, 0.0);
    for (&f, &e) in found.iter().zip(expected) {
        apart += square(f64::from(f) - f64::from(e));
        size += square(f64::from(e));
    }
    if size > 0.0 { (apart / size).sqrt() } else { 0.0 }
}
