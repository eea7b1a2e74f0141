//! The policy replayed over the recording of its own run.

use kvlab_sim::{
    ledger::KeptSet,
    policy::{
        HeadData, PolicyError,
        compose::{HeadState, Stack, prompt_mass},
        schedule::Moment,
    },
    replay::{EvictionCell, LayerModel, LayerOutcome, RecordedHead, Settings, replay_cells},
    trace::{LayerTensors, TraceSource},
    types::{LayerIdx, Pos},
};
use serde::{Deserialize, Serialize};

use super::{FidelityError, lived::Lived, ulp};
use crate::{
    closed_loop::{Footprint, KeptTokens},
    journal::hex,
};

/// How many decisions of live runs the replay reproduces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Kept sets that were compared, one for each (problem, layer, eviction, KV head).
    pub sets: u64,
    /// Those that are the same, slot by slot.
    pub equal: u64,
    /// Kept sets that differ when every query, key and value moves by one unit in the last place.
    pub flipped_sets: u64,
    /// Residents at the end of sequences, over layers and KV heads.
    pub residents: u64,
    /// Those that another token replaces when every input moves by one unit in the last place.
    pub flipped_residents: u64,
    /// The first decision that is not reproduced.
    pub first: Option<Difference>,
}

impl Identity {
    /// Whether every decision is reproduced.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.equal == self.sets && self.first.is_none()
    }

    pub(super) fn add(&mut self, other: Self) {
        self.sets += other.sets;
        self.equal += other.equal;
        self.flipped_sets += other.flipped_sets;
        self.residents += other.residents;
        self.flipped_residents += other.flipped_residents;
        self.first = self.first.take().or(other.first);
    }
}

/// A decision that came out otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Id of the problem.
    pub item: String,
    /// Zero-based layer.
    pub layer: u16,
    /// Zero-based eviction of the sequence.
    pub eviction: usize,
    /// Tokens seen at it.
    pub seen: u32,
    /// The KV head.
    pub kv_head: usize,
    /// Positions that the run kept and the replay did not.
    pub only_live: Vec<u32>,
    /// Positions that the replay kept and the run did not.
    pub only_replayed: Vec<u32>,
    /// Smallest score among the positions only the replay kept, less the largest among those only the run kept, by the replay's scores:
    /// how close the call was. Absent where tokens have no score of their own.
    #[serde(with = "hex::option")]
    pub score_gap: Option<f64>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { item, layer, eviction, seen, kv_head, only_live, only_replayed, score_gap } = self;
        write!(
            f,
            "problem {item}, layer {layer}, eviction {eviction} at {seen} tokens, KV head {kv_head}: only in the run {only_live:?}, \
             only in the replay {only_replayed:?}"
        )?;
        match score_gap {
            Some(gap) => write!(f, ", score gap {gap:e}"),
            None => Ok(()),
        }
    }
}

/// Replays `stack` over its own run and compares; `live` is what the run held and which tokens it kept.
///
/// # Errors
/// The tensors have the wrong shape, or the policy cannot decide in the replay although it could in the loop.
pub(super) fn compare(
    lived: &Lived,
    stack: &Stack,
    seed: u64,
    live: (&Footprint, &KeptTokens),
) -> Result<Result<Identity, PolicyError>, FidelityError> {
    let mut identity = Identity::default();
    let shape = *lived.shape();
    for layer in shape.layer_ids() {
        let tensors = &lived.layers()[layer.idx()];
        let own = match replayed(lived, layer, tensors, stack, seed)? {
            Ok(own) => own,
            Err(error) => return Ok(Err(error)),
        };
        let nudged = ulp::nudged(tensors, lived.meta().seq, layer);
        let nudged = match replayed(lived, layer, &nudged, stack, seed)? {
            Ok(nudged) => nudged,
            Err(error) => return Ok(Err(error)),
        };
        let empty = Vec::new();
        let in_run = live.0.evictions.get(layer.idx()).unwrap_or(&empty);
        let evictions = in_run.len().max(own.evictions.len());
        for eviction in 0..evictions {
            let of = |sets: &[kvlab_sim::replay::LayerEviction], head: usize| -> Option<(u32, KeptSet)> {
                let eviction = sets.get(eviction)?;
                Some((eviction.seen, *eviction.heads.get(head)?))
            };
            for head in 0..usize::from(shape.kv_heads) {
                let (in_run, in_replay) = (of(in_run, head), of(&own.evictions, head));
                identity.sets += 1;
                identity.flipped_sets += u64::from(in_replay != of(&nudged.evictions, head));
                if in_run == in_replay {
                    identity.equal += 1;
                } else if identity.first.is_none() {
                    let place = Place { layer, eviction, head };
                    let kept = live.1.get(layer.idx()).and_then(|all| all.get(eviction)?.get(head));
                    let seen = in_run.or(in_replay).map_or(0, |(seen, _)| seen);
                    identity.first =
                        Some(difference(lived, stack, seed, place, seen, kept.map_or(&[], Vec::as_slice))?);
                }
            }
        }
        for (own, nudged) in own.resident.iter().zip(&nudged.resident) {
            identity.residents += own.count();
            identity.flipped_residents += own.count() - own.shared(nudged);
        }
    }
    Ok(Ok(identity))
}

fn replayed(
    lived: &Lived,
    layer: LayerIdx,
    tensors: &LayerTensors,
    stack: &Stack,
    seed: u64,
) -> Result<Result<LayerOutcome, PolicyError>, FidelityError> {
    let model = LayerModel { rope: lived.weights().rope(), w_o: lived.w_o(layer).ok() };
    let cells = [EvictionCell { stack, seed }];
    let settings = Settings::default();
    let outcomes = replay_cells(lived.shape(), lived.meta(), layer, tensors, &model, &cells, settings)?;
    Ok(outcomes.into_iter().next().unwrap_or_else(|| Ok(LayerOutcome::default())))
}

#[derive(Clone, Copy)]
struct Place {
    layer: LayerIdx,
    eviction: usize,
    head: usize,
}

/// Names a decision that differs: the sequence is walked once more, token by token, up to it.
fn difference(
    lived: &Lived,
    stack: &Stack,
    seed: u64,
    Place { layer, eviction, head }: Place,
    seen: u32,
    in_run: &[u32],
) -> Result<Difference, FidelityError> {
    let (shape, meta) = (*lived.shape(), lived.meta());
    let tensors = &lived.layers()[layer.idx()];
    let model = LayerModel { rope: lived.weights().rope(), w_o: lived.w_o(layer).ok() };
    let recorded: Vec<RecordedHead<'_>> = shape
        .kv_head_ids()
        .map(|kv_head| {
            let head = RecordedHead::new(tensors, &shape, layer, kv_head, meta.len)?;
            Ok(head.with_model(model.of_head(&shape, kv_head)))
        })
        .collect::<Result<_, kvlab_sim::replay::ReplayError>>()?;
    let data: Vec<&dyn HeadData> = recorded.iter().map(|head| head as &dyn HeadData).collect();
    let mut states: Vec<HeadState> =
        shape.kv_head_ids().map(|head| stack.start(meta.seq, layer, head, meta.prompt_len)).collect();
    for (state, head) in states.iter_mut().zip(&data).filter(|_| stack.accumulates()) {
        state.set_mass(&prompt_mass(*head, meta.prompt_len));
    }
    let mut replayed: (Vec<u32>, Option<f64>) = (Vec::new(), None);
    let mut made = 0;
    // The eviction after the prompt, if there is one, then those after each token.
    for pos in std::iter::once(None).chain((meta.prompt_len..meta.len).map(Some)) {
        let moment = match pos {
            None => Moment::PrefillDone,
            Some(pos) => {
                for (state, head) in states.iter_mut().zip(&data) {
                    state.store(Pos::new(pos));
                    if stack.accumulates() {
                        stack.attend(*head, state);
                    }
                }
                Moment::DecodeStep
            }
        };
        if !states.first().is_some_and(|state| stack.is_due_for(state, moment)) {
            continue;
        }
        let before = states[head].clone();
        let mut all: Vec<&mut HeadState> = states.iter_mut().collect();
        if stack.evict_heads(&shape, &data, &mut all, seed).is_err() {
            break;
        }
        if made == eviction {
            let kept: Vec<u32> = states[head].resident().iter().map(|pos| pos.get()).collect();
            let gap = score_gap(stack, data[head], &before, &kept, in_run, seed);
            replayed = (kept, gap);
            break;
        }
        made += 1;
    }
    let (kept, score_gap) = replayed;
    let without = |of: &[u32], other: &[u32]| -> Vec<u32> {
        of.iter().copied().filter(|pos| !other.contains(pos)).collect()
    };
    Ok(Difference {
        item: meta.item.clone(),
        layer: layer.get(),
        eviction,
        seen,
        kv_head: head,
        only_live: without(in_run, &kept),
        only_replayed: without(&kept, in_run),
        score_gap,
    })
}

/// How far apart the scores are of what only the replay and what only the run kept.
fn score_gap(
    stack: &Stack,
    data: &dyn HeadData,
    before: &HeadState,
    replayed: &[u32],
    in_run: &[u32],
    seed: u64,
) -> Option<f64> {
    if stack.is_layer_wide() || stack.accumulates() {
        return None;
    }
    let mut scores = None;
    let capacity = u32::try_from(replayed.len()).ok()?;
    stack.evict_sharing(data, before.at(), before.resident(), capacity, seed, &mut scores).ok()?;
    let scores = scores?;
    let of = |kept: &[u32], other: &[u32]| -> Vec<f64> {
        let slots = before.resident().iter().zip(scores.iter());
        slots
            .filter(|(pos, _)| kept.contains(&pos.get()) && !other.contains(&pos.get()))
            .map(|(_, score)| f64::from(*score))
            .collect()
    };
    let least = of(replayed, in_run).into_iter().reduce(f64::min)?;
    let most = of(in_run, replayed).into_iter().reduce(f64::max)?;
    Some(least - most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvlab_sim::{
        policy::{RawParams, compose::Knobs, registry},
        replay::LayerEviction,
        types::ModelShape,
    };

    const SHAPE: ModelShape =
        ModelShape { layers: 2, q_heads: 2, kv_heads: 2, head_dim: 4, hidden: 8, vocab: 11 };
    const KNOBS: Knobs = Knobs { capacity: 8, recent: 2, sinks: 1, period: 2, window: 2 };

    fn stack(id: &str) -> Stack {
        registry::composition(id).unwrap().stack(&KNOBS, &RawParams::default()).unwrap()
    }

    /// What a run that decides as the replay does holds and keeps, found by walking the sequence.
    fn walked(lived: &Lived, stack: &Stack) -> (Footprint, KeptTokens) {
        let mut footprint = Footprint::default();
        let mut lists = Vec::new();
        for layer in SHAPE.layer_ids() {
            let own = replayed(lived, layer, &lived.layers()[layer.idx()], stack, 0).unwrap().unwrap();
            let mut of_layer = Vec::new();
            for (eviction, made) in own.evictions.iter().enumerate() {
                let heads = 0..usize::from(SHAPE.kv_heads);
                let kept = heads.map(|head| {
                    let place = Place { layer, eviction, head };
                    difference(lived, stack, 0, place, made.seen, &[]).unwrap().only_replayed
                });
                of_layer.push(kept.collect());
            }
            footprint.evictions.push(own.evictions);
            lists.push(of_layer);
        }
        (footprint, lists)
    }

    #[test]
    fn walking_token_by_token_keeps_what_the_replay_keeps() {
        let lived = Lived::of_waves(SHAPE, 9, 24);
        for id in ["snapkv", "keydiff", "h2o", "vase-attnv", "adakv"] {
            let stack = stack(id);
            let (footprint, lists) = walked(&lived, &stack);
            for (layer, evictions) in footprint.evictions.iter().enumerate() {
                assert!(!evictions.is_empty(), "{id} evicts");
                for (at, LayerEviction { heads, .. }) in evictions.iter().enumerate() {
                    for (head, set) in heads.iter().enumerate() {
                        let kept: Vec<Pos> = lists[layer][at][head].iter().copied().map(Pos::new).collect();
                        assert_eq!(
                            *set,
                            KeptSet::of(&kept),
                            "{id}, layer {layer}, eviction {at}, head {head}"
                        );
                    }
                }
            }
            let same = compare(&lived, &stack, 0, (&footprint, &lists)).unwrap().unwrap();
            assert!(same.is_exact() && same.sets > 0 && same.residents > 0, "{id}: {same:?}");
        }
    }

    #[test]
    fn a_decision_that_differs_is_named_with_its_place_and_the_gap() {
        let lived = Lived::of_waves(SHAPE, 9, 24);
        let stack = stack("snapkv");
        let (mut footprint, mut lists) = walked(&lived, &stack);
        // The run keeps another old token than the replay in layer 1, third eviction, KV head 1.
        let kept = &mut lists[1][2][1];
        let dropped = (1..9).find(|pos| !kept.contains(pos)).unwrap();
        let replaced = std::mem::replace(&mut kept[2], dropped);
        let positions: Vec<Pos> = kept.iter().copied().map(Pos::new).collect();
        footprint.evictions[1][2].heads[1] = KeptSet::of(&positions);
        let found = compare(&lived, &stack, 0, (&footprint, &lists)).unwrap().unwrap();
        assert!(!found.is_exact());
        assert_eq!(found.sets - found.equal, 1);
        let first = found.first.unwrap();
        assert_eq!((first.layer, first.eviction, first.kv_head), (1, 2, 1));
        assert_eq!(
            (first.only_live.as_slice(), first.only_replayed.as_slice()),
            (&[dropped][..], &[replaced][..])
        );
        assert!(first.score_gap.is_none_or(|gap| gap >= 0.0), "the replay keeps the larger score: {first}");
        assert!(first.to_string().contains("layer 1, eviction 2 at"), "{first}");
    }

    #[test]
    fn an_eviction_that_only_one_side_makes_is_a_difference() {
        let lived = Lived::of_waves(SHAPE, 9, 24);
        let stack = stack("snapkv");
        let (mut footprint, lists) = walked(&lived, &stack);
        footprint.evictions[0].pop();
        let found = compare(&lived, &stack, 0, (&footprint, &lists)).unwrap().unwrap();
        assert_eq!(found.sets - found.equal, 2, "both heads of the eviction");
    }
}
