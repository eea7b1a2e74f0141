//! The deepest block goes first, the one unused for longest among equals: RSBCM without its score. Needs: nothing. Cost:
//! O(log n) an access.

use super::{Rank, plain};
use crate::policy::Needs;

plain!(
    DepthOnly,
    "depth-only",
    "the deepest block goes first: RSBCM without scores",
    "-",
    Needs::NONE,
    |block| Rank { worth: -f64::from(block.depth), then: block.last_access }
);
