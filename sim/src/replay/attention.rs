//! The full-cache attention of recorded queries, and what is left of it on a subset of the tokens.

use super::RecordedHead;
use crate::num::{LANES, rows};
use crate::policy::{HeadData, TILE};
use crate::types::Pos;
use std::ops::Range;

/// Sums of the weights on `slots` of the lanes of `queries`, with where they begin, `[query, member]`; the queries lie in one
/// tile.
fn masses(head: &RecordedHead<'_>, queries: &Range<u32>, slots: &[Pos]) -> (Vec<f64>, usize) {
    let (tile, group) = (head.tile(queries.start), head.group());
    let first = (queries.start % TILE) as usize * group;
    let aligned = first / LANES * LANES;
    let mut masses = vec![0.0; (first - aligned + queries.len() * group).next_multiple_of(LANES)];
    rows::sums(tile.rows(), tile.lanes(), aligned, slots, &mut masses);
    (masses, first - aligned)
}

/// Share of the full-cache attention that falls on `resident`, summed over the query heads of the group, for each query of
/// `queries`, which lie in one tile. `resident` may hold tokens after a query: it does not see them.
pub(super) fn recall(
    head: &RecordedHead<'_>,
    queries: Range<u32>,
    resident: &[Pos],
) -> impl Iterator<Item = f64> {
    let (tile, group) = (head.tile(queries.start), head.group());
    let first = (queries.start % TILE) as usize * group;
    let (masses, from) = masses(head, &queries, resident);
    (0..queries.len()).map(move |at| {
        let lanes = at * group..(at + 1) * group;
        lanes.fold(0.0, |sum, lane| sum + masses[from + lane] / tile.totals()[first + lane])
    })
}

/// As [`recall`], of one query head at one query.
pub(super) fn recall_of_member(head: &RecordedHead<'_>, query: u32, member: usize, resident: &[Pos]) -> f64 {
    let lane = (query % TILE) as usize * head.group() + member;
    let (masses, from) = masses(head, &(query..query + 1), resident);
    masses[from + member] / head.tile(query).totals()[lane]
}

/// Attention outputs of the query at `query` over `slots`, softmax over them, `[member, head_dim]`. Zeros where they have no
/// weight at all.
pub(super) fn output(head: &RecordedHead<'_>, query: u32, slots: &[Pos]) -> Vec<f64> {
    let (tile, group) = (head.tile(query), head.group());
    let (first, head_dim) = ((query % TILE) as usize * group, head.head_dim());
    let (masses, from) = masses(head, &(query..query + 1), slots);
    let mut outputs = vec![0.0; group * head_dim];
    rows::mix(tile.rows(), (tile.lanes(), first), head.values(), head_dim, slots, &mut outputs);
    for (member, output) in outputs.chunks_exact_mut(head_dim).enumerate() {
        let mass = masses[from + member];
        let renormalise = if mass > 0.0 { 1.0 / mass } else { 0.0 };
        output.iter_mut().for_each(|x| *x *= renormalise);
    }
    outputs
}

/// `|found - expected| / |expected|` of each member, summed; both `[member, head_dim]`.
pub(super) fn relative_distance(found: &[f64], expected: &[f64], head_dim: usize) -> f64 {
    let square = |x: f64| x * x;
    let of_member = |(found, expected): (&[f64], &[f64])| {
        let (mut apart, mut size) = (0.0, 0.0);
        for (f, e) in found.iter().zip(expected) {
            apart += square(f - e);
            size += square(*e);
        }
        if size > 0.0 { (apart / size).sqrt() } else { 0.0 }
    };
    found.chunks_exact(head_dim).zip(expected.chunks_exact(head_dim)).map(of_member).sum()
}
