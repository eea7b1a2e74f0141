//! Blocks that may go, in the order in which they go.

use crate::policy::pool::Rank;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A doubly linked list over dense indices: the front goes first.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    /// `[before, behind]` of each block; the last entry is the ring's anchor. A block outside points to itself.
    links: Vec<[u32; 2]>,
    anchor: u32,
}

impl Recency {
    /// An empty list for blocks `0..blocks`.
    pub(super) fn new(blocks: u32) -> Self {
        Self { links: (0..=blocks).map(|at| [at, at]).collect(), anchor: blocks }
    }

    /// Puts a block that is outside at the end.
    #[inline]
    pub(super) fn push(&mut self, block: u32) {
        let last = self.links[self.anchor as usize][0];
        self.links[block as usize] = [last, self.anchor];
        self.links[last as usize][1] = block;
        self.links[self.anchor as usize][0] = block;
    }

    /// Takes a block out; nothing when it is outside.
    #[inline]
    pub(super) fn remove(&mut self, block: u32) {
        let [before, behind] = self.links[block as usize];
        self.links[before as usize][1] = behind;
        self.links[behind as usize][0] = before;
        self.links[block as usize] = [block, block];
    }

    /// Whether a block is in the list.
    #[inline]
    pub(super) fn holds(&self, block: u32) -> bool {
        self.links[block as usize][0] != block
    }

    /// The front.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        let first = self.links[self.anchor as usize][1];
        (first != self.anchor).then_some(first)
    }
}

/// `(worth, then, blocks before it, index, stamp)`, so that the smallest goes first: among equals the one farther from the root,
/// then the later one.
type Entry = (u64, u64, Reverse<u32>, Reverse<u32>, u32);

/// A heap of ranks. An entry whose stamp is not the block's stamp any more is dead.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranked {
    heap: BinaryHeap<Reverse<Entry>>,
    stamps: Vec<u32>,
    live: usize,
}

impl Ranked {
    pub(super) fn new(blocks: u32) -> Self {
        Self { heap: BinaryHeap::new(), stamps: vec![0; blocks as usize], live: 0 }
    }

    /// Adds a block that is outside. Stamps are odd for blocks inside.
    pub(super) fn push(&mut self, block: u32, rank: Rank, chain: u32) {
        let stamp = &mut self.stamps[block as usize];
        if *stamp % 2 == 1 {
            return;
        }
        *stamp = stamp.wrapping_add(1);
        self.live += 1;
        self.heap.push(Reverse((bits(rank.worth), rank.then, Reverse(chain), Reverse(block), *stamp)));
        // Dead entries are swept out before they outnumber the living.
        if self.heap.len() > 2 * self.live + 1024 {
            let stamps = &self.stamps;
            self.heap.retain(|Reverse((_, _, _, Reverse(block), stamp))| stamps[*block as usize] == *stamp);
        }
    }

    /// Takes a block out; nothing when it is outside.
    pub(super) fn remove(&mut self, block: u32) {
        let stamp = &mut self.stamps[block as usize];
        if *stamp % 2 == 1 {
            *stamp = stamp.wrapping_add(1);
            self.live -= 1;
        }
    }

    /// The smallest.
    pub(super) fn first(&mut self) -> Option<u32> {
        while let Some(Reverse((_, _, _, Reverse(block), stamp))) = self.heap.peek() {
            if self.stamps[*block as usize] == *stamp {
                return Some(*block);
            }
            self.heap.pop();
        }
        None
    }
}

/// Bits whose order is that of the numbers.
fn bits(number: f64) -> u64 {
    // -0 and 0 are one number.
    let bits = (number + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_ordered_like_numbers() {
        let numbers = [f64::NEG_INFINITY, -2.0, -1e-300, -0.0, 1e-300, 0.5, 2.0, f64::INFINITY];
        assert!(numbers.windows(2).all(|pair| bits(pair[0]) < bits(pair[1])));
        assert_eq!(bits(-0.0), bits(0.0));
    }
}
