//! One layer of one sequence through all cells.

use super::alone::replay_alone;
use super::head_run::{Due, HeadRun, Pending};
use super::pos_set::PosSet;
use super::projection::{self, ProjectedError};
use super::recording::wide_count;
use super::served::{Reading, replay_served};
use super::{LayerModel, RecordedHead, ReplayError};
use crate::ledger::KeptSet;
use crate::policy::compose::Stack;
use crate::policy::{At, HeadData, Memo, PolicyError, TILE};
use crate::trace::{LayerTensors, SequenceMeta};
use crate::types::{LayerIdx, ModelShape};
use std::collections::BTreeMap;
use std::rc::Rc;

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
    /// At such steps whose number is a multiple of this, what the layer's output changes by is handed out; 0 for never.
    pub next_token_every: u32,
    /// Bytes of one channel that is stored as the model made it.
    pub bytes_per_scalar: u32,
    /// Tokens a physical block.
    pub block_tokens: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { output_error_every: 0, next_token_every: 0, bytes_per_scalar: 2, block_tokens: 16 }
    }
}

impl Settings {
    /// Whether the output error is computed at the decode step `step`, from 0.
    #[must_use]
    pub fn is_sampled(&self, step: u32) -> bool {
        self.output_error_every > 0 && step.is_multiple_of(self.output_error_every)
    }

    pub(super) fn keeps_delta(&self, step: u32) -> bool {
        self.is_sampled(step) && self.next_token_every > 0 && step.is_multiple_of(self.next_token_every)
    }
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
    /// The same summed over decode steps and the query heads of each group, `[kv_head]`.
    pub head_recall: Vec<f64>,
    /// Relative output error summed over query heads and sampled steps.
    pub error_sum: f64,
    /// Terms in `error_sum`.
    pub error_terms: u64,
    /// Evictions of a KV head in which equal scores met at the boundary.
    pub ties: u64,
    /// Tokens that evictions kept only since nothing with weight was left, over evictions and KV heads.
    pub filled: u64,
    /// Tokens among the widest sixteenth that are resident at the end, over KV heads.
    pub wide_kept: u64,
    /// Tokens among the widest sixteenth, over KV heads.
    pub wide_total: u64,
    /// Tokens resident at the end, `[kv_head]`.
    pub resident: Vec<PosSet>,
    /// What the errors come to after the output matrix, by sampled step; empty where the source has no such matrix.
    pub projected: Vec<ProjectedError>,
    /// What was read and held; nothing where every query reads all resident tokens as they were made.
    pub reading: Option<Reading>,
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
    let outcomes = replay_cells(shape, meta, layer, tensors, &LayerModel::default(), cells, settings)?;
    Ok(outcomes.into_iter().collect::<Result<_, PolicyError>>()?)
}

/// As [`replay_layer`], with what the source knows about the model, and with a result of its own for each cell: a policy
/// that cannot decide stops its cell only.
///
/// What one cell gives does not depend on the others: they only share work.
///
/// # Errors
/// When a tensor has the wrong shape.
pub fn replay_cells(
    shape: &ModelShape,
    meta: &SequenceMeta,
    layer: LayerIdx,
    tensors: &LayerTensors,
    model: &LayerModel<'_>,
    cells: &[EvictionCell<'_>],
    settings: Settings,
) -> Result<Vec<Result<LayerOutcome, PolicyError>>, ReplayError> {
    let memo = Rc::new(Memo::default());
    let mut heads = Vec::with_capacity(usize::from(shape.kv_heads));
    for head in shape.kv_head_ids() {
        let (seen, prompt_len) = (meta.prompt_len, meta.prompt_len);
        let at = At { seq: meta.seq, layer, head, eviction: 0, seen, prompt_len };
        let recorded = RecordedHead::new(tensors, shape, layer, head, meta.len)?;
        let recorded = recorded.with_model(model.of_head(shape, head)).sharing(&memo);
        heads.push(HeadRun::new(recorded, at, meta.len, cells.len(), settings));
    }
    let mut outcomes: Vec<Result<LayerOutcome, PolicyError>> = vec![Ok(LayerOutcome::default()); cells.len()];
    // Cells with a state of their own, or whose heads decide together, share nothing: each is replayed by itself.
    let is_alone = |EvictionCell { stack, .. }: &EvictionCell<'_>| {
        stack.accumulates() || stack.is_layer_wide() || stack.is_read_otherwise()
    };
    let alone = cells.iter().zip(&mut outcomes).enumerate().filter(|(_, (cell, _))| is_alone(cell));
    for (at, (cell, outcome)) in alone {
        let replay = if cell.stack.is_read_otherwise() { replay_served } else { replay_alone };
        *outcome = replay(shape, meta, layer, &mut heads, *cell, settings);
        heads.iter_mut().for_each(|head| head.drop_cell(at));
    }
    let window = cells.iter().map(|cell| cell.stack.window()).max().unwrap_or(0);
    let agenda = Agenda::new(shape, meta, layer, cells, is_alone);
    for (outcome, evictions) in outcomes.iter_mut().zip(&agenda.evictions) {
        outcome.iter_mut().for_each(|outcome| outcome.evictions.reserve_exact(*evictions));
    }
    let mut events = agenda.events.iter().peekable();
    let mut end = meta.prompt_len;
    loop {
        while let Some((seen, due)) = events.next_if(|(seen, _)| **seen <= end) {
            let due: Vec<usize> = due.iter().copied().filter(|cell| outcomes[*cell].is_ok()).collect();
            evict(&mut heads, *seen, &due, cells, &agenda, &mut outcomes);
        }
        let next = events.peek().map_or(meta.len, |(seen, _)| **seen);
        let keep_from = next.saturating_sub(window).min(end);
        heads.iter_mut().for_each(|head| head.measure_to(end));
        settle(&mut heads, meta.prompt_len, settings, &mut outcomes);
        heads.iter_mut().for_each(|head| head.forget(keep_from));
        if end == meta.len {
            break;
        }
        end = meta.len.min((end / TILE + 1) * TILE);
    }
    heads.iter_mut().for_each(HeadRun::close);
    for (cell, outcome) in outcomes.iter_mut().enumerate() {
        if let Ok(outcome) = outcome
            && !is_alone(&cells[cell])
        {
            finish(&heads, meta, cell, settings, outcome);
        }
    }
    check_finite(meta, layer, &outcomes)?;
    Ok(outcomes)
}

/// Refuses what overflowed: a number that is none must not travel on, away from its place.
fn check_finite(
    meta: &SequenceMeta,
    layer: LayerIdx,
    outcomes: &[Result<LayerOutcome, PolicyError>],
) -> Result<(), ReplayError> {
    let bad = |what| Err(ReplayError::NotFinite { what, seq: meta.seq.get(), layer: layer.get() });
    for outcome in outcomes.iter().flatten() {
        if outcome.recall.iter().any(|recall| !recall.is_finite()) {
            return bad("the attention");
        }
        let is_number = |projected: &ProjectedError| {
            projected.error.is_finite() && projected.delta.iter().all(|x| x.is_finite())
        };
        if !outcome.error_sum.is_finite() || !outcome.projected.iter().all(is_number) {
            return bad("the attention output");
        }
    }
    Ok(())
}

/// When which cell evicts. All heads follow one schedule.
struct Agenda {
    /// Cells that are due, by tokens seen.
    events: BTreeMap<u32, Vec<usize>>,
    /// Equal for cells whose scorers are the same under the same seed, `[cell]`.
    scorers: Vec<usize>,
    /// How often each cell evicts, `[cell]`.
    evictions: Vec<usize>,
    shape: ModelShape,
    layer: LayerIdx,
}

impl Agenda {
    fn new(
        shape: &ModelShape,
        meta: &SequenceMeta,
        layer: LayerIdx,
        cells: &[EvictionCell<'_>],
        is_left_out: impl Fn(&EvictionCell<'_>) -> bool,
    ) -> Self {
        let mut events: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut known = BTreeMap::new();
        let mut scorers = Vec::with_capacity(cells.len());
        let mut counts = Vec::with_capacity(cells.len());
        for (at, cell) in cells.iter().enumerate() {
            let evictions =
                if is_left_out(cell) { Vec::new() } else { cell.stack.evictions(meta.prompt_len, meta.len) };
            counts.push(evictions.len());
            for seen in evictions {
                events.entry(seen).or_default().push(at);
            }
            let seed = if cell.stack.is_random() { cell.seed } else { 0 };
            let next = known.len();
            scorers.push(*known.entry((cell.stack.scorer(), seed)).or_insert(next));
        }
        Self { events, scorers, evictions: counts, shape: *shape, layer }
    }
}

fn evict(
    heads: &mut [HeadRun<'_>],
    seen: u32,
    due: &[usize],
    cells: &[EvictionCell<'_>],
    agenda: &Agenda,
    outcomes: &mut [Result<LayerOutcome, PolicyError>],
) {
    let kv_heads = heads.len();
    for (head, kv_head) in heads.iter_mut().zip(agenda.shape.kv_head_ids()) {
        let of_cell = |cell: &usize| {
            let outcome = outcomes[*cell].as_ref().ok()?;
            let made = outcome.evictions.len()
                - usize::from(outcome.evictions.last().is_some_and(|e| e.seen == seen));
            let eviction = u32::try_from(made).unwrap_or(u32::MAX);
            let capacity = cells[*cell].stack.capacity(&agenda.shape, agenda.layer, kv_head, seen);
            Some(Due { cell: *cell, scorer: agenda.scorers[*cell], eviction, capacity })
        };
        let due: Vec<Due> = due.iter().filter_map(of_cell).collect();
        for decision in head.evict(seen, &due, cells) {
            let Ok(outcome) = &mut outcomes[decision.cell] else {
                continue;
            };
            match decision.result {
                Ok((set, tied, filled)) => {
                    outcome.ties += u64::from(tied);
                    outcome.filled += u64::from(filled);
                    match outcome.evictions.last_mut() {
                        Some(eviction) if eviction.seen == seen => eviction.heads.push(set),
                        _ => {
                            let mut heads = Vec::with_capacity(kv_heads);
                            heads.push(set);
                            outcome.evictions.push(LayerEviction { seen, heads });
                        }
                    }
                }
                Err(error) => outcomes[decision.cell] = Err(error),
            }
        }
    }
    for cell in due.iter().filter(|cell| outcomes[**cell].is_err()) {
        heads.iter_mut().for_each(|head| head.drop_cell(*cell));
    }
}

/// Adds up what the heads of the layer write at the sampled queries that all of them have measured.
fn settle(
    heads: &mut [HeadRun<'_>],
    first_query: u32,
    settings: Settings,
    outcomes: &mut [Result<LayerOutcome, PolicyError>],
) {
    let pending: Vec<Vec<Pending>> = heads.iter_mut().map(HeadRun::take_pending).collect();
    let mut queries: Vec<u32> = pending.iter().flatten().map(|pending| pending.query).collect();
    queries.sort_unstable();
    queries.dedup();
    for query in queries {
        let step = query - first_query;
        let mut full = Vec::new();
        heads.iter().for_each(|head| projection::add(&mut full, head.written_by_full(query)));
        // Which change of each head belongs to a cell, `[cell][kv_head]`.
        let mut of_cell: Vec<Vec<usize>> = vec![Vec::new(); outcomes.len()];
        for head in &pending {
            for (at, Pending { members, .. }) in head.iter().enumerate().filter(|(_, p)| p.query == query) {
                members.iter().for_each(|cell| of_cell[*cell].push(at));
            }
        }
        let mut known: BTreeMap<&[usize], ProjectedError> = BTreeMap::new();
        for (outcome, parts) in outcomes.iter_mut().zip(&of_cell) {
            let Ok(outcome) = outcome else { continue };
            if parts.len() != heads.len() {
                continue;
            }
            let error = known.entry(parts.as_slice()).or_insert_with(|| {
                let mut delta = Vec::new();
                for (head, at) in pending.iter().zip(parts) {
                    projection::add(&mut delta, &head[*at].delta);
                }
                projection::compared(step, delta, &full, settings)
            });
            outcome.projected.push(error.clone());
        }
    }
}

fn finish(
    heads: &[HeadRun<'_>],
    meta: &SequenceMeta,
    cell: usize,
    settings: Settings,
    outcome: &mut LayerOutcome,
) {
    let steps = meta.len - meta.prompt_len;
    outcome.recall = vec![0.0; steps as usize];
    outcome.head_recall.reserve_exact(heads.len());
    outcome.resident.reserve_exact(heads.len());
    for run in heads {
        outcome.recall.iter_mut().zip(run.recall(cell)).for_each(|(sum, share)| *sum += share);
        outcome.head_recall.push(run.recall(cell).iter().fold(0.0, |sum, share| sum + share));
        outcome.error_sum += run.error(cell);
        if settings.output_error_every > 0 {
            outcome.error_terms +=
                run.head.group() as u64 * u64::from(steps.div_ceil(settings.output_error_every));
        }
        outcome.wide_kept += run.wide_kept(cell);
        outcome.resident.push(PosSet::of(run.resident(cell)));
        outcome.wide_total += wide_count(meta.len) as u64;
    }
}
