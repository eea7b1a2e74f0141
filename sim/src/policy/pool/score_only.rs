//! The block of the branches with the lowest scores goes first, the one unused for longest among equals: RSBCM without depth.
//! Needs: nothing besides the scores of the stream. Cost: O(log n) an access.

use super::{Rank, plain};
use crate::policy::Needs;

plain!(
    ScoreOnly,
    "score-only",
    "the block with the lowest branch score goes first: RSBCM without depth",
    "-",
    Needs::NONE,
    |block| Rank { worth: f64::from(block.score_max), then: block.last_access }
);
