//! Which entries live, per branch, layer and KV head, and in which blocks.
//!
//! A *stream* is one (layer, KV head) of a branch: a list of slots, filled from the front, cut into blocks. An entry
//! keeps its logical position for life; its slot changes whenever an eviction closes gaps. Forks share blocks, and a
//! block is copied when one of its holders is about to write into it.

use super::{BlockPool, Kept, LedgerError, Release};
use crate::types::{BlockId, BranchId, KvHead, LayerIdx, ModelShape, Pos, ReqId, Slot};
use std::collections::BTreeMap;
use std::fmt;

/// A branch of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchKey {
    /// The request.
    pub req: ReqId,
    /// The branch; 0 is the root.
    pub branch: BranchId,
}

impl BranchKey {
    /// The root branch of a request.
    #[must_use]
    pub const fn root(req: ReqId) -> Self {
        Self { req, branch: BranchId::new(0) }
    }
}

impl fmt::Display for BranchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} branch {}", self.req, self.branch)
    }
}

/// Whether the ledger knows which positions are resident, or only how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracking {
    /// How many. Evictions then rewrite every block: a shared one is always copied.
    #[default]
    Counts,
    /// Which. Blocks in front of the first slot that changes stay shared.
    Positions,
}

/// Blocks that a change moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Blocks newly held, copies not included.
    pub allocated: u64,
    /// Blocks copied because others hold the original.
    pub copied: u64,
    /// Blocks that got one more holder.
    pub shared: u64,
    /// Blocks that nobody holds any more.
    pub freed: u64,
}

/// What a branch takes up, summed over layers and KV heads. Shared blocks count for each holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Resident entries: one key and one value vector of one KV head each.
    pub live_entries: u64,
    /// Blocks held.
    pub blocks: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    pub(super) live: u32,
    pub(super) blocks: Vec<BlockId>,
    /// Logical positions by slot; empty unless positions are tracked.
    pub(super) positions: Vec<Pos>,
}

#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) seen: u32,
    pub(super) occupancy: Occupancy,
    /// `[layer, kv_head]`, layers outermost.
    pub(super) streams: Vec<Stream>,
}

/// Residency of all branches over one pool of blocks.
#[derive(Clone, Debug)]
pub struct Ledger {
    kv_heads: u16,
    streams: usize,
    block_tokens: u32,
    tracking: Tracking,
    pool: BlockPool,
    branches: BTreeMap<BranchKey, Branch>,
}

impl Ledger {
    /// An empty ledger for models of `shape`, with `block_tokens` (at least 1) slots a block and `capacity` blocks.
    #[must_use]
    pub fn new(shape: &ModelShape, block_tokens: u32, capacity: Option<u32>, tracking: Tracking) -> Self {
        Self {
            kv_heads: shape.kv_heads,
            streams: usize::from(shape.layers) * usize::from(shape.kv_heads),
            block_tokens: block_tokens.max(1),
            tracking,
            pool: BlockPool::new(capacity),
            branches: BTreeMap::new(),
        }
    }

    /// Starts an empty branch.
    ///
    /// # Errors
    /// When it exists.
    pub fn open(&mut self, branch: BranchKey) -> Result<(), LedgerError> {
        self.must_be_absent(branch)?;
        let streams = vec![Stream::default(); self.streams];
        self.branches.insert(branch, Branch { seen: 0, occupancy: Occupancy::default(), streams });
        Ok(())
    }

    /// Stores the next `tokens` tokens of a branch in every layer and KV head, at the positions that follow.
    ///
    /// # Errors
    /// When there is no such branch, positions run out, or the blocks do not suffice. Then nothing has changed.
    pub fn append(&mut self, key: BranchKey, tokens: u32) -> Result<Change, LedgerError> {
        let Some(branch) = self.branches.get_mut(&key) else {
            return Err(LedgerError::UnknownBranch { branch: key });
        };
        let seen = branch.seen.checked_add(tokens).ok_or(LedgerError::TooLong { branch: key })?;
        let (pool, block_tokens) = (&mut self.pool, self.block_tokens);
        if pool.capacity().is_some() {
            pool.require(branch.streams.iter().map(|s| s.growth(tokens, block_tokens, pool)).sum())?;
        }
        let mut change = Change::default();
        for stream in &mut branch.streams {
            stream.grow(tokens, block_tokens, pool, &mut change)?;
            if self.tracking == Tracking::Positions {
                stream.positions.extend((branch.seen..seen).map(Pos::new));
            }
        }
        branch.seen = seen;
        branch.occupancy.live_entries += u64::from(tokens) * branch.streams.len() as u64;
        branch.occupancy.blocks += change.allocated;
        Ok(change)
    }

    /// Blocks that `tokens` more tokens of a branch would take now, a copy of a shared last block included.
    ///
    /// # Errors
    /// When there is no such branch.
    pub fn growth(&self, branch: BranchKey, tokens: u32) -> Result<u64, LedgerError> {
        let streams = &self.branch(branch)?.streams;
        Ok(streams.iter().map(|stream| stream.growth(tokens, self.block_tokens, &self.pool)).sum())
    }

    /// Drops every entry of a branch that is not in `kept` and closes the gaps: kept entries move to the front, in
    /// the order given.
    ///
    /// # Errors
    /// When there is no such branch, `kept` does not fit it, or the copies of shared blocks find no room. Then
    /// nothing has changed.
    pub fn keep_only(&mut self, key: BranchKey, kept: &Kept) -> Result<Change, LedgerError> {
        let cuts = self.cuts(key, kept)?;
        let Some(branch) = self.branches.get_mut(&key) else {
            return Err(LedgerError::UnknownBranch { branch: key });
        };
        let mut change = Change::default();
        let mut occupancy = Occupancy::default();
        // All that is given back comes first: a copy in one stream may need a block that a later stream frees.
        for (stream, cut) in branch.streams.iter_mut().zip(&cuts) {
            stream.truncate(cut, &mut self.pool, &mut change)?;
        }
        for (at, (stream, cut)) in branch.streams.iter_mut().zip(&cuts).enumerate() {
            stream.separate(cut, &mut self.pool, &mut change)?;
            if self.tracking == Tracking::Positions
                && let Kept::Positions(lists) = kept
            {
                stream.positions.clone_from(&lists[at]);
            }
            occupancy.live_entries += u64::from(stream.live);
            occupancy.blocks += stream.blocks.len() as u64;
        }
        branch.occupancy = occupancy;
        Ok(change)
    }

    /// A new branch `child` that holds what `parent` holds now, in the same blocks.
    ///
    /// # Errors
    /// When there is no `parent`, or `child` exists.
    pub fn fork(&mut self, parent: BranchKey, child: BranchKey) -> Result<Change, LedgerError> {
        self.must_be_absent(child)?;
        let copy = self.branch(parent)?.clone();
        for &block in copy.streams.iter().flat_map(|stream| &stream.blocks) {
            self.pool.share(block)?;
        }
        let change = Change { shared: copy.occupancy.blocks, ..Change::default() };
        self.branches.insert(child, copy);
        Ok(change)
    }

    /// Forgets what a branch has seen from position `seen` on, as if it had stopped there. Positions must be tracked.
    ///
    /// # Errors
    /// When there is no such branch, or the copies of shared blocks find no room.
    pub fn rewind(&mut self, key: BranchKey, seen: u32) -> Result<Change, LedgerError> {
        if self.seen(key)? <= seen {
            return Ok(Change::default());
        }
        let below =
            |stream: &Stream| stream.positions.iter().copied().filter(|pos| pos.get() < seen).collect();
        let kept = self.branch(key)?.streams.iter().map(below).collect();
        let change = self.keep_only(key, &Kept::Positions(kept))?;
        if let Some(branch) = self.branches.get_mut(&key) {
            branch.seen = seen;
        }
        Ok(change)
    }

    /// Ends a branch: it lets go of all its blocks.
    ///
    /// # Errors
    /// When there is no such branch.
    pub fn close(&mut self, key: BranchKey) -> Result<Change, LedgerError> {
        let Some(branch) = self.branches.remove(&key) else {
            return Err(LedgerError::UnknownBranch { branch: key });
        };
        let mut change = Change::default();
        for block in branch.streams.into_iter().flat_map(|stream| stream.blocks) {
            change.freed += u64::from(self.pool.release(block)? == Release::Freed);
        }
        Ok(change)
    }

    /// What a branch takes up.
    ///
    /// # Errors
    /// When there is no such branch.
    pub fn occupancy(&self, branch: BranchKey) -> Result<Occupancy, LedgerError> {
        Ok(self.branch(branch)?.occupancy)
    }

    /// Tokens that a branch has seen, evicted ones included: the next token gets this position.
    ///
    /// # Errors
    /// When there is no such branch.
    pub fn seen(&self, branch: BranchKey) -> Result<u32, LedgerError> {
        Ok(self.branch(branch)?.seen)
    }

    /// Resident entries of one (layer, KV head); 0 when there is no such branch, layer or head.
    #[must_use]
    pub fn live(&self, branch: BranchKey, layer: LayerIdx, head: KvHead) -> u32 {
        self.stream(branch, layer, head).map_or(0, |stream| stream.live)
    }

    /// Blocks of one (layer, KV head), by slot; empty when there is no such branch, layer or head.
    #[must_use]
    pub fn blocks(&self, branch: BranchKey, layer: LayerIdx, head: KvHead) -> &[BlockId] {
        self.stream(branch, layer, head).map_or(&[], |stream| &stream.blocks)
    }

    /// Logical positions of one (layer, KV head), by slot; empty unless positions are tracked.
    #[must_use]
    pub fn positions(&self, branch: BranchKey, layer: LayerIdx, head: KvHead) -> &[Pos] {
        self.stream(branch, layer, head).map_or(&[], |stream| &stream.positions)
    }

    /// Where the entry at a logical position is stored now: its block and the place in it.
    /// `None` when it is not resident or positions are not tracked.
    #[must_use]
    pub fn locate(
        &self,
        branch: BranchKey,
        layer: LayerIdx,
        head: KvHead,
        pos: Pos,
    ) -> Option<(BlockId, Slot)> {
        let stream = self.stream(branch, layer, head)?;
        let slot = u32::try_from(stream.positions.iter().position(|&there| there == pos)?).ok()?;
        let block = stream.blocks.get((slot / self.block_tokens) as usize)?;
        Some((*block, Slot::new(slot % self.block_tokens)))
    }

    /// The pool behind all branches.
    #[must_use]
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Slots a block.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Whether positions are known.
    #[must_use]
    pub fn tracking(&self) -> Tracking {
        self.tracking
    }

    /// The branches that there are, in order.
    pub fn branches(&self) -> impl Iterator<Item = BranchKey> {
        self.branches.keys().copied()
    }

    pub(super) fn all_branches(&self) -> impl Iterator<Item = (BranchKey, &Branch)> {
        self.branches.iter().map(|(&key, branch)| (key, branch))
    }

    /// Layer and KV head of a stream.
    pub(super) fn place(&self, stream: usize) -> (LayerIdx, KvHead) {
        let kv_heads = usize::from(self.kv_heads.max(1));
        let index = |value: usize| u16::try_from(value).expect("streams are layers x KV heads, both u16");
        (LayerIdx::new(index(stream / kv_heads)), KvHead::new(index(stream % kv_heads)))
    }

    fn stream(&self, branch: BranchKey, layer: LayerIdx, head: KvHead) -> Option<&Stream> {
        if head.get() >= self.kv_heads {
            return None;
        }
        self.branches.get(&branch)?.streams.get(layer.idx() * usize::from(self.kv_heads) + head.idx())
    }

    fn branch(&self, branch: BranchKey) -> Result<&Branch, LedgerError> {
        self.branches.get(&branch).ok_or(LedgerError::UnknownBranch { branch })
    }

    fn must_be_absent(&self, branch: BranchKey) -> Result<(), LedgerError> {
        if self.branches.contains_key(&branch) { Err(LedgerError::BranchExists { branch }) } else { Ok(()) }
    }

    /// Checks an eviction and says, stream by stream, what it does to blocks.
    fn cuts(&self, key: BranchKey, kept: &Kept) -> Result<Vec<Cut>, LedgerError> {
        let branch = self.branch(key)?;
        if kept.streams() != self.streams {
            return Err(LedgerError::KeptSets { branch: key, expected: self.streams, found: kept.streams() });
        }
        let mut cuts = Vec::with_capacity(self.streams);
        for (at, stream) in branch.streams.iter().enumerate() {
            cuts.push(self.cut(key, at, stream, kept)?);
        }
        if self.pool.capacity().is_some() && self.pool.shared() > 0 {
            let pairs = || branch.streams.iter().zip(&cuts);
            let copies: u64 = pairs().map(|(stream, cut)| cut.copies(stream, &self.pool)).sum();
            let freed: u64 = pairs().map(|(stream, cut)| cut.freed(stream, &self.pool)).sum();
            self.pool.require(copies.saturating_sub(freed))?;
        }
        Ok(cuts)
    }

    fn cut(&self, key: BranchKey, at: usize, stream: &Stream, kept: &Kept) -> Result<Cut, LedgerError> {
        let count = kept.count(at);
        let Some(live) = u32::try_from(count).ok().filter(|&count| count <= stream.live) else {
            let (layer, head) = self.place(at);
            return Err(LedgerError::KeptTooMany {
                branch: key,
                layer,
                head,
                kept: count,
                live: stream.live,
            });
        };
        let unchanged_slots = match (self.tracking, kept) {
            (Tracking::Counts, _) => {
                if live == stream.live {
                    live
                } else {
                    0
                }
            }
            (Tracking::Positions, Kept::Sets(_)) => {
                return Err(LedgerError::PositionsNeeded { branch: key });
            }
            (Tracking::Positions, Kept::Positions(lists)) => {
                let list = &lists[at];
                if let Some(pos) = stranger(&stream.positions, list) {
                    let (layer, head) = self.place(at);
                    return Err(LedgerError::KeptPosition { branch: key, layer, head, pos });
                }
                let same = stream.positions.iter().zip(list).take_while(|(old, new)| old == new).count();
                u32::try_from(same).expect("at most `live` positions, a u32")
            }
        };
        let blocks = live.div_ceil(self.block_tokens) as usize;
        let unchanged =
            if unchanged_slots == live { blocks } else { (unchanged_slots / self.block_tokens) as usize };
        Ok(Cut { live, blocks, unchanged })
    }
}

/// The first position of `kept` that is not in `resident` or comes twice.
fn stranger(resident: &[Pos], kept: &[Pos]) -> Option<Pos> {
    let mut open: std::collections::BTreeSet<Pos> = resident.iter().copied().collect();
    kept.iter().copied().find(|pos| !open.remove(pos))
}

/// What an eviction does to one stream.
struct Cut {
    live: u32,
    /// Blocks that remain.
    blocks: usize,
    /// Blocks at the front whose content does not change.
    unchanged: usize,
}

impl Cut {
    fn copies(&self, stream: &Stream, pool: &BlockPool) -> u64 {
        stream.blocks[self.unchanged..self.blocks].iter().filter(|&&block| pool.holders(block) > 1).count()
            as u64
    }

    fn freed(&self, stream: &Stream, pool: &BlockPool) -> u64 {
        stream.blocks[self.blocks..].iter().filter(|&&block| pool.holders(block) == 1).count() as u64
    }
}

impl Stream {
    /// Blocks that `tokens` more entries take: new ones, and a copy of a shared last one.
    fn growth(&self, tokens: u32, block_tokens: u32, pool: &BlockPool) -> u64 {
        let blocks = (u64::from(self.live) + u64::from(tokens)).div_ceil(u64::from(block_tokens));
        let copied = tokens > 0 && self.shared_tail(block_tokens, pool).is_some();
        blocks - self.blocks.len() as u64 + u64::from(copied)
    }

    fn grow(
        &mut self,
        tokens: u32,
        block_tokens: u32,
        pool: &mut BlockPool,
        change: &mut Change,
    ) -> Result<(), LedgerError> {
        if tokens > 0
            && let Some(tail) = self.shared_tail(block_tokens, pool)
            && let Some(copy) = pool.copy_on_write(tail)?
        {
            change.copied += 1;
            self.blocks.pop();
            self.blocks.push(copy);
        }
        self.live += tokens;
        while (self.blocks.len() as u64) * u64::from(block_tokens) < u64::from(self.live) {
            self.blocks.push(pool.allocate()?);
            change.allocated += 1;
        }
        Ok(())
    }

    /// The last block, when it has room and others hold it too.
    fn shared_tail(&self, block_tokens: u32, pool: &BlockPool) -> Option<BlockId> {
        if pool.shared() == 0 || self.live.is_multiple_of(block_tokens) {
            return None;
        }
        self.blocks.last().copied().filter(|&tail| pool.holders(tail) > 1)
    }

    fn truncate(&mut self, cut: &Cut, pool: &mut BlockPool, change: &mut Change) -> Result<(), LedgerError> {
        for block in self.blocks.drain(cut.blocks..) {
            change.freed += u64::from(pool.release(block)? == Release::Freed);
        }
        self.live = cut.live;
        Ok(())
    }

    /// Copies every block that is about to be written and that others hold too.
    fn separate(&mut self, cut: &Cut, pool: &mut BlockPool, change: &mut Change) -> Result<(), LedgerError> {
        for block in &mut self.blocks[cut.unchanged..] {
            if let Some(copy) = pool.copy_on_write(*block)? {
                change.copied += 1;
                *block = copy;
            }
        }
        Ok(())
    }
}
