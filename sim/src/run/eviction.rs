//! The eviction half of a study: tensor replay of all cells, then one engine run a cell.

use super::RunError;
use super::context::Context;
use super::eviction_series::{
    head_recall_series, items, occupancy_series, output_error, recall, recall_series, survival_series,
};
use super::lint;
use super::next_token;
use super::plan_columns::plan_columns;
use super::reading;
use super::recording::{LayerRanges, range_series};
use super::retained;
use super::study::{Finished, unit};
use crate::engine::{self, Eviction, Request, UnitCost, Workload};
use crate::ledger::{Kept, KeptSet};
use crate::observe::{Fanout, LogDigest, Memory, MemoryReport};
use crate::policy::PolicyError;
use crate::policy::compose::{Granularity, Stack};
use crate::replay::{
    EvictionCell, LayerModel, LayerOutcome, SequenceOutcome, Settings, replay_cells, value_ranges,
};
use crate::results::{Bootstrap, CellRow, Outcome, Section, Unit, UnitKind, cell_id};
use crate::rope::Rope;
use crate::scenario::{EvictionPlan, EvictionStudy};
use crate::trace::SequenceMeta;
use crate::types::{LayerIdx, Nanos, ReqId};
use rayon::prelude::*;

/// What one sequence gave: an outcome or a reason for each runnable cell, and the ranges by layer.
struct Pass {
    outcomes: Vec<Result<SequenceOutcome, PolicyError>>,
    ranges: Vec<LayerRanges>,
}

/// The unit of the recording's own series, then one unit a cell.
pub(super) fn units(context: &Context<'_>, study: &EvictionStudy, plans: &[EvictionPlan]) -> Vec<Unit> {
    let id = cell_id(&serde_json::json!({
        "source": context.digest,
        "sequences": context.sequences_key(),
        "study": "value ranges",
        "reserved": reserved(plans),
    }));
    let ranges = unit(id, Section::Eviction, UnitKind::Recording, "value ranges".to_owned());
    let cell = |plan: &EvictionPlan| {
        let budget = plan.budget.map_or_else(String::new, |budget| format!("  budget {budget}"));
        let seed = plan.seed.map_or_else(String::new, |seed| format!("  seed {seed}"));
        let label = format!("{}{budget}{seed}", plan.label);
        let refused = plan.stack.as_ref().err().map(ToString::to_string);
        let id = id_of(context, plan, study);
        Unit { refused, ..unit(id, Section::Eviction, UnitKind::Cell, label) }
    };
    std::iter::once(ranges).chain(plans.iter().map(cell)).collect()
}

/// N_v of the stacks, each once.
fn reserved(plans: &[EvictionPlan]) -> Vec<u32> {
    let stacks = plans.iter().filter_map(|plan| plan.stack.as_ref().ok());
    let mut reserved: Vec<u32> = stacks.map(Stack::value_tokens).collect();
    reserved.sort_unstable();
    reserved.dedup();
    reserved
}

/// Runs the units in `batches`, each with one pass over the trace.
pub(super) fn run(
    context: &Context<'_>,
    study: &EvictionStudy,
    plans: &[EvictionPlan],
    batches: &[Vec<usize>],
    keep: Finished<'_>,
) -> Result<(), RunError> {
    let units = units(context, study, plans);
    batches.iter().try_for_each(|batch| {
        // Place 0 is the recording.
        let wanted: Vec<Wanted<'_>> = batch
            .iter()
            .filter_map(|&at| Some(Wanted { plan: plans.get(at.checked_sub(1)?)?, id: &units[at].id }))
            .collect();
        let mut results = cells(context, study, &wanted)?;
        if batch.contains(&0) {
            let outcome =
                Outcome { series: range_series(&results.ranges, &reserved(plans)), ..Outcome::default() };
            results.outcomes.insert(0, outcome);
        }
        for (outcome, &at) in results.outcomes.iter_mut().zip(batch) {
            outcome.id.clone_from(&units[at].id);
        }
        keep(results.outcomes)
    })
}

/// A cell that is to be run.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    plan: &'a EvictionPlan,
    /// Its content hash.
    id: &'a str,
}

/// What cells gave, in their order, and the value ranges by layer.
struct EvictionResults {
    outcomes: Vec<Outcome>,
    ranges: Vec<LayerRanges>,
}

fn cells(
    context: &Context<'_>,
    study: &EvictionStudy,
    wanted: &[Wanted<'_>],
) -> Result<EvictionResults, RunError> {
    let runnable: Vec<(Wanted<'_>, &Stack)> =
        wanted.iter().filter_map(|wanted| Some((*wanted, wanted.plan.stack.as_ref().ok()?))).collect();
    let seed = |wanted: &Wanted<'_>| wanted.plan.seed.unwrap_or(0);
    let cells: Vec<EvictionCell<'_>> =
        runnable.iter().map(|(wanted, stack)| EvictionCell { stack, seed: seed(wanted) }).collect();
    let next_token = next_token::head(context, study)?;
    let settings = Settings {
        output_error_every: study.output_error_every,
        next_token_every: next_token.as_ref().map_or(0, |(_, every)| *every),
        bytes_per_scalar: study.bytes_per_scalar,
        block_tokens: study.block_tokens,
    };
    // A source that does not say enough about the model is no error: the policy that needs it says so.
    let rope = context.source.rope().and_then(|info| Rope::new(info).ok());
    let passes: Vec<Pass> = context
        .sequences
        .par_iter()
        .map(|meta| {
            let mut pass = sequence(context, meta, &cells, settings, rope.as_ref())?;
            if let Some((head, every)) = &next_token {
                next_token::apply(context, meta, head, *every, &mut pass.outcomes)?;
            }
            Ok(pass)
        })
        .collect::<Result<_, RunError>>()?;

    let mut simulated = runnable
        .par_iter()
        .enumerate()
        .map(|(at, (wanted, stack))| {
            let outcomes: Result<Vec<&SequenceOutcome>, &PolicyError> =
                passes.iter().map(|pass| pass.outcomes[at].as_ref()).collect();
            match outcomes {
                Ok(outcomes) => cell(context, study, *wanted, stack, &outcomes)
                    .unwrap_or_else(|error| unfinished(keys(context, *wanted), "failed", error.to_string())),
                Err(error) => {
                    let is_refused =
                        matches!(error, PolicyError::Refused { .. } | PolicyError::Missing { .. });
                    let status = if is_refused { "skipped" } else { "failed" };
                    unfinished(keys(context, *wanted), status, error.to_string())
                }
            }
        })
        .collect::<Vec<Outcome>>()
        .into_iter();

    let mut outcomes = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        match &wanted.plan.stack {
            Err(error) => outcomes.push(unfinished(keys(context, *wanted), "skipped", error.to_string())),
            Ok(_) => outcomes.extend(simulated.next()),
        }
    }
    let mut ranges = vec![Vec::new(); usize::from(context.shape.layers)];
    for pass in passes {
        ranges.iter_mut().zip(pass.ranges).for_each(|(all, ranges)| all.extend(ranges));
    }
    Ok(EvictionResults { outcomes, ranges })
}

/// A cell without numbers.
pub(super) fn unfinished(mut row: CellRow, status: &str, error: String) -> Outcome {
    row.text("status", status);
    row.text("error", error);
    Outcome { cell: Some(row), ..Outcome::default() }
}

/// One sequence through all cells. Its layers are worked on in parallel and added up; then only the sums are kept.
fn sequence(
    context: &Context<'_>,
    meta: &SequenceMeta,
    cells: &[EvictionCell<'_>],
    settings: Settings,
    rope: Option<&Rope>,
) -> Result<Pass, RunError> {
    let layers: Vec<LayerIdx> = context.shape.layer_ids().collect();
    let by_layer: Vec<(Vec<Result<LayerOutcome, PolicyError>>, LayerRanges)> = layers
        .par_iter()
        .map(|&layer| {
            let tensors = context.source.layer(meta.seq, layer)?;
            // Without it there are no errors after it, and policies that need it say so.
            let w_o = context.source.w_o(layer).ok();
            let model = LayerModel { rope, w_o };
            // A batch of the recording's own series alone has no cell to replay.
            let outcomes = match cells {
                [] => Vec::new(),
                _ => replay_cells(context.shape, meta, layer, &tensors, &model, cells, settings)?,
            };
            let ranges = context.shape.kv_head_ids().map(|head| value_ranges(&tensors, head)).collect();
            context.advance();
            Ok((outcomes, ranges))
        })
        .collect::<Result<_, RunError>>()?;
    let (mut by_layer, ranges): (Vec<_>, Vec<_>) =
        by_layer.into_iter().map(|(outcomes, ranges)| (outcomes.into_iter(), ranges)).unzip();
    let mut outcomes = Vec::with_capacity(cells.len());
    for _ in cells {
        // The first layer that fails speaks for the cell.
        let layers: Result<Vec<LayerOutcome>, PolicyError> =
            by_layer.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>().into_iter().collect();
        outcomes.push(layers.map(|layers| SequenceOutcome::of(&layers, meta.len, settings.block_tokens)));
    }
    Ok(Pass { outcomes, ranges })
}

/// Tokens of a physical block: what is evicted as one, or what the study says.
fn block_tokens(study: &EvictionStudy, stack: &Stack) -> u32 {
    match stack.granularity() {
        Granularity::Block(tokens) => tokens,
        _ => study.block_tokens,
    }
}

/// Content hash of a cell.
fn id_of(context: &Context<'_>, plan: &EvictionPlan, study: &EvictionStudy) -> String {
    let params = plan.stack.as_ref().map_or(serde_json::Value::Null, Stack::params);
    let mut parts = serde_json::json!({
        "source": context.digest,
        "sequences": context.sequences_key(),
        "study": "eviction",
        "policy": plan.label,
        "params": params,
        "budget": plan.budget,
        "seed": plan.seed,
        "output_error_every": study.output_error_every,
        "block_tokens": study.block_tokens,
        "bytes_per_scalar": study.bytes_per_scalar,
        // What is decided by the trace is in its digest.
        "next_token_every": study.next_token_every.unwrap_or_default(),
        "by_item": context.has_items,
    });
    if let (Some(place), Some(map)) = (study.retained, parts.as_object_mut()) {
        // Studies from before keep their ids.
        map.insert("retained".to_owned(), serde_json::to_value(place).unwrap_or_default());
    }
    cell_id(&parts)
}

/// The key columns of a cell.
fn keys(context: &Context<'_>, Wanted { plan, id }: Wanted<'_>) -> CellRow {
    let mut row = context.keys("eviction");
    context.tell_drawn(&mut row);
    row.text("cell", id);
    plan_columns(plan, &mut row);
    row
}

/// One cell: the engine's account of its evictions and the replay's proxies. `outcomes` is `[sequence]`.
fn cell(
    context: &Context<'_>,
    study: &EvictionStudy,
    wanted: Wanted<'_>,
    stack: &Stack,
    outcomes: &[&SequenceOutcome],
) -> Result<Outcome, RunError> {
    let workload = Workload {
        requests: context
            .sequences
            .iter()
            .zip(outcomes)
            .map(|(meta, outcome)| request(meta, outcome))
            .collect(),
        shape: *context.shape,
        block_tokens: block_tokens(study, stack),
        bytes_per_scalar: u64::from(study.bytes_per_scalar),
        capacity_blocks: None,
    };
    let (mut digest, mut memory) = (LogDigest::new(), Memory::new(&workload));
    let mut observers = Fanout::new(vec![&mut digest, &mut memory]);
    engine::run(&workload, &engine::Settings::default(), &UnitCost::default(), &mut observers)?;
    let (digest, report) = (digest.finish(), memory.report());

    let Wanted { plan, id } = wanted;
    let mut row = keys(context, wanted);
    row.text("status", "ok");
    row.text("log_digest", digest);
    if report.evictions == 0 && stack.can_evict() {
        let longest = context.sequences.iter().map(|meta| meta.len).max().unwrap_or(0);
        row.text("lint", lint::never_triggered(plan.budget, stack.period(), longest));
    }
    memory_metrics(&mut row, &report, &context.bootstrap);
    proxy_metrics(&mut row, context, outcomes, report.evictions);
    if stack.takes_weights() && report.evictions > 0 {
        filled(&mut row, outcomes, &context.bootstrap);
    }
    reading::metrics(&mut row, context, study, outcomes, &report);
    let series = occupancy_series(id, &report)
        .chain(recall_series(id, context, outcomes))
        .chain(head_recall_series(id, context, outcomes))
        .chain(survival_series(id, outcomes))
        .chain(reading::range_error_series(id, outcomes))
        .collect();
    let items = if context.has_items { items(id, context, outcomes) } else { Vec::new() };
    let held = retained::rows(id, context, study, EvictionCell { stack, seed: plan.seed.unwrap_or(0) })?;
    let more = vec![("items", items), ("retained", held)];
    Ok(Outcome { cell: Some(row), series, more, ..Outcome::default() })
}

/// Tokens that evictions kept since nothing with weight was left; only a selector that takes weights knows such.
fn filled(row: &mut CellRow, outcomes: &[&SequenceOutcome], bootstrap: &Bootstrap) {
    let kept = |o: &SequenceOutcome| -> u64 {
        o.evictions.iter().flat_map(|(_, sets)| sets).map(|set| u64::from(set.count)).sum()
    };
    let (num, den): (Vec<u64>, Vec<u64>) = outcomes.iter().map(|o| (o.filled, kept(o))).unzip();
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    let terms: Vec<(f64, f64)> = num.iter().zip(&den).map(|(&n, &d)| (n as f64, d as f64)).collect();
    row.rate("filled_token_rate", bootstrap.ratio(&terms), num.iter().sum(), den.iter().sum());
}

pub(super) fn request(meta: &SequenceMeta, outcome: &SequenceOutcome) -> Request {
    let eviction =
        |(seen, sets): &(u32, Vec<KeptSet>)| Eviction { seen: *seen, kept: Kept::Sets(sets.clone()) };
    Request {
        req: ReqId::new(meta.seq.get()),
        prompt_len: meta.prompt_len,
        len: meta.len,
        arrival: Nanos::ZERO,
        evictions: outcome.evictions.iter().map(eviction).collect(),
        forks: Vec::new(),
    }
}

fn memory_metrics(row: &mut CellRow, report: &MemoryReport, bootstrap: &Bootstrap) {
    row.count("evictions", report.evictions);
    row.count("kv_byte_steps", report.kv_byte_steps.get());
    row.count("peak_kv_bytes", report.peak_kv_bytes.get());
    row.count("peak_allocated_kv_bytes", report.peak_allocated_kv_bytes.get());
    let ratios: Vec<Option<f64>> = report.sequences.iter().map(|sequence| sequence.mean_keep_ratio).collect();
    row.mean("mean_keep_ratio", bootstrap.mean(&ratios), ratios.iter().flatten().count());
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn proxy_metrics(row: &mut CellRow, context: &Context<'_>, outcomes: &[&SequenceOutcome], evictions: u64) {
    let bootstrap = &context.bootstrap;
    let mut mean = |metric: &str, of: &dyn Fn(&SequenceOutcome) -> Option<f64>| {
        let values: Vec<Option<f64>> = outcomes.iter().map(|outcome| of(outcome)).collect();
        if values.iter().any(Option::is_some) {
            row.mean(metric, bootstrap.mean(&values), values.iter().flatten().count());
        }
    };
    let share = |sum: f64, terms: f64| (terms > 0.0).then(|| sum / terms);
    mean("attn_mass_recall", &|o| recall(context, o));
    mean("attn_output_error", &output_error);
    let steps = |o: &SequenceOutcome| o.projected.len() as f64;
    mean("projected_output_error", &|o| {
        share(o.projected.iter().map(|s| s.error_sum / f64::from(s.layers)).sum(), steps(o))
    });
    mean("projected_output_error_rms", &|o| {
        share(o.projected.iter().map(|s| (s.square_sum / f64::from(s.layers)).sqrt()).sum(), steps(o))
    });
    mean("direct_next_token_kl", &|o| {
        share(o.next_token.iter().map(|effect| effect.kl_nats).sum(), o.next_token.len() as f64)
    });
    mean("head_jaccard", &|o| share(o.jaccard_sum, o.jaccard_terms as f64));
    let mut rate =
        |metric: &str, num: &dyn Fn(&SequenceOutcome) -> u64, den: &dyn Fn(&SequenceOutcome) -> u64| {
            let (num, den): (Vec<u64>, Vec<u64>) =
                outcomes.iter().map(|outcome| (num(outcome), den(outcome))).unzip();
            let terms: Vec<(f64, f64)> = num.iter().zip(&den).map(|(&n, &d)| (n as f64, d as f64)).collect();
            row.rate(metric, bootstrap.ratio(&terms), num.iter().sum(), den.iter().sum());
        };
    rate("wide_value_coverage", &|o| o.wide_kept, &|o| o.wide_total);
    rate("blocks_held_in_place", &|o| o.blocks_held, &|o| o.blocks);
    rate("union_coverage", &|o| o.union_kept, &|o| o.len);
    if outcomes.iter().any(|outcome| !outcome.next_token.is_empty()) {
        let same = |o: &SequenceOutcome| o.next_token.iter().filter(|e| !e.is_flipped).count() as u64;
        rate("direct_top1_agreement", &same, &|o| o.next_token.len() as u64);
    }
    if evictions > 0 {
        let head_evictions =
            |o: &SequenceOutcome| o.evictions.iter().map(|(_, sets)| sets.len() as u64).sum();
        rate("boundary_tie_rate", &|o| o.ties, &head_evictions);
    }
}
