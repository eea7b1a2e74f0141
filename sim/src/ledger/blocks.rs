//! Physical KV blocks: reference counts, copy-on-write, and a free list by lowest id.
//!
//! A pool does not know what is in a block or who holds it, only how many do.

use super::LedgerError;
use crate::types::BlockId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What became of a block when one holder let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Others still hold it.
    StillHeld,
    /// It was the last holder: the block is free.
    Freed,
}

/// Physical blocks of one size.
#[derive(Clone, Debug, Default)]
pub struct BlockPool {
    capacity: Option<u32>,
    /// Holders per block; 0 = free. Its length is the number of blocks ever touched.
    holders: Vec<u32>,
    free: BinaryHeap<Reverse<BlockId>>,
    shared: u32,
    allocated: u64,
    freed: u64,
}

impl BlockPool {
    /// A pool of `capacity` blocks; `None` = as many as are asked for.
    #[must_use]
    pub fn new(capacity: Option<u32>) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// The free block with the lowest id, now with one holder.
    ///
    /// # Errors
    /// When all blocks are held.
    pub fn allocate(&mut self) -> Result<BlockId, LedgerError> {
        self.require(1)?;
        self.allocated += 1;
        if let Some(Reverse(block)) = self.free.pop() {
            self.holders[block.idx()] = 1;
            return Ok(block);
        }
        let fresh =
            u32::try_from(self.holders.len()).expect("`require` keeps the pool below u32::MAX blocks");
        self.holders.push(1);
        Ok(BlockId::new(fresh))
    }

    /// One more holder for a block that is held.
    ///
    /// # Errors
    /// When nobody holds it.
    pub fn share(&mut self, block: BlockId) -> Result<(), LedgerError> {
        let holders = self.held_mut(block)?;
        *holders += 1;
        if *holders == 2 {
            self.shared += 1;
        }
        Ok(())
    }

    /// One holder less; the last one frees the block.
    ///
    /// # Errors
    /// When nobody holds it.
    pub fn release(&mut self, block: BlockId) -> Result<Release, LedgerError> {
        let holders = self.held_mut(block)?;
        *holders -= 1;
        match *holders {
            0 => {
                self.freed += 1;
                self.free.push(Reverse(block));
                Ok(Release::Freed)
            }
            1 => {
                self.shared -= 1;
                Ok(Release::StillHeld)
            }
            _ => Ok(Release::StillHeld),
        }
    }

    /// Makes a block safe to write for one of its holders: `None` when it is the only one, else the copy that it
    /// holds from now on instead.
    ///
    /// # Errors
    /// When nobody holds it, or no block is free for the copy. Then nothing has changed.
    pub fn copy_on_write(&mut self, block: BlockId) -> Result<Option<BlockId>, LedgerError> {
        if *self.held_mut(block)? == 1 {
            return Ok(None);
        }
        let copy = self.allocate()?;
        self.release(block)?;
        Ok(Some(copy))
    }

    /// # Errors
    /// When fewer than `asked` blocks are free.
    pub fn require(&self, asked: u64) -> Result<(), LedgerError> {
        let free = self.free_blocks();
        if asked <= free {
            return Ok(());
        }
        Err(LedgerError::OutOfBlocks { asked, free, capacity: self.limit() })
    }

    /// Blocks that could be allocated now.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        u64::from(self.limit()) - self.held()
    }

    /// Blocks that somebody holds: allocated less freed.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.allocated - self.freed
    }

    /// Blocks with more than one holder.
    #[must_use]
    pub fn shared(&self) -> u32 {
        self.shared
    }

    /// Allocations so far, copies included.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Blocks freed so far.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// The limit that was asked for; `None` = no limit.
    #[must_use]
    pub fn capacity(&self) -> Option<u32> {
        self.capacity
    }

    /// Holders of `block`; 0 when it is free or was never allocated.
    #[must_use]
    pub fn holders(&self, block: BlockId) -> u32 {
        self.holders.get(block.idx()).copied().unwrap_or(0)
    }

    /// Holders of every block ever touched, by id.
    pub(super) fn all_holders(&self) -> &[u32] {
        &self.holders
    }

    /// Free blocks among those ever touched, in no order.
    pub(super) fn free_list(&self) -> impl Iterator<Item = BlockId> {
        self.free.iter().map(|&Reverse(block)| block)
    }

    fn limit(&self) -> u32 {
        self.capacity.unwrap_or(u32::MAX)
    }

    fn held_mut(&mut self, block: BlockId) -> Result<&mut u32, LedgerError> {
        match self.holders.get_mut(block.idx()) {
            Some(holders) if *holders > 0 => Ok(holders),
            _ => Err(LedgerError::NotHeld { block }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(blocks: u32) -> (BlockPool, Vec<BlockId>) {
        let mut pool = BlockPool::new(Some(blocks));
        let ids = (0..blocks).map(|_| pool.allocate().unwrap()).collect();
        (pool, ids)
    }

    #[test]
    fn the_lowest_free_block_is_reused_first() {
        let (mut pool, ids) = pool(4);
        for id in [ids[2], ids[0], ids[3]] {
            assert_eq!(pool.release(id).unwrap(), Release::Freed);
        }
        assert_eq!([pool.allocate().unwrap(), pool.allocate().unwrap()], [ids[0], ids[2]]);
    }

    #[test]
    fn a_full_pool_refuses_with_numbers() {
        let (mut pool, _) = pool(3);
        assert_eq!(pool.allocate(), Err(LedgerError::OutOfBlocks { asked: 1, free: 0, capacity: 3 }));
        assert_eq!((pool.held(), pool.allocated()), (3, 3));
    }

    #[test]
    fn a_block_is_freed_by_its_last_holder() {
        let (mut pool, ids) = pool(1);
        pool.share(ids[0]).unwrap();
        assert_eq!((pool.holders(ids[0]), pool.shared()), (2, 1));
        assert_eq!(pool.release(ids[0]).unwrap(), Release::StillHeld);
        assert_eq!(pool.release(ids[0]).unwrap(), Release::Freed);
        assert_eq!(pool.release(ids[0]), Err(LedgerError::NotHeld { block: ids[0] }));
        assert_eq!((pool.held(), pool.shared()), (0, 0));
    }

    #[test]
    fn only_a_shared_block_is_copied() {
        let mut pool = BlockPool::new(None);
        let block = pool.allocate().unwrap();
        assert_eq!(pool.copy_on_write(block).unwrap(), None);
        pool.share(block).unwrap();
        let copy = pool.copy_on_write(block).unwrap().unwrap();
        assert_eq!((pool.holders(block), pool.holders(copy)), (1, 1));
    }

    #[test]
    fn a_copy_that_does_not_fit_changes_nothing() {
        let (mut pool, ids) = pool(1);
        pool.share(ids[0]).unwrap();
        assert!(pool.copy_on_write(ids[0]).is_err());
        assert_eq!((pool.holders(ids[0]), pool.held()), (2, 1));
    }
}
