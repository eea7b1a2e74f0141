//! The laws, one function each.

use super::cases::{Case, first, rope};
use super::{PlainHead, Report, Subject, WatchedHead};
use crate::num;
use crate::policy::compose::{Eviction, Granularity, HeadInput, Knobs, Reason, Stack, accumulate};
use crate::policy::schedule::Moment;
use crate::policy::{At, HeadData, Law, Needs, PolicyError};
use crate::replay::{
    EvictionCell, LayerModel, LayerOutcome, RecordedHead, ReplayError, Settings, replay_cells,
};
use crate::trace::synth::Synthetic;
use crate::trace::{SequenceMeta, TraceError, TraceSource};
use crate::types::{KvHead, LayerIdx, ModelShape, Pos, SeqIdx};

/// A case that cannot be set up at all.
#[derive(Debug, thiserror::Error)]
enum CaseError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

pub(super) fn check_case(subject: &Subject<'_>, seed: u64, case: u32, report: &mut Report) {
    let mut draws = Case::new(seed, case, "contract");
    let knobs = draws.knobs();
    let stack = match subject.build(&knobs) {
        Ok(stack) => stack,
        Err(
            PolicyError::BudgetTooSmall { .. }
            | PolicyError::PeriodMismatch { .. }
            | PolicyError::Refused { .. },
        ) => return,
        Err(error) => return report.find("P1", case, format!("{knobs:?} are refused: {error}")),
    };
    if stack.can_evict() {
        if let Err(error) = on_vectors(subject, &stack, &mut draws, case, report) {
            report.find("P1", case, error.to_string());
        }
        degenerate(&stack, &mut draws, case, report);
    }
    // Replays are the costly part.
    if case.is_multiple_of(4)
        && let Err(error) = on_replay(subject, &stack, &mut draws, case, report)
    {
        report.find("P9", case, error.to_string());
    }
}

fn at(meta: &SequenceMeta, head: KvHead) -> At {
    let (seq, layer) = (SeqIdx::new(0), LayerIdx::new(0));
    At { seq, layer, head, eviction: 0, seen: meta.len, prompt_len: meta.prompt_len }
}

/// Evicts the heads of a layer together. Where attention accumulates, the last queries stand for all.
fn evict(
    stack: &Stack,
    shape: &ModelShape,
    heads: &[&dyn HeadData],
    ats: &[At],
    resident: &[Pos],
    seed: u64,
) -> Result<Vec<Eviction>, PolicyError> {
    let mass = |head: &dyn HeadData, seen: u32| {
        let mut mass = vec![0.0; if stack.accumulates() { resident.len() } else { 0 }];
        if stack.accumulates() {
            (seen.saturating_sub(4)..seen).for_each(|t| accumulate(head, Pos::new(t), resident, &mut mass));
        }
        mass
    };
    let masses: Vec<Vec<f32>> = heads.iter().zip(ats).map(|(head, at)| mass(*head, at.seen)).collect();
    let inputs: Vec<HeadInput<'_>> = heads
        .iter()
        .zip(ats)
        .zip(&masses)
        .map(|((data, at), mass)| {
            let capacity = stack.capacity(shape, at.layer, at.head, at.seen);
            HeadInput { data: *data, at: *at, resident, mass, capacity }
        })
        .collect();
    stack.evict_layer(&inputs, seed)
}

/// Whether a policy may refuse: a prompt that does not fit, and the like.
fn is_refusal(error: &PolicyError) -> bool {
    matches!(error, PolicyError::Refused { .. })
}

/// P1 to P3 of one layer.
fn check_kept(
    stack: &Stack,
    shape: &ModelShape,
    ats: &[At],
    resident: &[Pos],
    evictions: &[Eviction],
) -> Result<(), (&'static str, String)> {
    let Knobs { recent, sinks, .. } = *stack.knobs();
    let protected = resident.iter().filter(|pos| pos.get() < sinks).count();
    let tail = (recent as usize).min(resident.len());
    let forced = {
        let is_recent = |at: usize| at >= resident.len() - tail;
        let is_forced = |(at, pos): &(usize, &Pos)| pos.get() < sinks || is_recent(*at);
        resident.iter().enumerate().filter(is_forced).count().max(1)
    };
    let expected: Vec<usize> = ats
        .iter()
        .map(|at| {
            let capacity = stack.capacity(shape, at.layer, at.head, at.seen) as usize;
            capacity.max(forced).min(resident.len())
        })
        .collect();
    let found: Vec<usize> = evictions.iter().map(|eviction| eviction.kept.len()).collect();
    if let Granularity::Block(_) = stack.granularity() {
        // Whole blocks only: fewer than the budget, or what is protected with its blocks.
        let whole = |pos: &Pos, of: &Pos| {
            pos.get() / stack.granularity().tokens() == of.get() / stack.granularity().tokens()
        };
        let is_protected = |at: usize, pos: &Pos| {
            pos.get() < sinks
                || at >= resident.len() - tail
                || pos.get() >= resident[resident.len() - tail.max(1)].get()
        };
        let protected: Vec<&Pos> = resident
            .iter()
            .enumerate()
            .filter(|(at, pos)| is_protected(*at, pos))
            .map(|(_, pos)| pos)
            .collect();
        let most = resident.iter().filter(|pos| protected.iter().any(|of| whole(pos, of))).count();
        let fits = |(found, at): (&usize, &At)| {
            let capacity = stack.capacity(shape, at.layer, at.head, at.seen) as usize;
            *found <= capacity.max(most + stack.granularity().tokens() as usize).min(resident.len())
        };
        if !found.iter().zip(ats).all(fits) {
            return Err((
                "P1",
                format!("{found:?} tokens are kept, at most {expected:?} and protected blocks expected"),
            ));
        }
    } else
    // Room may be moved between the heads of a layer.
    if found.len() != expected.len() || found.iter().sum::<usize>() != expected.iter().sum::<usize>() {
        return Err(("P1", format!("{found:?} tokens are kept, {expected:?} expected")));
    }
    for Eviction { kept, reasons, .. } in evictions {
        let mut sorted = kept.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(("P2", format!("a token is kept twice: {kept:?}")));
        }
        if let Some(pos) = kept.iter().find(|pos| !resident.contains(pos)) {
            return Err(("P2", format!("token {pos} is kept and was not resident")));
        }
        if kept[kept.len() - tail.min(kept.len())..] != resident[resident.len() - tail..] {
            return Err(("P3", format!("the last {tail} tokens are not kept in order: {kept:?}")));
        }
        if kept.iter().filter(|pos| pos.get() < sinks).count() != protected {
            return Err(("P3", format!("not all of {protected} sinks are kept: {kept:?}")));
        }
        let is_sink = |(pos, reason): (&Pos, &Reason)| {
            pos.get() >= sinks || !matches!(reason, Reason::Selected | Reason::Filled)
        };
        if reasons.len() != kept.len() || !kept.iter().zip(reasons).all(is_sink) {
            return Err(("P3", format!("reasons do not fit: {reasons:?}")));
        }
    }
    Ok(())
}

fn on_vectors(
    subject: &Subject<'_>,
    stack: &Stack,
    draws: &mut Case,
    case: u32,
    report: &mut Report,
) -> Result<(), CaseError> {
    let trace = draws.trace()?;
    let shape = *trace.shape();
    let (meta, tensors) = first(&trace)?;
    let rope = rope(shape.head_dim);
    let model = LayerModel { rope: rope.as_ref(), w_o: Some(draws.w_o(&shape)) };
    let recorded: Vec<RecordedHead<'_>> = shape
        .kv_head_ids()
        .map(|head| {
            let recorded = RecordedHead::new(&tensors, &shape, LayerIdx::new(0), head, meta.len)?;
            Ok(recorded.with_model(model.of_head(&shape, head)))
        })
        .collect::<Result<_, ReplayError>>()?;
    let heads: Vec<&dyn HeadData> = recorded.iter().map(|head| head as &dyn HeadData).collect();
    let ats: Vec<At> = shape.kv_head_ids().map(|head| at(meta, head)).collect();
    let (seed, resident) = (draws.bits(), draws.resident(meta.len, stack.knobs()));

    let first = evict(stack, &shape, &heads, &ats, &resident, seed);
    report.count("P1");
    match &first {
        Ok(evictions) => {
            for law in ["P2", "P3"] {
                report.count(law);
            }
            if let Err((law, detail)) = check_kept(stack, &shape, &ats, &resident, evictions) {
                report.find(law, case, detail);
            }
        }
        Err(error) if is_refusal(error) => return Ok(()),
        Err(error) => report.find("P1", case, error.to_string()),
    }
    report.count("P4");
    if evict(stack, &shape, &heads, &ats, &resident, seed) != first {
        report.find("P4", case, "the same question got another answer".to_owned());
    }

    declared_needs(stack, &shape, &heads, &ats, &resident, case, report);
    if stack.claims(Law::HeadSymmetric) {
        report.count("P15");
        let reversed: Vec<&dyn HeadData> = heads.iter().rev().copied().collect();
        let swapped = evict(stack, &shape, &reversed, &ats, &resident, seed)
            .map(|evictions| evictions.into_iter().rev().collect::<Vec<_>>());
        if swapped != first {
            report.find("P15", case, "heads in another order keep other tokens".to_owned());
        }
    }
    larger_budget(subject, stack, &shape, (&heads, &ats), meta, seed, case, report);
    Ok(())
}

/// P13: a stack reads no field that it did not declare.
fn declared_needs(
    stack: &Stack,
    shape: &ModelShape,
    heads: &[&dyn HeadData],
    ats: &[At],
    resident: &[Pos],
    case: u32,
    report: &mut Report,
) {
    report.count("P13");
    let watched: Vec<WatchedHead<'_>> = heads.iter().map(|head| WatchedHead::new(*head)).collect();
    let data: Vec<&dyn HeadData> = watched.iter().map(|head| head as &dyn HeadData).collect();
    // What it says is another law's concern.
    drop(evict(stack, shape, &data, ats, resident, 0));
    let read = watched.iter().fold(Needs::NONE, |read, head| read.and(head.read()));
    if read.and(stack.needs()) != stack.needs() {
        let (read, declared) = (read.words(), stack.needs().words());
        report.find("P13", case, format!("`{read}` is read, `{declared}` declared"));
    }
}

/// P8: a larger budget keeps a superset, from the same resident tokens.
#[expect(clippy::too_many_arguments, reason = "one case")]
fn larger_budget(
    subject: &Subject<'_>,
    stack: &Stack,
    shape: &ModelShape,
    (heads, ats): (&[&dyn HeadData], &[At]),
    meta: &SequenceMeta,
    seed: u64,
    case: u32,
    report: &mut Report,
) {
    // Reserved slots grow with the budget and take other tokens' places; protected ones may grow with it too.
    let knobs = *stack.knobs();
    let larger = Knobs { capacity: knobs.capacity + knobs.period, ..knobs };
    let Ok(large) = subject.build(&larger) else { return };
    let same = large.knobs().recent == knobs.recent && large.knobs().sinks == knobs.sinks;
    if !stack.claims(Law::Stack) || stack.value_tokens() != 0 || large.value_tokens() != 0 || !same {
        return;
    }
    let all: Vec<Pos> = (0..meta.len).map(Pos::new).collect();
    let both = (evict(stack, shape, heads, ats, &all, seed), evict(&large, shape, heads, ats, &all, seed));
    let (Ok(few), Ok(more)) = both else { return };
    report.count("P8");
    for (few, more) in few.iter().zip(&more) {
        if let Some(pos) = few.kept.iter().find(|pos| !more.kept.contains(pos)) {
            let (small, large) = (knobs.capacity, larger.capacity);
            report.find("P8", case, format!("token {pos} is kept with {small} tokens and not with {large}"));
        }
    }
}

/// P12: vectors that are all alike, all zero, denormal or huge.
fn degenerate(stack: &Stack, draws: &mut Case, case: u32, report: &mut Report) {
    let base = [0.0, 1.0, f32::MIN_POSITIVE / 8.0, -1e-20, 3e4][draws.between(0, 4) as usize];
    let len = draws.between(1, 49);
    let mut rows = vec![vec![base; 4]; len as usize];
    let spike = draws.between(0, len - 1) as usize;
    rows[spike] = vec![if base > 2.0 { -3e4 } else { 1e5 }; 4];
    let head = PlainHead {
        queries: vec![rows.clone(), rows.clone()],
        keys: rows.clone(),
        values: rows,
        rope: rope(4),
        output_weights: vec![vec![0.5; 12]; 2],
    };
    let shape = ModelShape { layers: 1, q_heads: 2, kv_heads: 1, head_dim: 4, hidden: 3, vocab: 50 };
    let meta = SequenceMeta { seq: SeqIdx::new(0), item: String::new(), prompt_len: len.min(3), len };
    let ats = [at(&meta, KvHead::new(0))];
    let all: Vec<Pos> = (0..len).map(Pos::new).collect();
    report.count("P12");
    match evict(stack, &shape, &[&head], &ats, &all, 1) {
        Ok(evictions) => {
            if let Err((law, detail)) = check_kept(stack, &shape, &ats, &all, &evictions) {
                report.find("P12", case, format!("{law} with rows of {base} and one spike: {detail}"));
            }
        }
        Err(error) if is_refusal(&error) => {}
        Err(error) => report.find("P12", case, format!("rows of {base} and one spike: {error}")),
    }
}

/// P9 and P11: recall against the clairvoyant bound, and a budget that is never exceeded.
fn on_replay(
    subject: &Subject<'_>,
    stack: &Stack,
    draws: &mut Case,
    case: u32,
    report: &mut Report,
) -> Result<(), CaseError> {
    let trace = draws.trace()?;
    let shape = *trace.shape();
    let (rope, w_o, seed) = (rope(shape.head_dim), draws.w_o(&shape), draws.bits());
    let model = LayerModel { rope: rope.as_ref(), w_o: Some(w_o) };
    let knobs = *stack.knobs();
    let heads = f64::from(shape.q_heads);
    for (outcome, bound) in outcomes(&trace, stack, &model, seed)?.iter().zip(clairvoyant(&trace, stack)?) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) if is_refusal(error) => continue,
            Err(error) => {
                report.find("P9", case, error.to_string());
                continue;
            }
        };
        report.count("P9");
        let broken =
            outcome.recall.iter().zip(&bound).find(|(recall, best)| {
                !(**recall >= 0.0 && **recall <= **best + 1e-5) || **best > heads + 1e-9
            });
        if let Some((recall, best)) = broken {
            report.find("P9", case, format!("recall {recall} of at most {best}"));
        }
        if outcome.recall.len() != bound.len() || !(outcome.error_sum >= 0.0 && outcome.error_sum.is_finite())
        {
            report.find("P9", case, format!("{} recalls, error {}", outcome.recall.len(), outcome.error_sum));
        }
    }
    let longest = trace.sequences().iter().map(|meta| meta.len).max().unwrap_or(1);
    let roomy = Knobs { capacity: (longest / knobs.period + 2) * knobs.period, ..knobs };
    let Ok(roomy) = subject.build(&roomy) else { return Ok(()) };
    // What a store gives back is not what the full cache holds.
    if roomy.mean_budget(longest) < longest || !roomy.keeps_exact() {
        return Ok(());
    }
    report.count("P11");
    for outcome in outcomes(&trace, &roomy, &model, seed)?.into_iter().flatten() {
        let is_all = outcome.recall.iter().all(|recall| (recall - heads).abs() < 1e-9);
        // One step's terms are relative errors of a few ulp.
        if !outcome.evictions.is_empty() || !is_all || outcome.error_sum > 1e-4 * heads * f64::from(longest) {
            report.find("P11", case, "a budget that is never exceeded is not the full cache".to_owned());
        }
    }
    Ok(())
}

fn outcomes(
    trace: &Synthetic,
    stack: &Stack,
    model: &LayerModel<'_>,
    seed: u64,
) -> Result<Vec<Result<LayerOutcome, PolicyError>>, CaseError> {
    let (cells, settings) =
        ([EvictionCell { stack, seed }], Settings { output_error_every: 3, ..Settings::default() });
    let mut all = Vec::new();
    for meta in trace.sequences() {
        for layer in trace.shape().layer_ids() {
            let tensors = trace.layer(meta.seq, layer)?;
            all.extend(replay_cells(trace.shape(), meta, layer, &tensors, model, &cells, settings)?);
        }
    }
    Ok(all)
}

/// The most attention that as many tokens as a layer holds could have, at each step of each (sequence, layer): the largest
/// probabilities over all heads of the layer, chosen anew with hindsight. `[sequence x layer][step]`.
fn clairvoyant(trace: &Synthetic, stack: &Stack) -> Result<Vec<Vec<f64>>, CaseError> {
    let shape = trace.shape();
    let mut bounds = Vec::new();
    for meta in trace.sequences() {
        for layer in shape.layer_ids() {
            let tensors = trace.layer(meta.seq, layer)?;
            let heads: Vec<RecordedHead<'_>> = shape
                .kv_head_ids()
                .map(|head| RecordedHead::new(&tensors, shape, layer, head, meta.len))
                .collect::<Result<_, _>>()?;
            let mut held = Held::new(stack, shape, layer, meta);
            let mut bound = Vec::new();
            held.after(Moment::PrefillDone, meta.prompt_len);
            for t in meta.prompt_len..meta.len {
                held.store();
                bound.push(best(&heads, t, &held));
                held.after(Moment::DecodeStep, t + 1);
            }
            bounds.push(bound);
        }
    }
    Ok(bounds)
}

/// How many tokens each KV head of a layer holds at most.
struct Held<'a> {
    stack: &'a Stack,
    shape: &'a ModelShape,
    layer: LayerIdx,
    prompt_len: u32,
    /// What a head with the mean budget holds.
    stored: u32,
    /// `[kv_head]`
    counts: Vec<usize>,
}

impl<'a> Held<'a> {
    fn new(stack: &'a Stack, shape: &'a ModelShape, layer: LayerIdx, meta: &SequenceMeta) -> Self {
        let counts = vec![meta.prompt_len as usize; usize::from(shape.kv_heads)];
        Self { stack, shape, layer, prompt_len: meta.prompt_len, stored: meta.prompt_len, counts }
    }

    fn store(&mut self) {
        self.stored += 1;
        self.counts.iter_mut().for_each(|count| *count += 1);
    }

    fn after(&mut self, moment: Moment, seen: u32) {
        if !self.stack.is_due(moment, self.stored, seen, self.prompt_len) {
            return;
        }
        self.stored = self.stored.min(self.stack.mean_budget(seen));
        let Knobs { recent, sinks, .. } = *self.stack.knobs();
        for (head, count) in self.shape.kv_head_ids().zip(&mut self.counts) {
            let capacity = self.stack.capacity(self.shape, self.layer, head, seen);
            *count = (*count).min(capacity.max(recent + sinks).max(1) as usize);
        }
    }
}

/// The most probability that the tokens held could have at `t`, over all query heads of the layer.
fn best(heads: &[RecordedHead<'_>], t: u32, held: &Held<'_>) -> f64 {
    let positions: Vec<Pos> = (0..=t).map(Pos::new).collect();
    let mut row = Vec::new();
    let mut total = 0.0;
    let is_moved = held.stack.is_layer_wide();
    let most = held.counts.iter().sum::<usize>();
    for (head, &count) in heads.iter().zip(&held.counts) {
        for member in 0..head.group() {
            head.logits(member, Pos::new(t), &positions, &mut row);
            num::softmax(&mut row);
            row.sort_unstable_by(|a, b| b.total_cmp(a));
            // Where room is moved between heads, one head may hold what all hold.
            let count = if is_moved { most } else { count };
            let sum = |part: &[f32]| part.iter().fold(0.0, |total, p| total + f64::from(*p));
            // A row of f32 sums to 1 up to rounding.
            total += sum(&row[..count.min(row.len())]) / sum(&row);
        }
    }
    total
}
