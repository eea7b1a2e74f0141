//! One cell by itself on one layer: for stacks that carry a state, or whose KV heads decide together.

use super::RecordedHead;
use super::attention;
use super::head_run::HeadRun;
use super::layer::{EvictionCell, LayerEviction, LayerOutcome, Settings};
use super::pos_set::PosSet;
use super::recording::wide_count;
use crate::ledger::KeptSet;
use crate::num;
use crate::policy::compose::{Eviction, HeadState};
use crate::policy::schedule::Moment;
use crate::policy::{HeadData, PolicyError, TILE};
use crate::trace::SequenceMeta;
use crate::types::{LayerIdx, ModelShape, Pos};

/// Above so many tokens, attention weights are forgotten as the replay goes on: memory counts for more than the work of the
/// next cell then.
const LONG: u32 = 2048;

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
    let mut outcome =
        LayerOutcome { recall: vec![0.0; (meta.len - meta.prompt_len) as usize], ..LayerOutcome::default() };
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
            for (run, state) in runs.iter().zip(&states) {
                measure(&run.head, measured..seen, meta.prompt_len, state.resident(), settings, &mut outcome);
            }
            measured = seen;
        }
        if is_due {
            let data: Vec<&dyn HeadData> = runs.iter().map(|run| &run.head as &dyn HeadData).collect();
            let mut states: Vec<&mut HeadState> = states.iter_mut().collect();
            let evictions = stack.evict_heads(shape, &data, &mut states, seed)?;
            outcome.ties += evictions.iter().filter(|eviction| eviction.tied).count() as u64;
            let set = |eviction: &Eviction| KeptSet::of(&eviction.kept);
            outcome.evictions.push(LayerEviction { seen, heads: evictions.iter().map(set).collect() });
        }
        if meta.len > LONG && seen.is_multiple_of(TILE) {
            let keep_from = measured.min(seen.saturating_sub(stack.window()));
            runs.iter_mut().for_each(|run| run.head.forget_before(keep_from));
        }
    }
    for (run, state) in runs.iter().zip(&states) {
        let candidates = run.head.ranges().iter().copied().zip(0..meta.len).collect();
        let mut is_wide = vec![false; meta.len as usize];
        num::top(candidates, wide_count(meta.len)).iter().for_each(|(_, pos)| is_wide[*pos as usize] = true);
        outcome.wide_kept += state.resident().iter().filter(|pos| is_wide[pos.idx()]).count() as u64;
        outcome.resident.push(PosSet::of(state.resident()));
        outcome.wide_total += wide_count(meta.len) as u64;
    }
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
    outcome: &mut LayerOutcome,
) {
    let mut begin = queries.start;
    while begin < queries.end {
        let part = begin..queries.end.min((begin / TILE + 1) * TILE);
        begin = part.end;
        let step = (part.start - first_query) as usize;
        let shares = attention::recall(head, part.clone(), slots);
        outcome.recall[step..].iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        let every = settings.output_error_every;
        for query in part.filter(|query| every > 0 && (query - first_query).is_multiple_of(every)) {
            let all: Vec<Pos> = (0..=query).map(Pos::new).collect();
            let (kept, full) = (attention::output(head, query, slots), attention::output(head, query, &all));
            outcome.error_sum += attention::relative_distance(&kept, &full, head.head_dim());
            outcome.error_terms += head.group() as u64;
        }
    }
}
