//! Tensor replay: recorded queries, keys and values through a stack, open loop.
//!
//! An evicted token does not change what was recorded later, so kept sets are exact decisions *for these states*, and
//! the quality numbers are proxies. The unit of work is (sequence, layer) × all cells: tensors are read once and the
//! full-cache attention of a KV head is computed once. Nothing here knows time.

mod attention;
mod error;
mod exit;
mod head;
mod head_run;
mod layer;
mod recording;
mod tile;

pub use error::ReplayError;
pub use exit::{ExitOutcome, replay_exit};
pub use head::RecordedHead;
pub use layer::{EvictionCell, LayerEviction, LayerOutcome, Settings, replay_cells, replay_layer};
pub use recording::{entropy_quantiles, lens_decode_rows, value_ranges, wide_count};
