//! The block whose next use is farthest goes first: no policy finds more blocks. A bound, since it reads the future.
//!
//! With pinned requests it stays optimal: a request is as good as one that reads its blocks over and over, and then nobody
//! can do better than to let go of the farthest. The parent of a block is used whenever the block is, so the farthest is
//! always a leaf. Paper: Belady 1966. Needs: the future. Cost: O(log n) an access.

use super::{Rank, plain, whole};
use crate::policy::Needs;

plain!(
    Belady,
    "belady",
    "the block whose next use is farthest goes first: a bound, replay only",
    "Belady 1966, IBM Systems Journal 5(2)",
    Needs::FUTURE,
    |block| Rank { worth: block.next_use.map_or(f64::NEG_INFINITY, |next| -whole(next)), then: 0 }
);
