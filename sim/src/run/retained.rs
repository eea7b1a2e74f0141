//! Rows of the table `retained`: what one KV head holds after each eviction, and for what reason.

use super::RunError;
use super::context::Context;
use crate::policy::compose::{Eviction, Reason};
use crate::replay::{EvictionCell, LayerModel, ReplayError, retained};
use crate::rope::Rope;
use crate::scenario::{EvictionStudy, RetainedPlace};
use crate::table::Value;
use crate::types::{LayerIdx, Pos};

/// Evictions of a cell that are written down; of more, so many evenly spread, the first and the last among them.
const MOST_EVICTIONS: usize = 200;

/// Refuses a place that the trace does not have.
pub(super) fn check(context: &Context<'_>, study: &EvictionStudy) -> Result<(), RunError> {
    let Some(RetainedPlace { sequence, layer, kv_head }) = study.retained else { return Ok(()) };
    let shape = context.shape;
    let sequences = u32::try_from(context.sequences.len()).unwrap_or(u32::MAX);
    for (key, found, count) in [
        ("sequence", sequence, sequences),
        ("layer", u32::from(layer), u32::from(shape.layers)),
        ("kv_head", u32::from(kv_head), u32::from(shape.kv_heads)),
    ] {
        if found >= count {
            let source_name = context.source.name().to_owned();
            return Err(RunError::NoSuchHead { key, found, source_name, last: count.saturating_sub(1) });
        }
    }
    Ok(())
}

/// The rows of `cell`; none where the study asks for none or nothing is evicted.
pub(super) fn rows(
    id: &str,
    context: &Context<'_>,
    study: &EvictionStudy,
    cell: EvictionCell<'_>,
) -> Result<Vec<Vec<Value>>, RunError> {
    let Some(place) = study.retained.filter(|_| cell.stack.can_evict()) else { return Ok(Vec::new()) };
    let Some(meta) = context.sequences.get(place.sequence as usize) else { return Ok(Vec::new()) };
    let layer = LayerIdx::new(place.layer);
    let tensors = context.source.layer(meta.seq, layer)?;
    let rope = context.source.rope().and_then(|info| Rope::new(info).ok());
    let model = LayerModel { rope: rope.as_ref(), w_o: context.source.w_o(layer).ok() };
    let evictions = match retained(context.shape, meta, layer, &tensors, &model, cell) {
        // The cell itself has told it, with its place.
        Err(ReplayError::Policy(_)) => return Ok(Vec::new()),
        other => other?,
    };
    let mut rows = Vec::new();
    for (seen, heads) in spread(&evictions) {
        let Some(eviction) = heads.get(usize::from(place.kv_head)) else { continue };
        for (from, upto, reason) in runs(eviction) {
            rows.push(vec![
                Value::Text(id.to_owned()),
                Value::Int(i64::from(place.sequence)),
                Value::Int(i64::from(place.layer)),
                Value::Int(i64::from(place.kv_head)),
                Value::Int(i64::from(*seen)),
                Value::Int(i64::from(from)),
                Value::Int(i64::from(upto)),
                Value::Text(cell.stack.reason_word(reason).to_owned()),
            ]);
        }
    }
    Ok(rows)
}

fn spread<T>(items: &[T]) -> impl Iterator<Item = &T> {
    let most = items.len().min(MOST_EVICTIONS);
    let last = items.len().saturating_sub(1);
    (0..most).filter_map(move |at| items.get(if most > 1 { at * last / (most - 1) } else { 0 }))
}

/// Kept positions in order, those next to each other with one reason as (first, last, reason).
fn runs(eviction: &Eviction) -> Vec<(u32, u32, Reason)> {
    let mut kept: Vec<(Pos, Reason)> =
        eviction.kept.iter().copied().zip(eviction.reasons.iter().copied()).collect();
    kept.sort_unstable();
    let mut runs: Vec<(u32, u32, Reason)> = Vec::new();
    for (pos, reason) in kept {
        match runs.last_mut() {
            Some(last) if last.2 == reason && last.1 + 1 == pos.get() => last.1 = pos.get(),
            _ => runs.push((pos.get(), pos.get(), reason)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_with_one_reason_are_one_row_whatever_the_order_of_slots() {
        let pos = |list: &[u32]| list.iter().map(|p| Pos::new(*p)).collect();
        let eviction = Eviction {
            kept: pos(&[7, 0, 1, 4, 5, 8]),
            reasons: vec![
                Reason::Recent,
                Reason::Sink,
                Reason::Sink,
                Reason::Selected,
                Reason::Reserved,
                Reason::Recent,
            ],
            tied: false,
            filled: 0,
        };
        let expected = [
            (0, 1, Reason::Sink),
            (4, 4, Reason::Selected),
            (5, 5, Reason::Reserved),
            (7, 8, Reason::Recent),
        ];
        assert_eq!(runs(&eviction), expected);
    }

    #[test]
    fn many_evictions_are_thinned_to_ends_and_between() {
        let all: Vec<u32> = (0..1000).collect();
        let some: Vec<u32> = spread(&all).copied().collect();
        assert_eq!((some.len(), some.first(), some.last()), (MOST_EVICTIONS, Some(&0), Some(&999)));
        assert!(some.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(spread(&[1]).count(), 1);
        assert_eq!(spread::<u32>(&[]).count(), 0);
    }
}
