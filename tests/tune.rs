//! Choosing settings with a guarantee: the statistics against other implementations, the guarantee itself, and the verb.

mod eviction;
mod guarantee;
mod tail;
mod trees;
mod verb;
