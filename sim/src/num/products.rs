//! Products of rows with one factor a lane: the attention that many queries give to a key, added up.
//!
//! The rules are those of [`super::rows`]: additions in a fixed order, so all instruction sets give the same bits.

use super::{LANES, Row, fold};
use crate::types::Pos;
use multiversion::multiversion;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// The lanes of a tile's rows that count, each with what it is multiplied by.
#[derive(Clone, Debug)]
pub(crate) struct Factors<'a> {
    /// `[row, lane]`.
    pub(crate) rows: &'a [f32],
    /// Lanes of a row.
    pub(crate) lanes: usize,
    /// The first lane that counts, a multiple of 16.
    pub(crate) first: usize,
    /// What the lanes from there on are multiplied by; a multiple of 16 of them.
    pub(crate) factors: SmallVec<[f32; 4 * LANES]>,
}

impl<'a> Factors<'a> {
    /// The factors of the lanes `counted` of a tile, whose sums over some set of keys are `totals`, from the lane `first` on: one over them, 0 for lanes
    /// that are not counted or have no weight.
    #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
    pub(crate) fn of(
        rows: &'a [f32],
        lanes: usize,
        first: usize,
        totals: &[f64],
        counted: Range<usize>,
    ) -> Self {
        let mut factors = smallvec![0.0; totals.len()];
        for (lane, (factor, total)) in factors.iter_mut().zip(totals).enumerate() {
            if counted.contains(&(first + lane)) && !(*total <= 0.0) {
                *factor = (1.0 / total) as f32;
            }
        }
        Self { rows, lanes, first, factors }
    }
}

/// [`add_products`] of the chunks `at..at + C` of the factors, which stay in registers.
#[inline(always)]
fn add_chunks<const C: usize>(
    tile: &Factors<'_>,
    at: usize,
    slots: &[Pos],
    is_begun: bool,
    partial: &mut [Row],
) {
    let mut factors = [[0.0; LANES]; C];
    factors.copy_from_slice(&tile.factors.as_chunks::<LANES>().0[at..at + C]);
    let first = tile.first + at * LANES;
    for (slot, partial) in slots.iter().zip(partial) {
        let mut lanes = if is_begun { partial.0 } else { [0.0; LANES] };
        let from = slot.idx() * tile.lanes + first;
        // A key after every query of the tile has no row, and no weight.
        if let Some(row) = tile.rows.get(from..from + C * LANES) {
            let row = row.as_chunks::<LANES>().0;
            for c in 0..C {
                for i in 0..LANES {
                    lanes[i] = row[c][i].mul_add(factors[c][i], lanes[i]);
                }
            }
        }
        partial.0 = lanes;
    }
}

/// [`add_products`], for whoever is compiled for the same instructions.
#[inline(always)]
fn add_tile(tile: &Factors<'_>, slots: &[Pos], is_begun: bool, partial: &mut [Row]) {
    let (mut at, chunks) = (0, tile.factors.len() / LANES);
    while at < chunks {
        let is_begun = is_begun || at > 0;
        at += match chunks - at {
            1 => {
                add_chunks::<1>(tile, at, slots, is_begun, partial);
                1
            }
            2 | 4 => {
                add_chunks::<2>(tile, at, slots, is_begun, partial);
                2
            }
            _ => {
                add_chunks::<3>(tile, at, slots, is_begun, partial);
                3
            }
        };
    }
}

/// Adds the product of each row of `slots` with the factors of one tile to `partial`, `[slot]`, or sets it to that where nothing `is_begun`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn add_products(tile: &Factors<'_>, slots: &[Pos], is_begun: bool, partial: &mut [Row]) {
    add_tile(tile, slots, is_begun, partial);
}

/// Folds each row as [`super::dot`] folds. `out` is `[row]`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn folds(rows: &[Row], out: &mut [f32]) {
    for (row, out) in rows.iter().zip(out) {
        *out = fold(row.0);
    }
}

/// The product of each row of `slots` with the factors, the tiles one after the other, folded as [`super::dot`] folds. `out`
/// is `[slot]`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn products(tiles: &[Factors<'_>], slots: &[Pos], out: &mut [f32]) {
    // As many as stay near while the tiles are gone through.
    const BLOCK: usize = 64;
    let mut partial = [Row::default(); BLOCK];
    for (slots, out) in slots.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let partial = &mut partial[..slots.len()];
        for (at, tile) in tiles.iter().enumerate() {
            add_tile(tile, slots, at > 0, partial);
        }
        for (row, out) in partial.iter().zip(out) {
            *out = fold(row.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::value;
    use super::*;

    #[test]
    fn products_have_the_bits_of_a_fold() {
        for chunks in [1, 2, 3, 4, 5, 7] {
            let (first, counted) = (LANES, chunks * LANES);
            let lanes = first + counted;
            let rows: Vec<f32> = (0..40 * lanes).map(value).collect();
            let factors = (0..counted).map(|i| value(i + 5)).collect();
            let tile = Factors { rows: &rows, lanes, first, factors };
            for count in [0u32, 1, 3, 4, 7, 40, 130] {
                // Some have no row.
                let slots: Vec<Pos> = (0..count).map(|i| Pos::new(i * 7 % 40 + i / 39)).collect();
                let mut found = vec![f32::NAN; slots.len()];
                products(&[tile.clone(), tile.clone()], &slots, &mut found);
                for (slot, found) in slots.iter().zip(&found) {
                    let mut partial = [0.0f32; LANES];
                    for _ in 0..2 {
                        let row = rows.get(slot.idx() * lanes + first..).into_iter().flatten();
                        row.zip(&tile.factors)
                            .enumerate()
                            .for_each(|(i, (x, f))| partial[i % LANES] = x.mul_add(*f, partial[i % LANES]));
                    }
                    assert_eq!(found.to_bits(), fold(partial).to_bits(), "{count} slots");
                }
                let (mut partial, mut in_turns) =
                    (vec![Row([7.0; LANES]); slots.len()], vec![f32::NAN; slots.len()]);
                add_products(&tile, &slots, false, &mut partial);
                add_products(&tile, &slots, true, &mut partial);
                folds(&partial, &mut in_turns);
                let are_same = in_turns.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(are_same, "{chunks} chunks, {count} slots in turns");
            }
        }
    }
}
