//! Keys and values of a run of positions, cut out of a cache and put together again.

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
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for head in 0..layer.keys().shape()[0] {
        for pos in begin..end {
            let slot = layer.positions(head).iter().position(|slot| *slot == Some(pos));
            let slot = slot.ok_or(DecodeError::NotResident { layer: at, head, pos, twice: false })?;
            keys.extend(layer.keys().slice(ndarray::s![head, slot, ..]));
            values.extend(layer.values().slice(ndarray::s![head, slot, ..]));
        }
    }
    Ok([keys, values])
}

impl KvCache {
    /// This cache, empty, with the rows of `blocks` put into it: positions from 0 on without a gap.
    ///
    /// # Errors
    /// Blocks that do not follow each other.
    pub(crate) fn with_blocks(mut self, blocks: &[&KvBlock]) -> Result<Self, DecodeError> {
        let end = blocks.last().map_or(0, |block| block.end);
        let mut next = 0;
        for block in blocks {
            if block.begin != next {
                return Err(DecodeError::NotResident { layer: 0, head: 0, pos: next, twice: false });
            }
            next = block.end;
        }
        let positions: Vec<u32> = (0..end).collect();
        for layer in 0..self.layers().len() {
            let slots = self.layer_mut(layer)?;
            let [heads, width] = [0, 2].map(|axis| slots.keys().shape()[axis]);
            let joined = |of: usize| {
                let mut data = Vec::with_capacity(heads * positions.len() * width);
                for head in 0..heads {
                    for block in blocks {
                        let rows = (block.end - block.begin) as usize * width;
                        data.extend_from_slice(&block.layers[layer][of][head * rows..(head + 1) * rows]);
                    }
                }
                Tensor::new(&[heads, positions.len(), width], data)
            };
            let (keys, values) = (joined(0)?, joined(1)?);
            slots.append(keys, values, &positions);
        }
        self.advance_to(end);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of one layer with two heads of width 2, whose key at a position is (head, position) and value its negative.
    fn cache(positions: u16) -> KvCache {
        let mut cache = KvCache::empty(1, 2, 2).unwrap();
        let row = |head: u16, pos: u16| [f32::from(head), f32::from(pos)];
        let keys: Vec<f32> =
            (0..2).flat_map(|head| (0..positions).flat_map(move |pos| row(head, pos))).collect();
        let values = keys.iter().map(|x| -x).collect();
        let shape = [2, usize::from(positions), 2];
        let all: Vec<u32> = (0..u32::from(positions)).collect();
        let layer = cache.layer_mut(0).unwrap();
        layer.append(Tensor::new(&shape, keys).unwrap(), Tensor::new(&shape, values).unwrap(), &all);
        cache.advance_to(positions.into());
        cache
    }

    #[test]
    fn blocks_put_together_are_the_cache_that_they_were_cut_from() {
        let whole = cache(7);
        let blocks = [(0, 3), (3, 6)].map(|(begin, end)| KvBlock::cut(&whole, begin, end).unwrap());
        let joined = cache(0).with_blocks(&[&blocks[0], &blocks[1]]).unwrap();
        assert_eq!(joined.next_position(), 6);
        let (layer, of_whole) = (&joined.layers()[0], &whole.layers()[0]);
        assert_eq!(layer.keys(), of_whole.keys().slice(ndarray::s![.., ..6, ..]));
        assert_eq!(layer.values(), of_whole.values().slice(ndarray::s![.., ..6, ..]));
        assert_eq!(layer.resident(1).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_gap_and_a_missing_position_are_refused() {
        let whole = cache(7);
        let late = KvBlock::cut(&whole, 3, 6).unwrap();
        assert!(matches!(cache(0).with_blocks(&[&late]), Err(DecodeError::NotResident { pos: 0, .. })));
        assert!(matches!(KvBlock::cut(&whole, 5, 8), Err(DecodeError::NotResident { pos: 7, .. })));
        assert_eq!((late.begin, late.end), (3, 6));
    }
}
