//! Attention of several queries on several keys, without its normaliser: what attention scorers are made of.
//!
//! Queries come in *tiles* of sixteen consecutive positions, the first a multiple of sixteen; a tile's *lanes* are its
//! queries times the query heads of the group, `lane = (query - first) * group + member`. A weight is proportional to
//! `exp(logit)` within its lane. Sums over keys run in slot order, sums over lanes in tile order, whoever serves the
//! vectors; so a replay and an executor get the same bits.

use super::HeadData;
use crate::num::products::{self, Factors};
use crate::num::{LANES, rows};
use crate::types::Pos;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// Consecutive queries that are computed together.
pub(crate) const TILE: u32 = 16;

/// The tiles that hold `queries`.
pub(crate) fn tiles(queries: &Range<u32>) -> Range<u32> {
    if queries.is_empty() { 0..0 } else { queries.start / TILE..queries.end.div_ceil(TILE) }
}

/// Attention weights of a range of queries on a list of keys, in tiles.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    queries: Range<u32>,
    group: usize,
    slots: usize,
    /// `[tile][slot, lane]`; lanes of queries outside the range hold 0.
    tiles: Vec<Vec<f32>>,
}

impl Weights {
    /// Empty weights of `queries` on `slots` keys, all 0.
    pub(crate) fn reset(&mut self, queries: Range<u32>, group: usize, slots: usize) {
        let count = tiles(&queries).len();
        let size = slots * group * TILE as usize;
        self.tiles.resize_with(count, Vec::new);
        for tile in &mut self.tiles {
            tile.clear();
            tile.resize(size, 0.0);
        }
        (self.queries, self.group, self.slots) = (queries, group, slots);
    }

    /// Queries that the weights belong to.
    #[must_use]
    pub fn queries(&self) -> Range<u32> {
        self.queries.clone()
    }

    /// Keys.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The weight of query head `member` at `query` on key `slot`; 0 for a key after the query and for a query outside the
    /// range. Comparable within one (query, member) only.
    #[must_use]
    pub fn get(&self, query: u32, member: usize, slot: usize) -> f32 {
        let Some((tile, lane)) = self.place(query, member) else {
            return 0.0;
        };
        let lanes = self.group * TILE as usize;
        self.tiles[tile].get(slot * lanes + lane).copied().unwrap_or(0.0)
    }

    /// Copies the weights of one query head at one query to `out`, `[slot]`.
    pub fn copy_row(&self, query: u32, member: usize, out: &mut Vec<f32>) {
        out.clear();
        match self.place(query, member) {
            Some((tile, lane)) => {
                let lanes = self.group * TILE as usize;
                out.extend(self.tiles[tile].chunks_exact(lanes).map(|row| row[lane]));
            }
            None => out.resize(self.slots, 0.0),
        }
    }

    /// The tile `tile` (from 0), `[slot, lane]`, to be filled.
    pub(crate) fn tile_mut(&mut self, tile: usize) -> &mut [f32] {
        self.tiles.get_mut(tile).map_or(&mut [], Vec::as_mut_slice)
    }

    fn place(&self, query: u32, member: usize) -> Option<(usize, usize)> {
        if !self.queries.contains(&query) || member >= self.group {
            return None;
        }
        let tile = (query / TILE - self.queries.start / TILE) as usize;
        Some((tile, (query % TILE) as usize * self.group + member))
    }

    /// Attention on the first `scored` keys, with the softmax over all of them, mean over queries and query heads, into
    /// `out`, `[slot]`.
    pub fn mean(&self, scored: usize, out: &mut Vec<f32>) {
        let slots: Vec<Pos> = (0..).map(Pos::new).take(self.slots).collect();
        let rows: Vec<&[f32]> = self.tiles.iter().map(Vec::as_slice).collect();
        mean_attention(&rows, (&self.queries, self.group), &slots, scored, None, out);
    }
}

/// Attention of `queries` on the first `scored` of `slots`, with the softmax over all of `slots`, mean over queries and
/// query heads, into `out`, `[slot]`. `rows` has the weights of each tile of `queries`, `[row, lane]`; `slots` names rows.
/// Lanes outside `queries` are not counted. `known` has the sums of the weights of each query on all of `slots`, `[query, member]`, where
/// they are known.
pub(crate) fn mean_attention<'a>(
    rows: &[&'a [f32]],
    (queries, group): (&Range<u32>, usize),
    slots: &[Pos],
    scored: usize,
    known: Option<&[f64]>,
    out: &mut Vec<f32>,
) {
    let lanes = group * TILE as usize;
    debug_assert_eq!(lanes % LANES, 0);
    let factors_of = |(tile, rows): (u32, &&'a [f32])| {
        let lane = |query: u32| query.saturating_sub(tile * TILE).min(TILE) as usize * group;
        let counted = lane(queries.start)..lane(queries.end);
        let first = counted.start / LANES * LANES;
        let mut totals: SmallVec<[f64; 4 * LANES]> =
            smallvec![0.0; counted.end.next_multiple_of(LANES) - first];
        match known {
            Some(known) => {
                let from = (tile * TILE).saturating_sub(queries.start) as usize * group;
                totals[counted.start - first..counted.end - first]
                    .copy_from_slice(&known[from..][..counted.len()]);
            }
            None => rows::sums(rows, lanes, first, slots, &mut totals),
        }
        Factors::of(rows, lanes, first, &totals, counted)
    };
    let tiles: SmallVec<[Factors<'_>; 2]> = tiles(queries).zip(rows).map(factors_of).collect();
    out.clear();
    out.resize(scored, 0.0);
    products::products(&tiles, &slots[..scored], out);
    divide_by_terms(out, queries.len(), group);
}

/// Sums over queries and query heads to means.
#[expect(clippy::cast_precision_loss, reason = "windows and groups are small")]
pub(crate) fn divide_by_terms(sums: &mut [f32], queries: usize, group: usize) {
    let terms = (queries.max(1) * group.max(1)) as f32;
    sums.iter_mut().for_each(|score| *score /= terms);
}

/// The weights of `queries` on `keys` from logits alone; see [`HeadData::weights`].
pub(crate) fn weights_from_logits<D: HeadData + ?Sized>(
    data: &D,
    queries: Range<u32>,
    keys: &[Pos],
    temperature: f32,
    out: &mut Weights,
) {
    let group = data.group();
    let lanes = group * TILE as usize;
    out.reset(queries.clone(), group, keys.len());
    let mut row = Vec::with_capacity(keys.len());
    for query in queries {
        for member in 0..group {
            data.logits(member, Pos::new(query), keys, &mut row);
            // A temperature of 1 divides exactly.
            row.iter_mut().for_each(|logit| *logit /= temperature);
            rows::weights_of(&mut row);
            let Some((tile, lane)) = out.place(query, member) else {
                continue;
            };
            for (target, weight) in out.tiles[tile].iter_mut().skip(lane).step_by(lanes).zip(&row) {
                *target = *weight;
            }
        }
    }
}
