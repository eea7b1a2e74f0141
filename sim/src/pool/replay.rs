//! A stream served from a cache of blocks under a policy.

use super::flat;
use super::free::{Ranked, Recency};
use super::stream::{Asked, BlockStream, NONE};
use crate::policy::pool::{BlockFacts, Order, Pool};
use std::collections::VecDeque;

/// What a replay is given besides stream and policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most blocks in the cache.
    pub capacity_blocks: u64,
    /// Requests that run at the same time: a request holds its blocks until so many, itself included, have begun. At least 1.
    pub in_flight: u32,
}

/// What happened. Tokens asked for are hits, misses and tokens computed again, without rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens asked for.
    pub asked_tokens: u64,
    /// Tokens whose keys and values were found.
    pub hit_tokens: u64,
    /// Tokens computed for the first time.
    pub missed_tokens: u64,
    /// Tokens computed although they had been computed before: their block was gone, or could not be used.
    pub recomputed_tokens: u64,
    /// Full blocks asked for.
    pub asked_blocks: u64,
    /// Of these, blocks found in an unbroken run from the first one on. One may be of no use: a token must be computed.
    pub found_blocks: u64,
    /// Blocks that were stored.
    pub stored_blocks: u64,
    /// Blocks that had to go.
    pub evicted_blocks: u64,
    /// Blocks that were computed but found no room: everything else was in use.
    pub unstored_blocks: u64,
    /// Most blocks in the cache at a time.
    pub peak_blocks: u64,
}

/// What happens in a cache of blocks, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolEvent {
    /// A request begins.
    Served {
        /// The request, from 1.
        request: u64,
        /// So many of its blocks, from the first one on, are found and of use: what is behind them is computed.
        usable: usize,
    },
    /// A block goes.
    Evicted {
        /// The request that needs its room, from 1.
        request: u64,
        /// Index of the block.
        block: u32,
    },
    /// A block that was computed is stored.
    Stored {
        /// The request that computed it, from 1.
        request: u64,
        /// Its place in the request's prompt.
        at: usize,
        /// Index of the block.
        block: u32,
    },
}

/// Serves every request of `stream`.
#[must_use]
pub fn replay(stream: &BlockStream, policy: &dyn Pool, limits: Limits) -> Counts {
    replay_with(stream, policy, limits, |_, _| ())
}

/// Like [`replay()`]; `evicted` gets the request, from 1, and the index of each block that goes, in order.
pub fn replay_with(
    stream: &BlockStream,
    policy: &dyn Pool,
    limits: Limits,
    mut evicted: impl FnMut(u64, u32),
) -> Counts {
    if stream.is_flat()
        && policy.order() == Order::Recency
        && limits.in_flight <= 1
        && limits.capacity_blocks > 0
    {
        return flat_counts(stream, limits, evicted);
    }
    let on = |event| {
        if let PoolEvent::Evicted { request, block } = event {
            evicted(request, block);
        }
    };
    replay_events(stream, policy, limits, on)
}

/// Like [`replay()`]; `on` gets everything that happens, in order.
pub fn replay_events(
    stream: &BlockStream,
    policy: &dyn Pool,
    limits: Limits,
    on: impl FnMut(PoolEvent),
) -> Counts {
    replay_told(stream, policy, limits, on, |_, _| ())
}

/// Like [`replay_events`]; `served` gets the place of each request, from 0, and the counts when it has been served.
pub fn replay_told(
    stream: &BlockStream,
    policy: &dyn Pool,
    limits: Limits,
    on: impl FnMut(PoolEvent),
    mut served: impl FnMut(usize, &Counts),
) -> Counts {
    let mut cache = Cache::new(stream, policy, limits.capacity_blocks, on);
    let mut running: VecDeque<(usize, usize)> = VecDeque::new();
    let next = if policy.spec().needs.future { next_uses(stream) } else { Vec::new() };
    let mut start = 0;
    for at in 0..stream.len() {
        let (asked, blocks) = stream.request(at);
        let ahead = next.get(start..start + blocks.len()).unwrap_or(&[]);
        let held = cache.serve(asked, blocks, ahead);
        served(at, &cache.counts);
        start += blocks.len();
        running.push_back((at, held));
        while running.len() >= limits.in_flight.max(1) as usize {
            if let Some((done, held)) = running.pop_front() {
                cache.release(&stream.request(done).1[..held]);
            }
        }
    }
    cache.counts
}

fn flat_counts(stream: &BlockStream, limits: Limits, evicted: impl FnMut(u64, u32)) -> Counts {
    let found = flat::lru(stream.all_blocks(), stream.distinct(), limits.capacity_blocks, evicted);
    let (blocks, size) = (stream.blocks_asked(), u64::from(stream.block_tokens()));
    Counts {
        requests: blocks,
        asked_tokens: blocks * size,
        hit_tokens: found.hits * size,
        missed_tokens: found.first * size,
        recomputed_tokens: found.again * size,
        asked_blocks: blocks,
        found_blocks: found.hits,
        stored_blocks: found.first + found.again,
        evicted_blocks: found.evicted,
        unstored_blocks: 0,
        peak_blocks: found.peak,
    }
}

/// For each block asked for, the next request, from 1, that asks for it again; 0 when none does. Order of requests, then blocks.
fn next_uses(stream: &BlockStream) -> Vec<u64> {
    let mut next = vec![0; stream.all_blocks().len()];
    let mut later = vec![0_u64; stream.distinct() as usize];
    let mut end = next.len();
    for at in (0..stream.len()).rev() {
        let blocks = stream.request(at).1;
        let start = end - blocks.len();
        for (slot, &block) in next[start..end].iter_mut().zip(blocks) {
            *slot = std::mem::replace(&mut later[block as usize], at as u64 + 1);
        }
        end = start;
    }
    next
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    is_cached: bool,
    was_computed: bool,
    readers: u32,
    /// Cached blocks that continue it.
    children: u32,
    hits: u32,
    created: u64,
    last_access: u64,
    next_use: u64,
    score_max: f32,
    score_sum: f32,
    scores: u32,
}

enum Free {
    List(Recency),
    Heap(Ranked),
}

struct Cache<'a, F> {
    stream: &'a BlockStream,
    policy: &'a dyn Pool,
    capacity: u64,
    on: F,
    blocks: Vec<Block>,
    free: Free,
    held: u64,
    now: u64,
    counts: Counts,
}

impl<'a, F: FnMut(PoolEvent)> Cache<'a, F> {
    fn new(stream: &'a BlockStream, policy: &'a dyn Pool, capacity: u64, on: F) -> Self {
        let free = match policy.order() {
            Order::Recency => Free::List(Recency::new(stream.distinct())),
            Order::Ranked => Free::Heap(Ranked::new(stream.distinct())),
        };
        let blocks = vec![Block::default(); stream.distinct() as usize];
        Self { stream, policy, capacity, on, blocks, free, held: 0, now: 0, counts: Counts::default() }
    }

    /// Serves one request; gives how many of its blocks it holds now, from the first one on.
    fn serve(&mut self, asked: Asked, blocks: &[u32], ahead: &[u64]) -> usize {
        self.now += 1;
        let found = blocks.iter().take_while(|&&block| self.blocks[block as usize].is_cached).count();
        let usable = self.count(asked, blocks, found);
        (self.on)(PoolEvent::Served { request: self.now, usable });
        let mut held = 0;
        let mut has_room = true;
        for (at, &block) in blocks.iter().enumerate() {
            let next = ahead.get(at).copied().unwrap_or(0);
            if has_room {
                if self.blocks[block as usize].is_cached {
                    self.touch(block, asked.score, next);
                    held = at + 1;
                } else if self.make_room() {
                    self.store(block, asked.score, next);
                    (self.on)(PoolEvent::Stored { request: self.now, at, block });
                    held = at + 1;
                } else {
                    has_room = false;
                }
            }
            self.counts.unstored_blocks += u64::from(!has_room);
            self.blocks[block as usize].was_computed = true;
        }
        held
    }

    /// Counts a request of which so many blocks were found; gives how many of them are of use.
    fn count(&mut self, asked: Asked, blocks: &[u32], found: usize) -> usize {
        let size = u64::from(self.stream.block_tokens());
        let usable = found.min(self.stream.usable(asked.tokens));
        let again =
            blocks[usable..].iter().filter(|&&block| self.blocks[block as usize].was_computed).count();
        let tail = u64::from(asked.tokens) - size * blocks.len() as u64;
        let counts = &mut self.counts;
        counts.requests += 1;
        counts.asked_tokens += u64::from(asked.tokens);
        counts.hit_tokens += size * usable as u64;
        counts.recomputed_tokens += size * again as u64 + if asked.tail_again { tail } else { 0 };
        counts.missed_tokens +=
            size * (blocks.len() - usable - again) as u64 + if asked.tail_again { 0 } else { tail };
        counts.asked_blocks += blocks.len() as u64;
        counts.found_blocks += found as u64;
        usable
    }

    /// Takes a cached block into use.
    fn touch(&mut self, block: u32, score: f32, next: u64) {
        self.leave(block);
        let now = self.now;
        let state = &mut self.blocks[block as usize];
        state.readers += 1;
        state.hits += 1;
        state.last_access = now;
        state.next_use = next;
        state.score_max = state.score_max.max(score);
        state.score_sum += score;
        state.scores += 1;
    }

    /// Stores a computed block, in use.
    fn store(&mut self, block: u32, score: f32, next: u64) {
        let (now, parent) = (self.now, self.stream.node(block).parent);
        let state = &mut self.blocks[block as usize];
        *state = Block {
            is_cached: true,
            was_computed: true,
            readers: 1,
            children: state.children,
            hits: 0,
            created: now,
            last_access: now,
            next_use: next,
            score_max: score,
            score_sum: score,
            scores: 1,
        };
        if parent != NONE {
            self.blocks[parent as usize].children += 1;
        }
        self.held += 1;
        self.counts.stored_blocks += 1;
        self.counts.peak_blocks = self.counts.peak_blocks.max(self.held);
    }

    /// Whether there is room for one more block, after the lowest rank went if it had to.
    fn make_room(&mut self) -> bool {
        if self.held < self.capacity {
            return true;
        }
        let first = match &mut self.free {
            Free::List(list) => list.first(),
            Free::Heap(heap) => heap.first(),
        };
        let Some(victim) = first else { return false };
        self.leave(victim);
        self.blocks[victim as usize].is_cached = false;
        self.held -= 1;
        self.counts.evicted_blocks += 1;
        let parent = self.stream.node(victim).parent;
        if parent != NONE {
            self.blocks[parent as usize].children -= 1;
            self.enter(parent);
        }
        (self.on)(PoolEvent::Evicted { request: self.now, block: victim });
        true
    }

    /// Lets go of the blocks of a request, the last one first.
    fn release(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            self.blocks[block as usize].readers -= 1;
            self.enter(block);
        }
    }

    /// Notes that a block may go, if it may.
    fn enter(&mut self, block: u32) {
        let state = self.blocks[block as usize];
        if !state.is_cached || state.readers > 0 {
            return;
        }
        match &mut self.free {
            // The order of release is leaf first by itself.
            Free::List(list) => {
                if !list.holds(block) {
                    list.push(block);
                }
            }
            Free::Heap(heap) => {
                if state.children == 0 || !self.policy.is_leaf_first() {
                    let facts = facts(self.stream, block, &state);
                    heap.push(block, self.policy.rank(&facts), facts.chain);
                }
            }
        }
    }

    fn leave(&mut self, block: u32) {
        match &mut self.free {
            Free::List(list) => list.remove(block),
            Free::Heap(heap) => heap.remove(block),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of branches are small")]
fn facts(stream: &BlockStream, block: u32, state: &Block) -> BlockFacts {
    let node = stream.node(block);
    BlockFacts {
        chain: node.chain,
        depth: node.depth,
        created: state.created,
        last_access: state.last_access,
        hits: state.hits,
        score_max: state.score_max,
        score_mean: state.score_sum / state.scores.max(1) as f32,
        attention: node.attention,
        next_use: (state.next_use > 0).then_some(state.next_use),
    }
}
