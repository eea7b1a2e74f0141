//! Keys and values of a run of positions, cut out of a cache and put together again.

use super::cache::{KvCache, LayerCache};
use super::error::DecodeError;

/// Keys and values of consecutive positions, all layers: what a block cache holds.
#[derive(Debug, Clone)]
pub(crate) struct KvBlock {
    begin: u32,
    end: u32,
    /// Keys and values of each layer, `[kv_head][pos * head_dim]`.
    layers: Vec<[Vec<Vec<f32>>; 2]>,
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

fn cut(layer: &LayerCache, at: usize, begin: u32, end: u32) -> Result<[Vec<Vec<f32>>; 2], DecodeError> {
    let missing = |head: usize, pos: u32| DecodeError::NotResident { layer: at, head, pos, twice: false };
    let slots = (0..layer.kv_heads())
        .map(|head| slots(layer.positions(head), begin, end).map_err(|pos| missing(head, pos)))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (head, slots) in slots.iter().enumerate() {
        keys.push(rows(layer.keys(head)?, slots, layer.head_dim()));
        values.push(rows(layer.values(head)?, slots, layer.head_dim()));
    }
    Ok([keys, values])
}

/// Where the positions `begin..end` of a head stand, or the first one that does not.
fn slots(positions: &[Option<u32>], begin: u32, end: u32) -> Result<Vec<usize>, u32> {
    let place = |pos: u32| positions.iter().position(|slot| *slot == Some(pos)).ok_or(pos);
    (begin..end).map(place).collect()
}

/// The rows at `slots` of `[slot, head_dim]`.
fn rows(all: &[f32], slots: &[usize], width: usize) -> Vec<f32> {
    slots.iter().flat_map(|slot| &all[slot * width..(slot + 1) * width]).copied().collect()
}

/// Rows of `parts`, each `[kv_head][pos * head_dim]`, one behind the other in every head.
fn joined(parts: &[&Vec<Vec<f32>>], heads: usize) -> Vec<Vec<f32>> {
    (0..heads).map(|head| parts.iter().flat_map(|part| &part[head]).copied().collect()).collect()
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
            let held = self.layer_mut(layer)?;
            let of = |which: usize| {
                let parts: Vec<_> = blocks.iter().map(|block| &block.layers[layer][which]).collect();
                joined(&parts, held.kv_heads())
            };
            let (keys, values) = (of(0), of(1));
            held.hold(keys, values, &positions)?;
        }
        self.advance_to(end);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two heads of so many positions of width 2: (head, position) at each.
    fn whole(positions: u8) -> Vec<Vec<f32>> {
        let of_head = |head: u8| (0..positions).flat_map(|pos| [f32::from(head), f32::from(pos)]).collect();
        (0..2).map(of_head).collect()
    }

    fn cut(begin: u32, end: u32) -> Vec<Vec<f32>> {
        let resident: Vec<Option<u32>> = (0..7).map(Some).collect();
        whole(7).iter().map(|head| rows(head, &slots(&resident, begin, end).unwrap(), 2)).collect()
    }

    #[test]
    fn blocks_put_together_are_the_rows_that_they_were_cut_from() {
        let together = joined(&[&cut(0, 3), &cut(3, 4), &cut(4, 6)], 2);
        assert_eq!(together, whole(6));
        assert_eq!(joined(&[], 2), vec![Vec::<f32>::new(); 2]);
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
