//! Tensor replay: recorded queries, keys and values through a stack, open loop.
//!
//! An evicted token does not change what was recorded later, so kept sets are exact decisions *for these states*, and
//! the quality numbers are proxies. The unit of work is (sequence, layer) × all cells: tensors are read once, the full-cache
//! attention of sixteen queries of a KV head is computed once ([`RecordedHead`]), and cells that hold the same tokens are
//! worked out once. Memory is a few tiles of attention a head, whatever the length, and a summary a cell. Nothing here
//! knows time.

mod alone;
mod attention;
mod error;
mod exit;
mod head;
mod head_run;
mod held;
mod known;
mod layer;
mod next_token;
mod pos_set;
mod projection;
mod recording;
mod retained;
mod sequence;
mod served;
mod tile;

pub use error::ReplayError;
pub use exit::{ExitOutcome, replay_exit};
pub use head::{HeadModel, LayerModel, RecordedHead};
pub use layer::{EvictionCell, LayerEviction, LayerOutcome, Settings, replay_cells, replay_layer};
pub use next_token::{NextTokenEffect, NextTokenHead};
pub use pos_set::PosSet;
pub use projection::ProjectedError;
pub use recording::{entropy_quantiles, lens_decode_rows, value_ranges, wide_count};
pub use retained::retained;
pub use sequence::{ProjectedSample, SURVIVAL_BINS, SequenceOutcome, SequenceReading};
pub use served::Reading;
