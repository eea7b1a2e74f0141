//! Keys and values of a run of positions, cut out of a cache and put together again.

use ndarray::ArrayView3;

use super::cache::{KvCache, LayerCache};
use super::error::DecodeError;
use crate::runtime::Tensor;

/// Keys and values of consecutive positions, all layers: what a block cache holds.
#[derive(Debug, Clone)]
pub(crate) struct KvBlock {
    begin: u32,
    end: u32,
    /// Keys and values of each layer, `[kv_head, pos, head_dim]`.
    layers: Vec<[Vec<f32>; 2]>,
}

impl KvBlock {
    /// The rows of positions `begin..end` of a cache that has them all.
    ///
    /// # Errors
    /// A position that is not resident in some head.
    pub(crate) fn cut(cache: &KvCache, begin: u32, end: u32) -> Result<Self, DecodeError> {
        let layers = cache.layers().iter().enumerate();
        let layers = layers.map(|(at, layer)| cut(layer, at, begin, end)).collect::<Result<_, _>>()?;
        Ok(Self { begin, end, layers })
    }
}

fn cut(layer: &LayerCache, at: usize, begin: u32, end: u32) -> Result<[Vec<f32>; 2], DecodeError> {
    let missing = |head: usize, pos: u32| DecodeError::NotResident { layer: at, head, pos, twice: false };
    let slots = (0..layer.keys().shape()[0])
        .map(|head| slots(layer.positions(head), begin, end).map_err(|pos| missing(head, pos)))
        .collect::<Result<Vec<_>, _>>()?;
    Ok([rows(layer.keys(), &slots), rows(layer.values(), &slots)])
}

/// Where the positions `begin..end` of a head stand, or the first one that does not.
fn slots(positions: &[Option<u32>], begin: u32, end: u32) -> Result<Vec<usize>, u32> {
    let place = |pos: u32| positions.iter().position(|slot| *slot == Some(pos)).ok_or(pos);
    (begin..end).map(place).collect()
}

/// The rows at `slots`, `[kv_head][pos]`, of `[kv_head, slot, head_dim]`.
fn rows(tensor: ArrayView3<'_, f32>, slots: &[Vec<usize>]) -> Vec<f32> {
    let each = slots.iter().enumerate().flat_map(|(head, slots)| slots.iter().map(move |slot| (head, *slot)));
    each.flat_map(|(head, slot)| tensor.slice(ndarray::s![head, slot, ..]).to_vec()).collect()
}

/// Rows of `parts`, each `[kv_head, pos, head_dim]`, one behind the other in every head.
fn joined(parts: &[&[f32]], heads: usize) -> Vec<f32> {
    let of_head = |head: usize, part: &[f32]| {
        let size = part.len() / heads.max(1);
        part[head * size..(head + 1) * size].to_vec()
    };
    (0..heads).flat_map(|head| parts.iter().flat_map(move |part| of_head(head, part))).collect()
}

/// The position behind the last of `blocks`, which begin at 0 and follow each other; else the first one that none of them has.
fn end_of(blocks: &[&KvBlock]) -> Result<u32, u32> {
    blocks.iter().try_fold(0, |next, block| if block.begin == next { Ok(block.end) } else { Err(next) })
}

impl KvCache {
    /// This cache, empty, with the rows of `blocks` put into it: positions from 0 on without a gap.
    ///
    /// # Errors
    /// Blocks that do not follow each other.
    pub(crate) fn with_blocks(mut self, blocks: &[&KvBlock]) -> Result<Self, DecodeError> {
        let end = end_of(blocks).map_err(|pos| DecodeError::NotResident {
            layer: 0,
            head: 0,
            pos,
            twice: false,
        })?;
        let positions: Vec<u32> = (0..end).collect();
        for layer in 0..self.layers().len() {
            let slots = self.layer_mut(layer)?;
            let [heads, width] = [0, 2].map(|axis| slots.keys().shape()[axis]);
            let of = |which: usize| {
                let parts: Vec<&[f32]> =
                    blocks.iter().map(|block| block.layers[layer][which].as_slice()).collect();
                Tensor::new(&[heads, positions.len(), width], joined(&parts, heads))
            };
            let (keys, values) = (of(0)?, of(1)?);
            slots.append(keys, values, &positions);
        }
        self.advance_to(end);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two heads of seven positions of width 2: (head, position) at each.
    fn whole() -> ndarray::Array3<f32> {
        let number = |at: usize| f32::from(u8::try_from(at).unwrap());
        ndarray::Array3::from_shape_fn((2, 7, 2), |(head, pos, at)| number(if at == 0 { head } else { pos }))
    }

    fn cut(begin: u32, end: u32) -> Vec<f32> {
        let resident: Vec<Option<u32>> = (0..7).map(Some).collect();
        rows(whole().view(), &[slots(&resident, begin, end).unwrap(), slots(&resident, begin, end).unwrap()])
    }

    #[test]
    fn blocks_put_together_are_the_rows_that_they_were_cut_from() {
        let together = joined(&[&cut(0, 3), &cut(3, 4), &cut(4, 6)], 2);
        assert_eq!(together, whole().slice(ndarray::s![.., ..6, ..]).iter().copied().collect::<Vec<_>>());
        assert!(joined(&[], 2).is_empty());
    }

    #[test]
    fn rows_are_found_where_they_stand_and_a_missing_position_is_named() {
        let resident = [Some(4), None, Some(2), Some(3)];
        assert_eq!(slots(&resident, 2, 5), Ok(vec![2, 3, 0]));
        assert_eq!(slots(&resident, 2, 6), Err(5));
    }

    #[test]
    fn a_gap_between_blocks_is_named() {
        let block = |begin, end| KvBlock { begin, end, layers: Vec::new() };
        let (first, next, late) = (block(0, 3), block(3, 6), block(6, 9));
        assert_eq!(end_of(&[&first, &next, &late]), Ok(9));
        assert_eq!(end_of(&[&first, &late]), Err(3));
        assert_eq!(end_of(&[&next]), Err(0));
        assert_eq!(end_of(&[]), Ok(0));
    }
}
