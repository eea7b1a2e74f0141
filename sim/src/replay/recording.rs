//! What the recording itself says, before any policy: entropies by layer and ranges of values.

use crate::num;
use crate::policy::exit::entropy::Lens;
use crate::trace::{LayerTensors, LensRow, SequenceMeta};
use crate::types::KvHead;

/// Tokens among the widest sixteenth of a sequence of `len` tokens: at least one.
#[must_use]
pub fn wide_count(len: u32) -> usize {
    (len as usize / 16).max(1)
}

/// The rows of decode positions: those whose next token the model itself chose, from the last prompt token on.
#[must_use]
pub fn lens_decode_rows(rows: Vec<LensRow>, meta: &SequenceMeta) -> Vec<LensRow> {
    let first = meta.prompt_len.saturating_sub(1);
    rows.into_iter().filter(|row| row.pos.get() >= first).collect()
}

/// The 10 %, 50 % and 90 % quantiles (nearest rank) of a layer's entropies in nats; nothing for no rows.
#[must_use]
pub fn entropy_quantiles(rows: &[LensRow], layer: u16, lens: Lens) -> Option<[f64; 3]> {
    let mut entropies: Vec<f64> = rows
        .iter()
        .filter(|row| row.layer.get() == layer)
        .filter_map(|row| lens.entropy_nats(row).map(f64::from))
        .collect();
    if entropies.is_empty() {
        return None;
    }
    entropies.sort_unstable_by(f64::total_cmp);
    let at = |percent: usize| entropies[((entropies.len() * percent).div_ceil(100)).max(1) - 1];
    Some([at(10), at(50), at(90)])
}

/// Ranges of all values of one KV head of a layer, `[kv_pos]`.
#[must_use]
pub fn value_ranges(tensors: &LayerTensors, head: KvHead) -> Vec<f32> {
    let values = tensors.v.index_axis(ndarray::Axis(0), head.idx());
    let range = |value: ndarray::ArrayView1<'_, f32>| match value.as_slice() {
        Some(value) => num::range(value),
        None => num::range(&value.to_vec()),
    };
    values.outer_iter().map(range).collect()
}
