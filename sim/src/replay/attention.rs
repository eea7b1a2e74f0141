//! The full-cache attention of recorded queries, and what is left of it on a subset of the tokens.

use super::RecordedHead;
use super::known::Sums;
use super::tile::Tile;
use crate::num::products::Factors;
use crate::num::{LANES, rows};
use crate::policy::score::window_mass::Normaliser;
use crate::policy::{HeadData, TILE};
use crate::types::Pos;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// The attention weights on a list of tokens, summed, for queries that lie in one tile.
pub(super) struct Masses {
    /// Sums, `[query, member]` from `from` on.
    sums: Lanes,
    from: usize,
    queries: Range<u32>,
}

type Lanes = SmallVec<[f64; 4 * LANES]>;

impl Masses {
    /// The weights of `queries` on `slots`, which may hold tokens after a query: it does not see them.
    pub(super) fn of(head: &RecordedHead<'_>, queries: Range<u32>, slots: &[Pos]) -> Self {
        let (tile, mut masses, first) = Self::empty(head, queries);
        rows::sums(tile.rows(), tile.lanes(), first, slots, &mut masses.sums);
        masses
    }

    /// As [`Masses::of`], which are remembered in `sums`.
    pub(super) fn remembered(
        head: &RecordedHead<'_>,
        queries: Range<u32>,
        slots: &[Pos],
        sums: &mut Sums,
    ) -> Self {
        let (tile, mut masses, first) = Self::empty(head, queries.clone());
        let mut before = masses.sums.clone();
        let place = (tile.lanes(), first);
        rows::sums_and_before(tile.rows(), place, (slots, sums.cut), &mut masses.sums, &mut before);
        let counted = masses.from..masses.from + queries.len() * head.group();
        sums.all.extend_from_slice(&masses.sums[counted.clone()]);
        sums.before.extend_from_slice(&before[counted]);
        if let Some(mean) = &mut sums.mean {
            let looked = queries.start.max(mean.window.start)..queries.end.min(mean.window.end);
            if !looked.is_empty() {
                let totals = match mean.normaliser {
                    Normaliser::Candidates => &before,
                    Normaliser::Visible => &masses.sums,
                };
                let lane = |query: u32| (query - queries.start / TILE * TILE) as usize * head.group();
                let lanes = lane(looked.start)..lane(looked.end);
                let factors = Factors::of(tile.rows(), tile.lanes(), first, totals, lanes);
                mean.add(&factors, &slots[..sums.cut], looked.end);
            }
        }
        masses
    }

    /// Zeros, with the tile of the queries and the lane that its sums begin at.
    fn empty<'a>(head: &'a RecordedHead<'_>, queries: Range<u32>) -> (&'a Tile, Self, usize) {
        let (tile, group) = (head.tile(queries.start), head.group());
        let first = (queries.start % TILE) as usize * group;
        let aligned = first / LANES * LANES;
        let sums = smallvec![0.0; (first - aligned + queries.len() * group).next_multiple_of(LANES)];
        (tile, Self { sums, from: first - aligned, queries }, aligned)
    }

    /// Sums of one query, `[member]`.
    fn of_query(&self, query: u32, group: usize) -> &[f64] {
        &self.sums[self.from + (query - self.queries.start) as usize * group..][..group]
    }

    /// Shares of the full-cache attention, summed over the query heads of the group, for each query.
    pub(super) fn recall(&self, head: &RecordedHead<'_>) -> impl Iterator<Item = f64> {
        let totals = head.tile(self.queries.start).totals();
        let group = head.group();
        self.queries.clone().map(move |query| {
            let totals = &totals[(query % TILE) as usize * group..];
            self.of_query(query, group).iter().zip(totals).fold(0.0, |sum, (mass, total)| sum + mass / total)
        })
    }

    /// Attention outputs of the query at `query` over `slots`, those that this was made for, into `outputs`; see [`output_over`].
    pub(super) fn output(&self, head: &RecordedHead<'_>, query: u32, slots: &[Pos], outputs: &mut Vec<f64>) {
        output_over(head, query, slots, self.of_query(query, head.group()), outputs);
    }
}

/// Attention outputs of the query at `query` over `slots`, softmax over them, into `outputs`, `[member, head_dim]`; `masses` are the sums of its
/// weights on them, `[member]`. Zeros where they have no weight at all.
fn output_over(head: &RecordedHead<'_>, query: u32, slots: &[Pos], masses: &[f64], outputs: &mut Vec<f64>) {
    let (tile, group) = (head.tile(query), head.group());
    let (first, head_dim) = ((query % TILE) as usize * group, head.head_dim());
    outputs.resize(group * head_dim, 0.0);
    rows::mix(tile.rows(), (tile.lanes(), first), head.values(), head_dim, slots, outputs);
    for (output, mass) in outputs.chunks_exact_mut(head_dim).zip(masses) {
        let renormalise = if *mass > 0.0 { 1.0 / mass } else { 0.0 };
        output.iter_mut().for_each(|x| *x *= renormalise);
    }
}

/// Attention outputs of the query at `query` with the full cache, `[member, head_dim]`.
pub(super) fn full_output(head: &RecordedHead<'_>, query: u32) -> Vec<f64> {
    let all: Vec<Pos> = (0..=query).map(Pos::new).collect();
    let totals = &head.tile(query).totals()[(query % TILE) as usize * head.group()..][..head.group()];
    let mut outputs = Vec::new();
    output_over(head, query, &all, totals, &mut outputs);
    outputs
}

/// Share of the full-cache attention that falls on `resident`, summed over the query heads of the group.
pub(super) fn recall(head: &RecordedHead<'_>, query: u32, resident: &[Pos]) -> f64 {
    Masses::of(head, query..query + 1, resident).recall(head).sum()
}

/// As [`recall`], of one query head.
pub(super) fn recall_of_member(head: &RecordedHead<'_>, query: u32, member: usize, resident: &[Pos]) -> f64 {
    let group = head.group();
    let total = head.tile(query).totals()[(query % TILE) as usize * group + member];
    Masses::of(head, query..query + 1, resident).of_query(query, group)[member] / total
}

/// Additions that do not wait for one another.
const SQUARES: usize = 8;

/// `|found - expected| / |expected|` of each member, summed; both `[member, head_dim]`.
pub(super) fn relative_distance(found: &[f64], expected: &[f64], head_dim: usize) -> f64 {
    let of_member = |(found, expected): (&[f64], &[f64])| {
        let (mut apart, mut size) = ([0.0; SQUARES], [0.0; SQUARES]);
        for (found, expected) in found.chunks(SQUARES).zip(expected.chunks(SQUARES)) {
            for (i, (f, e)) in found.iter().zip(expected).enumerate() {
                apart[i] += (f - e) * (f - e);
                size[i] += e * e;
            }
        }
        let (apart, size) = (apart.iter().sum::<f64>(), size.iter().sum::<f64>());
        if size > 0.0 { (apart / size).sqrt() } else { 0.0 }
    };
    found.chunks_exact(head_dim).zip(expected.chunks_exact(head_dim)).map(of_member).sum()
}
