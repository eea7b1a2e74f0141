//! One layer of one sequence through all cells.

use super::attention::{FullAttention, Outputs};
use super::recording::wide_count;
use super::{RecordedHead, ReplayError};
use crate::ledger::KeptSet;
use crate::num;
use crate::policy::At;
use crate::policy::compose::{Eviction, Stack};
use crate::policy::schedule::Moment;
use crate::trace::{LayerTensors, SequenceMeta};
use crate::types::{KvHead, LayerIdx, ModelShape, Pos};

/// A stack under a seed.
#[derive(Clone, Copy, Debug)]
pub struct EvictionCell<'a> {
    /// The stack.
    pub stack: &'a Stack,
    /// Seed of its draws.
    pub seed: u64,
}

/// What is measured beside the decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The attention output error is computed at every decode step whose number (from 0) is a multiple of this; 0 for never.
    pub output_error_every: u32,
}

/// One eviction of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerEviction {
    /// Tokens seen when it happened.
    pub seen: u32,
    /// What stayed, `[kv_head]`.
    pub heads: Vec<KeptSet>,
}

/// What one cell did to one layer of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerOutcome {
    /// Evictions in order.
    pub evictions: Vec<LayerEviction>,
    /// Attention-mass recall at each decode step, summed over query heads, `[step]`.
    pub recall: Vec<f64>,
    /// Relative output error summed over query heads and sampled steps.
    pub error_sum: f64,
    /// Terms in `error_sum`.
    pub error_terms: u64,
    /// Evictions of a KV head in which equal scores met at the boundary.
    pub ties: u64,
    /// Tokens among the widest sixteenth that are resident at the end, over KV heads.
    pub wide_kept: u64,
    /// Tokens among the widest sixteenth, over KV heads.
    pub wide_total: u64,
}

/// Replays `layer` of the sequence `meta` through every cell. The result has one outcome a cell, in order.
///
/// At a decode step the token is stored, its query attends to everything resident, and then an eviction may follow.
///
/// # Errors
/// When a tensor has the wrong shape or a policy cannot decide.
pub fn replay_layer(
    shape: &ModelShape,
    meta: &SequenceMeta,
    layer: LayerIdx,
    tensors: &LayerTensors,
    cells: &[EvictionCell<'_>],
    settings: Settings,
) -> Result<Vec<LayerOutcome>, ReplayError> {
    let mut outcomes = vec![LayerOutcome::default(); cells.len()];
    for kv_head in shape.kv_head_ids() {
        let head = RecordedHead::new(tensors, shape, layer, kv_head, meta.len)?;
        let mut runs: Vec<HeadRun<'_>> =
            cells.iter().map(|cell| HeadRun::new(cell, shape, meta, layer, kv_head)).collect();
        replay_head(&head, meta, &mut runs, &mut outcomes, settings)?;
        count_wide(&head, meta.len, &runs, &mut outcomes);
    }
    Ok(outcomes)
}

fn replay_head(
    head: &RecordedHead<'_>,
    meta: &SequenceMeta,
    runs: &mut [HeadRun<'_>],
    outcomes: &mut [LayerOutcome],
    settings: Settings,
) -> Result<(), ReplayError> {
    for (run, outcome) in runs.iter_mut().zip(outcomes.iter_mut()) {
        run.evict_if_due(head, Moment::PrefillDone, meta.prompt_len, outcome)?;
    }
    let positions: Vec<Pos> = (0..meta.len).map(Pos::new).collect();
    let mut full = FullAttention::default();
    let window = runs.iter().map(|run| run.stack.window()).max().unwrap_or(0);
    for pos in meta.prompt_len..meta.len {
        let step = pos - meta.prompt_len;
        let is_sampled = settings.output_error_every > 0 && step.is_multiple_of(settings.output_error_every);
        let outputs = if is_sampled { Outputs::Yes } else { Outputs::No };
        full.compute(head, Pos::new(pos), &positions[..=pos as usize], outputs);
        for (run, outcome) in runs.iter_mut().zip(outcomes.iter_mut()) {
            run.resident.push(Pos::new(pos));
            let recall = full.recall(&run.resident);
            match outcome.recall.get_mut(step as usize) {
                Some(sum) => *sum += recall,
                None => outcome.recall.push(recall),
            }
            if is_sampled {
                outcome.error_sum += full.output_error(head, &run.resident);
                outcome.error_terms += crate::policy::HeadData::group(head) as u64;
            }
            run.evict_if_due(head, Moment::DecodeStep, pos + 1, outcome)?;
        }
        head.forget_before((pos + 1).saturating_sub(window));
    }
    Ok(())
}

/// One cell at work on one KV head.
struct HeadRun<'a> {
    stack: &'a Stack,
    seed: u64,
    capacity: u32,
    resident: Vec<Pos>,
    at: At,
}

impl<'a> HeadRun<'a> {
    fn new(
        cell: &EvictionCell<'a>,
        shape: &ModelShape,
        meta: &SequenceMeta,
        layer: LayerIdx,
        head: KvHead,
    ) -> Self {
        Self {
            stack: cell.stack,
            seed: cell.seed,
            capacity: cell.stack.capacity(shape, layer, head),
            resident: (0..meta.prompt_len).map(Pos::new).collect(),
            at: At { seq: meta.seq, layer, head, eviction: 0, seen: meta.prompt_len },
        }
    }

    fn evict_if_due(
        &mut self,
        head: &RecordedHead<'_>,
        moment: Moment,
        seen: u32,
        outcome: &mut LayerOutcome,
    ) -> Result<(), ReplayError> {
        let stored = u32::try_from(self.resident.len()).unwrap_or(u32::MAX);
        if !self.stack.is_due(moment, stored) {
            return Ok(());
        }
        self.at.seen = seen;
        let Eviction { kept, tied, .. } =
            self.stack.evict(head, self.at, &self.resident, self.capacity, self.seed)?;
        let set = KeptSet::of(&kept);
        match outcome.evictions.get_mut(self.at.eviction as usize) {
            Some(eviction) => eviction.heads.push(set),
            None => outcome.evictions.push(LayerEviction { seen, heads: vec![set] }),
        }
        outcome.ties += u64::from(tied);
        self.at.eviction += 1;
        self.resident = kept;
        Ok(())
    }
}

fn count_wide(head: &RecordedHead<'_>, len: u32, runs: &[HeadRun<'_>], outcomes: &mut [LayerOutcome]) {
    let candidates: Vec<(f32, u32)> = head.ranges().iter().copied().zip(0..len).collect();
    let widest = num::top(candidates, wide_count(len));
    for (run, outcome) in runs.iter().zip(outcomes) {
        let mut is_resident = vec![false; len as usize];
        run.resident.iter().for_each(|pos| is_resident[pos.idx()] = true);
        outcome.wide_kept += widest.iter().filter(|(_, pos)| is_resident[*pos as usize]).count() as u64;
        outcome.wide_total += widest.len() as u64;
    }
}
