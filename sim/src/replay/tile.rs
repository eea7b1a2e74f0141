//! Attention weights of sixteen recorded queries on every key up to them.

use crate::num::dots::dots;
use crate::num::{LANES, Row, rows};
use crate::policy::{TILE, scale};
use crate::types::Pos;

/// Weights of the queries `first..first + 16` of one KV head's group on all keys up to the last of them.
#[derive(Debug)]
pub(super) struct Tile {
    /// Lanes: queries times query heads of the group.
    lanes: usize,
    /// Weights, `[kv_pos, lane]`: proportional to `exp(logit)` within a lane, 0 for keys after the query.
    rows: Vec<f32>,
    /// Their sums in position order, `[lane]`: what a subset's share is divided by, so that the full set gives 1.
    totals: Vec<f64>,
    /// Whether every weight is a normal number or belongs to a key after the query: then the weights of any subset of the
    /// keys are these, times a power of two.
    is_tame: bool,
}

impl Tile {
    /// Computes the tile that begins at `first` (a multiple of 16). `queries` has the recorded queries of each member,
    /// `[member][q_pos, head_dim]`, `keys` the keys `[kv_pos, head_dim]`; both may end inside the tile. `rows` is room, whatever is in it.
    pub(super) fn compute(
        first: u32,
        queries: &[&[f32]],
        keys: &[f32],
        head_dim: usize,
        mut rows: Vec<f32>,
    ) -> Self {
        let group = queries.len();
        let lanes = group * TILE as usize;
        let first = first as usize;
        let len = keys.len() / head_dim;
        let end = (first + TILE as usize).min(len);
        rows.resize(end * lanes, 0.0);
        let mut chunk = vec![Row::default(); head_dim];
        for at in 0..group {
            for (offset, lane) in (at * LANES..(at + 1) * LANES).enumerate() {
                let (query, member) = ((first + lane / group).min(len - 1), lane % group);
                let vector = &queries[member][query * head_dim..][..head_dim];
                chunk.iter_mut().zip(vector).for_each(|(row, x)| row.0[offset] = *x);
            }
            let keys = &keys[..end * head_dim];
            dots(&chunk, keys, scale(head_dim), lanes, &mut rows[at * LANES..]);
        }
        let (mut low, mut high) = (vec![f32::INFINITY; lanes], vec![f32::NEG_INFINITY; lanes]);
        // Keys inside the tile are seen by the later queries only.
        rows::extremes(&rows[..first * lanes], &mut low, &mut high);
        for (offset, row) in rows[first * lanes..].chunks_exact(lanes).enumerate() {
            for lane in offset * group..lanes {
                low[lane] = low[lane].min(row[lane]);
                high[lane] = if row[lane].is_finite() { high[lane].max(row[lane]) } else { f32::INFINITY };
            }
        }
        let is_exact = |x: &f32| x.abs() <= rows::LARGEST_LOGIT;
        let is_tame = if low.iter().chain(&high).all(is_exact) {
            let tops: Vec<u32> = high.iter().map(|x| rows::exponent(*x)).collect();
            rows::exponentials(&mut rows, &tops);
            let is_near = |(low, top): (&f32, &u32)| {
                top.wrapping_sub(rows::exponent(*low)) <= rows::SPREAD.unsigned_abs()
            };
            low.iter().zip(&tops).all(is_near)
        } else {
            for lane in 0..lanes {
                let seen = (first + lane / group + 1).min(end);
                let mut logits: Vec<f32> = (0..seen).map(|pos| rows[pos * lanes + lane]).collect();
                rows::weights_of(&mut logits);
                logits.iter().enumerate().for_each(|(pos, weight)| rows[pos * lanes + lane] = *weight);
            }
            false
        };
        for (offset, row) in rows[first * lanes..].chunks_exact_mut(lanes).enumerate() {
            row[..offset * group].fill(0.0);
        }
        let positions: Vec<Pos> = (0..).map(Pos::new).take(end).collect();
        let mut totals = vec![0.0; lanes];
        rows::sums(&rows, lanes, 0, &positions, &mut totals);
        Self { lanes, rows, totals, is_tame }
    }

    /// Weights, `[kv_pos, lane]`.
    pub(super) fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Its room, for another tile.
    pub(super) fn into_rows(self) -> Vec<f32> {
        self.rows
    }

    /// Lanes.
    pub(super) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Sums of the weights of each lane over all keys.
    pub(super) fn totals(&self) -> &[f64] {
        &self.totals
    }

    /// Whether a subset's weights are these, up to a power of two.
    pub(super) fn is_tame(&self) -> bool {
        self.is_tame
    }
}
