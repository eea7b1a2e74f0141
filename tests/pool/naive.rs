//! The block cache as one would write it down: a list of blocks, looked through from end to end whenever one must go.

use kvlab_sim::policy::pool::{BlockFacts, Pool};
use kvlab_sim::pool::{BlockStream, Counts, Limits};
use std::collections::{BTreeMap, BTreeSet};

struct Held {
    readers: u32,
    created: u64,
    last: u64,
    hits: u32,
    scores: Vec<f32>,
}

pub(super) fn replay(stream: &BlockStream, policy: &dyn Pool, limits: Limits) -> (Counts, Vec<(u64, u32)>) {
    let size = u64::from(stream.block_tokens());
    let requests: Vec<Vec<u32>> = (0..stream.len()).map(|at| stream.request(at).1.to_vec()).collect();
    let (mut cache, mut computed) = (BTreeMap::<u32, Held>::new(), BTreeSet::new());
    let (mut counts, mut log, mut running) = (Counts::default(), Vec::new(), Vec::<Vec<u32>>::new());
    for (at, blocks) in requests.iter().enumerate() {
        let now = at as u64 + 1;
        let asked = stream.request(at).0;
        let found = blocks.iter().take_while(|block| cache.contains_key(block)).count();
        let usable = found.min(stream.usable(asked.tokens));
        counts.requests += 1;
        counts.asked_tokens += u64::from(asked.tokens);
        counts.asked_blocks += blocks.len() as u64;
        counts.found_blocks += found as u64;
        counts.hit_tokens += usable as u64 * size;
        for block in &blocks[usable..] {
            let counter = if computed.contains(block) {
                &mut counts.recomputed_tokens
            } else {
                &mut counts.missed_tokens
            };
            *counter += size;
        }
        let tail = u64::from(asked.tokens) - blocks.len() as u64 * size;
        *(if asked.tail_again { &mut counts.recomputed_tokens } else { &mut counts.missed_tokens }) += tail;

        let mut mine = Vec::new();
        for (place, &block) in blocks.iter().enumerate() {
            if let Some(held) = cache.get_mut(&block) {
                (held.readers, held.last, held.hits) = (held.readers + 1, now, held.hits + 1);
                held.scores.push(asked.score);
            } else {
                if cache.len() as u64 >= limits.capacity_blocks {
                    let Some(victim) = victim(stream, policy, &cache, &requests, at) else {
                        counts.unstored_blocks += (blocks.len() - place) as u64;
                        break;
                    };
                    cache.remove(&victim);
                    counts.evicted_blocks += 1;
                    log.push((now, victim));
                }
                let fresh = Held { readers: 1, created: now, last: now, hits: 0, scores: vec![asked.score] };
                cache.insert(block, fresh);
                counts.stored_blocks += 1;
                counts.peak_blocks = counts.peak_blocks.max(cache.len() as u64);
            }
            mine.push(block);
        }
        computed.extend(blocks.iter().copied());
        running.push(mine);
        if running.len() >= limits.in_flight as usize {
            for block in running.remove(0) {
                cache.get_mut(&block).unwrap().readers -= 1;
            }
        }
    }
    (counts, log)
}

/// Whether `child` stands right behind `block` in some prompt.
fn continues(requests: &[Vec<u32>], block: u32, child: u32) -> bool {
    requests.iter().any(|blocks| blocks.windows(2).any(|pair| pair == [block, child]))
}

fn victim(
    stream: &BlockStream,
    policy: &dyn Pool,
    cache: &BTreeMap<u32, Held>,
    requests: &[Vec<u32>],
    at: usize,
) -> Option<u32> {
    let rank = |block: u32, held: &Held| {
        let (chain, depth) = stream.place(block);
        // The next use after the last one: the request that runs now has used its blocks already.
        let last = usize::try_from(held.last).unwrap();
        let next = (last..requests.len()).find(|&later| requests[later].contains(&block));
        let count = f32::from(u16::try_from(held.scores.len()).unwrap());
        policy.rank(&BlockFacts {
            chain,
            depth,
            created: held.created,
            last_access: held.last,
            hits: held.hits,
            score_max: held.scores.iter().copied().fold(0.0, f32::max),
            score_mean: held.scores.iter().sum::<f32>() / count,
            attention: attention(stream, requests, block),
            next_use: next.map(|later| later as u64 + 1),
        })
    };
    let may_go = |(block, held): &(&u32, &Held)| {
        let has_child = cache.keys().any(|&child| continues(requests, **block, child));
        held.readers == 0 && (!policy.is_leaf_first() || !has_child)
    };
    let _: usize = at;
    cache
        .iter()
        .filter(may_go)
        .min_by(|(a, of_a), (b, of_b)| {
            let (x, y) = (rank(**a, of_a), rank(**b, of_b));
            let chain = |block: u32| stream.place(block).0;
            x.worth
                .total_cmp(&y.worth)
                .then(x.then.cmp(&y.then))
                .then(chain(**b).cmp(&chain(**a)))
                .then(b.cmp(a))
        })
        .map(|(&block, _)| block)
}

/// The attention that `any_stream` gives a block: a function of the score of the request that brought it.
fn attention(stream: &BlockStream, requests: &[Vec<u32>], block: u32) -> f32 {
    if stream.is_flat() {
        return 1.0;
    }
    let first = requests.iter().position(|blocks| blocks.contains(&block)).unwrap();
    stream.request(first).0.score + 0.25
}

/// The largest number of hits that any choice of victims gives, by trying all.
pub(super) fn most_found(blocks: &[u32], cache: &mut Vec<u32>, capacity: usize) -> u64 {
    let Some((block, rest)) = blocks.split_first() else { return 0 };
    if cache.contains(block) {
        return 1 + most_found(rest, cache, capacity);
    }
    if cache.len() < capacity {
        cache.push(*block);
        let found = most_found(rest, cache, capacity);
        cache.pop();
        return found;
    }
    let mut best = 0;
    for at in 0..cache.len() {
        let old = std::mem::replace(&mut cache[at], *block);
        best = best.max(most_found(rest, cache, capacity));
        cache[at] = old;
    }
    best
}
