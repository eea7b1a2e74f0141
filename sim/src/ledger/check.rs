//! What must hold after every change, as one function.

use super::resident::{Branch, Stream};
use super::{BranchKey, Ledger, LedgerError, Occupancy, Tracking};
use crate::types::Pos;

/// Checks every invariant of the ledger; the cost is linear in blocks ever touched and entries tracked.
///
/// # Errors
/// [`LedgerError::Broken`] with the first rule that does not hold.
pub fn check(ledger: &Ledger) -> Result<(), LedgerError> {
    for (key, branch) in ledger.all_branches() {
        for (at, stream) in branch.streams.iter().enumerate() {
            check_stream(ledger, key, branch, at, stream)?;
        }
        check_occupancy(key, branch)?;
    }
    check_holders(ledger)?;
    check_conservation(ledger)
}

fn broken(rule: &'static str, detail: String) -> LedgerError {
    LedgerError::Broken { rule, detail }
}

fn check_stream(
    ledger: &Ledger,
    key: BranchKey,
    branch: &Branch,
    at: usize,
    stream: &Stream,
) -> Result<(), LedgerError> {
    let place = || {
        let (layer, head) = ledger.place(at);
        format!("{key} layer {layer} KV head {head}")
    };
    let needed = stream.live.div_ceil(ledger.block_tokens()) as usize;
    if stream.blocks.len() != needed {
        let detail =
            format!("{}: {} entries in {} blocks, not {needed}", place(), stream.live, stream.blocks.len());
        return Err(broken("a stream holds as many blocks as its entries fill", detail));
    }
    if stream.live > branch.seen {
        let detail = format!("{}: {} entries of {} tokens seen", place(), stream.live, branch.seen);
        return Err(broken("no more entries live than tokens were seen", detail));
    }
    if ledger.tracking() == Tracking::Counts {
        return Ok(());
    }
    if stream.positions.len() != stream.live as usize {
        let detail = format!("{}: {} positions for {} entries", place(), stream.positions.len(), stream.live);
        return Err(broken("every entry has one position", detail));
    }
    let mut sorted: Vec<Pos> = stream.positions.clone();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(broken("no position is stored twice", format!("{}: position {}", place(), pair[0])));
    }
    if let Some(last) = sorted.last().filter(|last| last.get() >= branch.seen) {
        let detail = format!("{}: position {last} of {} tokens seen", place(), branch.seen);
        return Err(broken("only positions that were seen are stored", detail));
    }
    Ok(())
}

fn check_occupancy(key: BranchKey, branch: &Branch) -> Result<(), LedgerError> {
    let counted = Occupancy {
        live_entries: branch.streams.iter().map(|stream| u64::from(stream.live)).sum(),
        blocks: branch.streams.iter().map(|stream| stream.blocks.len() as u64).sum(),
    };
    if counted == branch.occupancy {
        return Ok(());
    }
    let detail = format!("{key}: running {:?}, counted {counted:?}", branch.occupancy);
    Err(broken("running totals equal the sums over streams", detail))
}

/// Reference counts equal holders, and free blocks have none.
fn check_holders(ledger: &Ledger) -> Result<(), LedgerError> {
    let recorded = ledger.pool().all_holders();
    let mut counted = vec![0u32; recorded.len()];
    let mut last_holder: Vec<Option<BranchKey>> = vec![None; recorded.len()];
    for (key, branch) in ledger.all_branches() {
        for &block in branch.streams.iter().flat_map(|stream| &stream.blocks) {
            let Some(count) = counted.get_mut(block.idx()) else {
                return Err(broken("only allocated blocks are held", format!("{key} holds block {block}")));
            };
            *count += 1;
            if last_holder[block.idx()].replace(key) == Some(key) {
                return Err(broken("a branch holds a block in one place", format!("{key} block {block}")));
            }
        }
    }
    if let Some(block) = (0..recorded.len()).find(|&block| recorded[block] != counted[block]) {
        let detail = format!("block {block}: count {}, holders {}", recorded[block], counted[block]);
        return Err(broken("a reference count is the number of holders", detail));
    }
    let mut is_free = vec![false; recorded.len()];
    for block in ledger.pool().free_list() {
        let listed = is_free.get_mut(block.idx());
        if recorded.get(block.idx()) != Some(&0)
            || listed.is_none_or(|listed| std::mem::replace(listed, true))
        {
            return Err(broken("a free block is held by nobody and listed once", format!("block {block}")));
        }
    }
    if let Some(block) = (0..recorded.len()).find(|&block| (recorded[block] == 0) != is_free[block]) {
        return Err(broken("a block that nobody holds is in the free list", format!("block {block}")));
    }
    Ok(())
}

fn check_conservation(ledger: &Ledger) -> Result<(), LedgerError> {
    let pool = ledger.pool();
    let recorded = pool.all_holders();
    let held = recorded.iter().filter(|&&holders| holders > 0).count() as u64;
    if pool.held() != held {
        let detail = format!("{} allocated - {} freed, {held} held", pool.allocated(), pool.freed());
        return Err(broken("allocated less freed is held", detail));
    }
    let shared = recorded.iter().filter(|&&holders| holders > 1).count();
    if pool.shared() as usize != shared {
        let detail = format!("running {}, counted {shared}", pool.shared());
        return Err(broken("the number of shared blocks is counted", detail));
    }
    if let Some(capacity) = pool.capacity()
        && held > u64::from(capacity)
    {
        return Err(broken("no more blocks are held than there are", format!("{held} of {capacity}")));
    }
    Ok(())
}
