//! One cell by itself on one layer, where queries read something else than the resident tokens as they were made: a part of
//! them (`attend`), what a store gives back (`store`), or keys at other places (re-rotation).
//!
//! At a decode step the token is stored as the model made it, its query attends, then the token is stored as the store says,
//! then an eviction may follow: the order of a running model, whose new keys and values reach the cache after the pass. Nothing is
//! stored in fewer bits or attended to in part during prefill; after it, every prompt token is stored as the store says.

use super::RecordedHead;
use super::attention;
use super::head_run::HeadRun;
use super::held::HeldVectors;
use super::layer::{EvictionCell, LayerEviction, LayerOutcome, Settings};
use super::pos_set::PosSet;
use super::projection::Projections;
use super::recording::wide_count;
use crate::ledger::KeptSet;
use crate::num;
use crate::policy::attend::Attended;
use crate::policy::compose::{HeadState, Places, Stack};
use crate::policy::schedule::Moment;
use crate::policy::store::Moments;
use crate::policy::{HeadData, PolicyError};
use crate::rope::Rope;
use crate::trace::SequenceMeta;
use crate::types::{LayerIdx, ModelShape, Pos};

/// What is read and held where that is not simply every resident token as it was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Bits of keys, values, scales and selection metadata held, KV heads summed, `[step]`: at the end of the prompt, then
    /// at each decode step, before an eviction there.
    pub held_bits: Vec<u64>,
    /// Bits of keys, values and selection metadata that each decode step reads, KV heads summed, `[step]`: a token that at
    /// least one query head of a group attends to is read once.
    pub read_bits: Vec<u64>,
    /// Tokens attended to, summed over decode steps and query heads.
    pub attended: u64,
    /// Relative errors of what is read back of the keys resident at the end, summed over tokens and KV heads.
    pub key_error_sum: f64,
    /// The same of the values.
    pub value_error_sum: f64,
    /// Tokens in both sums; 0 where the store is exact.
    pub stored_tokens: u64,
    /// Range of a value against the squared error of what is read back of it, over tokens resident at the end but the sinks.
    pub range_error: Moments,
}

/// What is read at one decode step by one KV head.
struct Read {
    /// Tokens that each query head attends to, `[member]`, in slot order.
    lists: Vec<Vec<Pos>>,
    /// Slots that at least one of them attends to, ascending.
    slots: Vec<usize>,
}

impl Read {
    fn of(attended: Attended, resident: &[Pos], group: usize) -> Self {
        match attended {
            Attended::All => {
                Self { lists: vec![resident.to_vec(); group], slots: (0..resident.len()).collect() }
            }
            Attended::Slots(lists) => {
                let mut slots: Vec<usize> = lists.iter().flatten().copied().collect();
                slots.sort_unstable();
                slots.dedup();
                let tokens = |list: &Vec<usize>| list.iter().map(|&slot| resident[slot]).collect();
                Self { lists: lists.iter().map(tokens).collect(), slots }
            }
        }
    }
}

/// Replays `cell` over `runs`, all KV heads of the layer in order.
pub(super) fn replay_served(
    shape: &ModelShape,
    meta: &SequenceMeta,
    layer: LayerIdx,
    runs: &mut [HeadRun<'_>],
    cell: EvictionCell<'_>,
    settings: Settings,
) -> Result<LayerOutcome, PolicyError> {
    let EvictionCell { stack, seed } = cell;
    let mut vectors: Vec<HeldVectors> = runs.iter().map(|run| HeldVectors::of(&run.head)).collect();
    let mut states: Vec<HeadState> =
        shape.kv_head_ids().map(|head| stack.start(meta.seq, layer, head, meta.prompt_len)).collect();
    runs.iter().zip(&mut states).for_each(|(run, state)| stack.attend_prompt(&run.head, state));
    let mut outcome = LayerOutcome {
        recall: vec![0.0; (meta.len - meta.prompt_len) as usize],
        head_recall: vec![0.0; runs.len()],
        ..LayerOutcome::default()
    };
    let (mut reading, mut projections) = (Reading::default(), Projections::default());
    for seen in meta.prompt_len..=meta.len {
        let moment = if seen == meta.prompt_len { Moment::PrefillDone } else { Moment::DecodeStep };
        let mut read_bits = 0;
        for (at, ((run, vectors), state)) in runs.iter().zip(&mut vectors).zip(&mut states).enumerate() {
            if moment == Moment::DecodeStep {
                state.store(Pos::new(seen - 1));
                let data = vectors.seen(&run.head);
                let attended = stack.attended(shape, &data, state)?;
                let read = Read::of(attended, state.resident(), run.head.group());
                read_bits += bits_read(stack, state, &read, shape, settings);
                reading.attended += read.lists.iter().map(|list| list.len() as u64).sum::<u64>();
                let step = seen - 1 - meta.prompt_len;
                let share = recall(&run.head, seen - 1, &read);
                outcome.recall[step as usize] += share;
                outcome.head_recall[at] += share;
                if settings.is_sampled(step) {
                    let kept = outputs(stack, &data, seen - 1, &read, state)?;
                    let all: Vec<Pos> = (0..seen).map(Pos::new).collect();
                    let all = vec![all; run.head.group()];
                    let full = plain_outputs(&run.head, seen - 1, &all);
                    outcome.error_sum += attention::relative_distance(&kept, &full, run.head.head_dim());
                    outcome.error_terms += run.head.group() as u64;
                    projections.add(&run.head, step, &kept, &full);
                }
            }
            let changed = stack.hold(&vectors.seen(&run.head), state)?;
            vectors.store(&changed);
            if moment == Moment::DecodeStep {
                stack.attend(&vectors.seen(&run.head), state);
            }
        }
        if moment == Moment::DecodeStep {
            reading.read_bits.push(read_bits);
        }
        let held = states.iter().map(|state| bits_held(stack, state, shape, settings)).sum();
        reading.held_bits.push(held);
        if states.first().is_some_and(|state| stack.is_due_for(state, moment)) {
            let seen_heads: Vec<_> =
                vectors.iter().zip(runs.iter()).map(|(vectors, run)| vectors.seen(&run.head)).collect();
            let data: Vec<&dyn HeadData> = seen_heads.iter().map(|head| head as &dyn HeadData).collect();
            let mut states: Vec<&mut HeadState> = states.iter_mut().collect();
            let evictions = stack.evict_heads(shape, &data, &mut states, seed)?;
            outcome.ties += evictions.iter().filter(|eviction| eviction.tied).count() as u64;
            outcome.filled += evictions.iter().map(|eviction| u64::from(eviction.filled)).sum::<u64>();
            let heads = evictions.iter().map(|eviction| KeptSet::of(&eviction.kept)).collect();
            outcome.evictions.push(LayerEviction { seen, heads });
        }
        let (before, is_long) = (seen.saturating_sub(stack.window()), meta.len > super::alone::LONG);
        if is_long {
            runs.iter_mut().for_each(|run| run.head.forget_before(before));
        }
    }
    for ((run, state), vectors) in runs.iter().zip(&states).zip(&vectors) {
        close(&run.head, state, meta.len, &mut outcome);
        if !stack.keeps_exact() {
            reconstructed(&run.head, vectors, state, stack, &mut reading);
        }
    }
    outcome.projected = projections.finish(settings);
    outcome.reading = Some(reading);
    Ok(outcome)
}

/// Takes stock of what a head holds at the end.
pub(super) fn close(head: &RecordedHead<'_>, state: &HeadState, len: u32, outcome: &mut LayerOutcome) {
    let candidates = head.ranges().iter().copied().zip(0..len).collect();
    let mut is_wide = vec![false; len as usize];
    num::top(candidates, wide_count(len)).iter().for_each(|(_, pos)| is_wide[*pos as usize] = true);
    outcome.wide_kept += state.resident().iter().filter(|pos| is_wide[pos.idx()]).count() as u64;
    outcome.resident.push(PosSet::of(state.resident()));
    outcome.wide_total += wide_count(len) as u64;
}

fn exact_bits(settings: Settings) -> usize {
    settings.bytes_per_scalar as usize * 8
}

fn metadata_bits(stack: &Stack, state: &HeadState, shape: &ModelShape, settings: Settings) -> usize {
    stack.metadata_scalars(state, shape.head_dim.into()) * exact_bits(settings)
}

fn bits_held(stack: &Stack, state: &HeadState, shape: &ModelShape, settings: Settings) -> u64 {
    let of = |slot| state.held(slot).bits(shape.head_dim.into(), exact_bits(settings));
    let tokens: usize = (0..state.resident().len()).map(of).sum();
    (tokens + metadata_bits(stack, state, shape, settings)) as u64
}

fn bits_read(stack: &Stack, state: &HeadState, read: &Read, shape: &ModelShape, settings: Settings) -> u64 {
    let of = |slot: &usize| state.held(*slot).bits(shape.head_dim.into(), exact_bits(settings));
    let tokens: usize = read.slots.iter().map(of).sum();
    (tokens + metadata_bits(stack, state, shape, settings)) as u64
}

/// Share of the full-cache attention that falls on what is read, summed over the query heads of the group.
fn recall(head: &RecordedHead<'_>, query: u32, read: &Read) -> f64 {
    let is_shared = read.lists.windows(2).all(|pair| pair[0] == pair[1]);
    match read.lists.first() {
        Some(list) if is_shared => attention::recall(head, query, list),
        _ => read
            .lists
            .iter()
            .enumerate()
            .map(|(member, list)| attention::recall_of_member(head, query, member, list))
            .fold(0.0, |sum, share| sum + share),
    }
}

/// Attention outputs over what is read, `[member, head_dim]`, keys at the places that the stack says.
fn outputs(
    stack: &Stack,
    data: &dyn HeadData,
    query: u32,
    read: &Read,
    state: &HeadState,
) -> Result<Vec<f64>, PolicyError> {
    if stack.places() == Places::Original {
        return Ok(plain_outputs(data, query, &read.lists));
    }
    let rope = data.rope().ok_or(PolicyError::Missing {
        policy: "rerotate",
        what: "the rotary frequencies of the model (`rope.inv_freq` in the trace's manifest, from format 1.1 on)",
    })?;
    Ok(turned_outputs(data, rope, query, state.resident()))
}

/// Attention outputs of the query at `query` over `lists`, `[member, head_dim]`, straight from the definition.
fn plain_outputs(data: &dyn HeadData, query: u32, lists: &[Vec<Pos>]) -> Vec<f64> {
    let mut row = Vec::new();
    let mut all = Vec::new();
    for (member, list) in lists.iter().enumerate() {
        data.logits(member, Pos::new(query), list, &mut row);
        all.extend(mixed(&row, list.iter().map(|pos| data.value(*pos))));
    }
    all
}

/// As [`plain_outputs`] over all of `resident`, the keys turned to their places in time order and the query to the last.
fn turned_outputs(data: &dyn HeadData, rope: &Rope, query: u32, resident: &[Pos]) -> Vec<f64> {
    let mut in_time = resident.to_vec();
    in_time.sort_unstable();
    let moved = |vector: &[f32], from: Pos, to: u32| {
        let mut turned = rope.unrotated(vector, from);
        rope.at(Pos::new(to)).rotate(&mut turned);
        turned
    };
    let keys: Vec<Vec<f32>> =
        in_time.iter().zip(0..).map(|(pos, to)| moved(data.key(*pos), *pos, to)).collect();
    let last = u32::try_from(in_time.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let mut all = Vec::new();
    for member in 0..data.group() {
        let asked = moved(data.query(member, Pos::new(query)), Pos::new(query), last);
        let scale = crate::policy::scale(asked.len());
        let row: Vec<f32> = keys.iter().map(|key| num::dot(&asked, key) * scale).collect();
        all.extend(mixed(&row, in_time.iter().map(|pos| data.value(*pos))));
    }
    all
}

/// The mean of `values` with the softmax of `logits` as weights.
fn mixed<'v>(logits: &[f32], values: impl Iterator<Item = &'v [f32]>) -> Vec<f64> {
    let top = num::max(logits);
    let (mut sum, mut total) = (Vec::new(), 0.0);
    for (logit, value) in logits.iter().zip(values) {
        let weight = f64::from(num::exp(logit - top));
        total += weight;
        sum.resize(value.len(), 0.0);
        sum.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight * f64::from(*x));
    }
    sum.into_iter().map(|x| if total > 0.0 { x / total } else { 0.0 }).collect()
}

/// What was lost of the vectors resident at the end.
fn reconstructed(
    head: &RecordedHead<'_>,
    vectors: &HeldVectors,
    state: &HeadState,
    stack: &Stack,
    reading: &mut Reading,
) {
    let held = vectors.seen(head);
    let square = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + (f64::from(*a) - f64::from(*b)).powi(2))
    };
    let nothing = vec![0.0; head.head_dim()];
    let relative = |found: &[f32], made: &[f32]| {
        let size = square(made, &nothing);
        if size > 0.0 { (square(found, made) / size).sqrt() } else { 0.0 }
    };
    let mut resident = state.resident().to_vec();
    resident.sort_unstable();
    for pos in resident {
        reading.key_error_sum += relative(held.key(pos), head.key(pos));
        reading.value_error_sum += relative(held.value(pos), head.value(pos));
        reading.stored_tokens += 1;
        if pos.get() >= stack.knobs().sinks {
            let range = f64::from(head.value_range(pos));
            reading.range_error.add(range, square(held.value(pos), head.value(pos)));
        }
    }
}
