//! The error of a layer's attention output after the output matrix: heads are added up before a norm is taken.
//!
//! A query head that reads `o` of `[head_dim]` adds `W_O[.., q_head, ..] · o` to the residual stream, so what a policy changes
//! there is `Δ = Σ W_O[.., q_head, ..] · (o_policy − o_full)`, `[hidden]`: errors of heads may cancel. Sums run over KV heads in
//! order, in f32. Not responsible for the outputs.

use super::RecordedHead;
use super::layer::Settings;
use crate::num;
use crate::policy::HeadData;

/// What one cell changes in one layer at one sampled decode step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProjectedError {
    /// The decode step, from 0.
    pub step: u32,
    /// `|Δ| / |Σ W_O · o_full|`; 0 where the layer writes nothing.
    pub error: f64,
    /// Δ, `[hidden]`, at the steps where the settings ask for it; empty elsewhere.
    pub delta: Vec<f32>,
}

/// What the heads of a group write, `outputs` being `[member, head_dim]`: `[hidden]`, or nothing where the output matrix is
/// not known.
#[expect(clippy::cast_possible_truncation, reason = "vectors of the model are f32")]
pub(super) fn written(head: &RecordedHead<'_>, outputs: &[f64]) -> Option<Vec<f32>> {
    let head_dim = head.head_dim();
    let mut sum = Vec::new();
    for (member, output) in outputs.chunks_exact(head_dim).enumerate() {
        let columns = head.output_weights(member)?;
        let output: Vec<f32> = output.iter().map(|x| *x as f32).collect();
        sum.resize(columns.len() / head_dim, 0.0);
        for (total, row) in sum.iter_mut().zip(columns.chunks_exact(head_dim)) {
            *total += num::dot(row, &output);
        }
    }
    (!sum.is_empty()).then_some(sum)
}

/// As [`written`], of the difference of two outputs; an empty vector stands for zero where they are equal.
pub(super) fn difference(head: &RecordedHead<'_>, kept: &[f64], full: &[f64]) -> Option<Vec<f32>> {
    head.output_weights(0)?;
    let apart: Vec<f64> = kept.iter().zip(full).map(|(kept, full)| kept - full).collect();
    if apart.iter().all(|x| x.abs() <= 0.0) {
        return Some(Vec::new());
    }
    written(head, &apart)
}

/// Adds `part` to `sum`, which grows from nothing.
pub(super) fn add(sum: &mut Vec<f32>, part: &[f32]) {
    sum.resize(sum.len().max(part.len()), 0.0);
    num::add_scaled(&mut sum[..part.len()], 1.0, part);
}

/// The error of `delta` beside `full`, both `[hidden]`, at `step`.
pub(super) fn compared(step: u32, delta: Vec<f32>, full: &[f32], settings: Settings) -> ProjectedError {
    let square = |vector: &[f32]| vector.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x));
    let (apart, size) = (square(&delta), square(full));
    let error = if size > 0.0 { (apart / size).sqrt() } else { 0.0 };
    let delta = if settings.keeps_delta(step) { delta } else { Vec::new() };
    ProjectedError { step, error, delta }
}

/// Projections of one cell by itself, by sampled step.
#[derive(Debug, Default)]
pub(super) struct Projections {
    /// `[sample]`: step, Δ so far, what the full cache writes so far.
    samples: Vec<(u32, Vec<f32>, Vec<f32>)>,
}

impl Projections {
    /// Takes in one KV head at `step`. Nothing happens where the output matrix is not known.
    pub(super) fn add(&mut self, head: &RecordedHead<'_>, step: u32, kept: &[f64], full: &[f64]) {
        let (Some(apart), Some(whole)) = (difference(head, kept, full), written(head, full)) else {
            return;
        };
        let at = match self.samples.iter().position(|(known, ..)| *known == step) {
            Some(at) => at,
            None => {
                self.samples.push((step, Vec::new(), Vec::new()));
                self.samples.len() - 1
            }
        };
        add(&mut self.samples[at].1, &apart);
        add(&mut self.samples[at].2, &whole);
    }

    /// The errors, by step.
    pub(super) fn finish(mut self, settings: Settings) -> Vec<ProjectedError> {
        self.samples.sort_by_key(|(step, ..)| *step);
        self.samples.into_iter().map(|(step, delta, full)| compared(step, delta, &full, settings)).collect()
    }
}
