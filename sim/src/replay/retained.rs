//! Why each token of one layer is still held, eviction by eviction: the stack's own words, not a guess from what it kept.
//!
//! It takes the same decisions as [`super::replay_cells`], one cell at a time and without any measurement, so it is meant for a layer or
//! two. Whether the kept sets are the same is a test.

use super::held::HeldVectors;
use super::{EvictionCell, LayerModel, RecordedHead, ReplayError};
use crate::policy::compose::{Eviction, HeadState};
use crate::policy::schedule::Moment;
use crate::policy::{HeadData, Memo};
use crate::trace::{LayerTensors, SequenceMeta};
use crate::types::{LayerIdx, ModelShape, Pos};
use std::rc::Rc;

/// The evictions of one layer with the reason for each token kept: tokens seen, and `[kv_head]`.
///
/// # Errors
/// When a tensor has the wrong shape or a policy cannot decide.
pub fn retained(
    shape: &ModelShape,
    meta: &SequenceMeta,
    layer: LayerIdx,
    tensors: &LayerTensors,
    model: &LayerModel<'_>,
    cell: EvictionCell<'_>,
) -> Result<Vec<(u32, Vec<Eviction>)>, ReplayError> {
    let EvictionCell { stack, seed } = cell;
    let memo = Rc::new(Memo::default());
    let recorded = shape
        .kv_head_ids()
        .map(|head| {
            let recorded = RecordedHead::new(tensors, shape, layer, head, meta.len)?;
            Ok(recorded.with_model(model.of_head(shape, head)).sharing(&memo))
        })
        .collect::<Result<Vec<_>, ReplayError>>()?;
    let mut states: Vec<HeadState> =
        shape.kv_head_ids().map(|head| stack.start(meta.seq, layer, head, meta.prompt_len)).collect();
    // Only what is stored otherwise than it was made has vectors of its own.
    let mut stored: Vec<HeldVectors> =
        if stack.is_read_otherwise() { recorded.iter().map(HeldVectors::of).collect() } else { Vec::new() };
    recorded.iter().zip(&mut states).for_each(|(head, state)| stack.attend_prompt(head, state));
    let mut evictions = Vec::new();
    for seen in meta.prompt_len..=meta.len {
        let is_decode = seen > meta.prompt_len;
        for (at, (head, state)) in recorded.iter().zip(&mut states).enumerate() {
            if is_decode {
                state.store(Pos::new(seen - 1));
            }
            if let Some(vectors) = stored.get_mut(at) {
                let changed = stack.hold(&vectors.seen(head), state)?;
                vectors.store(&changed);
            }
            if is_decode {
                match stored.get(at) {
                    Some(vectors) => stack.attend(&vectors.seen(head), state),
                    None => stack.attend(head, state),
                }
            }
        }
        let moment = if is_decode { Moment::DecodeStep } else { Moment::PrefillDone };
        if !states.first().is_some_and(|state| stack.is_due_for(state, moment)) {
            continue;
        }
        let held: Vec<_> = stored.iter().zip(&recorded).map(|(vectors, head)| vectors.seen(head)).collect();
        let data: Vec<&dyn HeadData> = if held.is_empty() {
            recorded.iter().map(|head| head as &dyn HeadData).collect()
        } else {
            held.iter().map(|head| head as &dyn HeadData).collect()
        };
        let mut states: Vec<&mut HeadState> = states.iter_mut().collect();
        evictions.push((seen, stack.evict_heads(shape, &data, &mut states, seed)?));
    }
    Ok(evictions)
}
