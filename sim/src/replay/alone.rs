//! One cell by itself on one layer: for stacks that carry a state, or whose KV heads decide together.

use super::RecordedHead;
use super::attention::{self, Masses};
use super::head_run::HeadRun;
use super::layer::{EvictionCell, LayerEviction, LayerOutcome, Settings};
use super::projection::Projections;
use super::served::close;
use crate::ledger::KeptSet;
use crate::policy::compose::{Eviction, HeadState};
use crate::policy::schedule::Moment;
use crate::policy::{HeadData, PolicyError, TILE};
use crate::trace::SequenceMeta;
use crate::types::{LayerIdx, ModelShape, Pos};

/// Above so many tokens, attention weights are forgotten as the replay goes on: memory counts for more than the work of the
/// next cell then.
pub(super) const LONG: u32 = 2048;

/// Replays `cell` over `runs`, all KV heads of the layer in order.
pub(super) fn replay_alone(
    shape: &ModelShape,
    meta: &SequenceMeta,
    layer: LayerIdx,
    runs: &mut [HeadRun<'_>],
    cell: EvictionCell<'_>,
    settings: Settings,
) -> Result<LayerOutcome, PolicyError> {
    let EvictionCell { stack, seed } = cell;
    let mut states: Vec<HeadState> =
        shape.kv_head_ids().map(|head| stack.start(meta.seq, layer, head, meta.prompt_len)).collect();
    runs.iter().zip(&mut states).for_each(|(run, state)| stack.attend_prompt(&run.head, state));
    let mut outcome = LayerOutcome {
        recall: vec![0.0; (meta.len - meta.prompt_len) as usize],
        head_recall: vec![0.0; runs.len()],
        ..LayerOutcome::default()
    };
    let mut projections = Projections::default();
    let mut measured = meta.prompt_len;
    for seen in meta.prompt_len..=meta.len {
        let moment = if seen == meta.prompt_len { Moment::PrefillDone } else { Moment::DecodeStep };
        if moment == Moment::DecodeStep {
            for (run, state) in runs.iter().zip(&mut states) {
                state.store(Pos::new(seen - 1));
                stack.attend(&run.head, state);
            }
        }
        let is_due = states.first().is_some_and(|state| stack.is_due_for(state, moment));
        // A tile knows no tokens after it: what is resident is measured before later ones are stored.
        if is_due || seen == meta.len || seen.is_multiple_of(TILE) {
            for (at, (run, state)) in runs.iter().zip(&states).enumerate() {
                let (queries, into) = (measured..seen, (&mut outcome, at, &mut projections));
                measure(&run.head, queries, meta.prompt_len, state.resident(), settings, into);
            }
            measured = seen;
        }
        if is_due {
            let data: Vec<&dyn HeadData> = runs.iter().map(|run| &run.head as &dyn HeadData).collect();
            let mut states: Vec<&mut HeadState> = states.iter_mut().collect();
            let evictions = stack.evict_heads(shape, &data, &mut states, seed)?;
            outcome.ties += evictions.iter().filter(|eviction| eviction.tied).count() as u64;
            outcome.filled += evictions.iter().map(|eviction| u64::from(eviction.filled)).sum::<u64>();
            let set = |eviction: &Eviction| KeptSet::of(&eviction.kept);
            outcome.evictions.push(LayerEviction { seen, heads: evictions.iter().map(set).collect() });
        }
        if meta.len > LONG && seen.is_multiple_of(TILE) {
            let keep_from = measured.min(seen.saturating_sub(stack.window()));
            runs.iter_mut().for_each(|run| run.head.forget_before(keep_from));
        }
    }
    runs.iter().zip(&states).for_each(|(run, state)| close(&run.head, state, meta.len, &mut outcome));
    outcome.projected = projections.finish(settings);
    Ok(outcome)
}

/// Adds recall and output error of `queries`, between which nothing was evicted. `slots` may hold tokens after a query, up to
/// the end of its tile.
fn measure(
    head: &RecordedHead<'_>,
    queries: std::ops::Range<u32>,
    first_query: u32,
    slots: &[Pos],
    settings: Settings,
    (outcome, at, projections): (&mut LayerOutcome, usize, &mut Projections),
) {
    let mut begin = queries.start;
    while begin < queries.end {
        let part = begin..queries.end.min((begin / TILE + 1) * TILE);
        begin = part.end;
        let step = (part.start - first_query) as usize;
        let masses = Masses::of(head, part.clone(), slots);
        for (sum, share) in outcome.recall[step..].iter_mut().zip(masses.recall(head)) {
            *sum += share;
            outcome.head_recall[at] += share;
        }
        for query in part.filter(|query| settings.is_sampled(query - first_query)) {
            let (mut kept, full) = (Vec::new(), attention::full_output(head, query));
            masses.output(head, query, slots, &mut kept);
            outcome.error_sum += attention::relative_distance(&kept, &full, head.head_dim());
            outcome.error_terms += head.group() as u64;
            projections.add(head, query - first_query, &kept, &full);
        }
    }
}
