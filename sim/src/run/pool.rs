//! The block-cache half of a study: every policy and capacity over one stream.

use super::RunError;
use super::context::Context;
use super::eviction::unfinished;
use super::items;
use super::study::{Finished, unit};
use crate::policy::pool::Pool;
use crate::pool::{BlockStream, Counts, Limits, PoolEvent, from_trace, replay_told, replay_with, synth};
use crate::results::{CellRow, Estimate, Outcome, Section, Unit, UnitKind, cell_id};
use crate::scenario::{PoolPlan, PoolStudy, StreamChoice};
use crate::table::Value;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// One unit a cell.
pub(super) fn units(
    context: &Context<'_>,
    study: &PoolStudy,
    plans: &[PoolPlan<'_>],
) -> Result<Vec<Unit>, RunError> {
    let cell = |plan: &PoolPlan<'_>| {
        let seed = plan.seed.map_or_else(String::new, |seed| format!("  seed {seed}"));
        let label = format!("{}  capacity {}{seed}", plan.choice.label, plan.capacity);
        let policy = plan.choice.build()?;
        let id = id_of(context, study, plan, policy.as_ref());
        Ok(unit(id, Section::Pool, UnitKind::Cell, label))
    };
    plans.iter().map(cell).collect()
}

/// Content hash of a cell.
fn id_of(context: &Context<'_>, study: &PoolStudy, plan: &PoolPlan<'_>, policy: &dyn Pool) -> String {
    let origin = match &study.stream {
        StreamChoice::Trace => serde_json::json!(context.digest),
        StreamChoice::Generated { id, params } => serde_json::json!({ "id": id, "params": params }),
    };
    let mut key = serde_json::json!({
        "source": origin,
        "study": "pool",
        "policy": plan.choice.label,
        "kind": policy.spec().id,
        "params": policy.params(),
        "capacity": plan.capacity.to_string(),
        "block_tokens": study.block_tokens,
        "in_flight": study.in_flight,
        "seed": plan.seed,
    });
    if context.has_pool_items {
        key["by_item"] = true.into();
    }
    cell_id(&key)
}

/// Runs the units in `batches`.
pub(super) fn run(
    context: &Context<'_>,
    study: &PoolStudy,
    plans: &[PoolPlan<'_>],
    batches: &[Vec<usize>],
    keep: Finished<'_>,
) -> Result<(), RunError> {
    let mut streams: BTreeMap<Option<u64>, BlockStream> = BTreeMap::new();
    for plan in batches.iter().flatten().filter_map(|&at| plans.get(at)) {
        if let Entry::Vacant(place) = streams.entry(plan.seed) {
            place.insert(stream(context, study, plan.seed)?);
        }
    }
    for batch in batches {
        let wanted: Vec<(&PoolPlan<'_>, &BlockStream)> = batch
            .iter()
            .filter_map(|&at| plans.get(at))
            .filter_map(|p| Some((p, streams.get(&p.seed)?)))
            .collect();
        let outcome = |(plan, stream): &(&PoolPlan<'_>, &BlockStream)| {
            let outcome = cell(context, study, plan, stream);
            context.advance();
            outcome
        };
        keep(wanted.par_iter().map(outcome).collect::<Result<_, RunError>>()?)?;
    }
    Ok(())
}

fn stream(context: &Context<'_>, study: &PoolStudy, seed: Option<u64>) -> Result<BlockStream, RunError> {
    Ok(match &study.stream {
        StreamChoice::Trace => from_trace(context.source, study.block_tokens)?,
        StreamChoice::Generated { id, params } => {
            synth::generator(id)?.build(params.clone(), seed.unwrap_or(0))?
        }
    })
}

fn cell(
    context: &Context<'_>,
    study: &PoolStudy,
    plan: &PoolPlan<'_>,
    stream: &BlockStream,
) -> Result<Outcome, RunError> {
    let policy = plan.choice.build()?;
    let mut row = context.keys("pool");
    row.text("source", stream.name());
    row.set("synthetic", Value::Bool(stream.is_synthetic()));
    row.int("sequences", 0);
    row.text("policy", plan.choice.label.clone());
    if let Some(seed) = plan.seed {
        row.int("seed", i64::try_from(seed).unwrap_or(i64::MAX));
    }
    let params = serde_json::json!({
        "policy": policy.params(),
        "capacity": plan.capacity.to_string(),
        "block_tokens": stream.block_tokens(),
        "in_flight": study.in_flight,
    });
    let id = id_of(context, study, plan, policy.as_ref());
    row.text("cell", id.clone());
    row.text("params", params.to_string());
    let capacity_blocks = match plan.capacity.blocks(stream) {
        Ok(blocks) => blocks,
        Err(error) => return Ok(Outcome { id, ..unfinished(row, "skipped", error.to_string()) }),
    };
    let mut log = Sha256::new();
    let mut lines = Vec::with_capacity(1 << 12);
    let limits = Limits { capacity_blocks, in_flight: study.in_flight };
    let evicted = |request: u64, block: u32| {
        lines.extend_from_slice(&request.to_le_bytes());
        lines.extend_from_slice(&block.to_le_bytes());
        if lines.len() >= 1 << 12 {
            log.update(&lines);
            lines.clear();
        }
    };
    let mut groups = Groups::of(stream);
    let counts = if context.has_pool_items {
        let mut evicted = evicted;
        let on = |event| {
            if let PoolEvent::Evicted { request, block } = event {
                evicted(request, block);
            }
        };
        replay_told(stream, policy.as_ref(), limits, on, |at, counts| groups.add(at, counts))
    } else {
        replay_with(stream, policy.as_ref(), limits, evicted)
    };
    log.update(&lines);
    row.text("log_digest", log.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    row.text("status", "ok");
    if capacity_blocks >= u64::from(stream.distinct()) {
        let all = stream.distinct();
        row.text(
            "lint",
            format!("vacuous: all {all} distinct blocks fit into {capacity_blocks}, nothing is ever evicted"),
        );
    }
    pool_measures(&mut row, stream, capacity_blocks, &counts);
    let items = if context.has_pool_items { groups.items(&id) } else { Vec::new() };
    Ok(Outcome { id, cell: Some(row), more: vec![("items", items)], ..Outcome::default() })
}

/// Hits by problem; where requests are of no problem, by runs of neighbours, whose means depend on each other less than requests do.
struct Groups<'a> {
    stream: &'a BlockStream,
    /// Tokens found and asked for by each request.
    terms: Vec<(u64, u64)>,
    before: (u64, u64),
}

impl<'a> Groups<'a> {
    /// Runs of a stream without problems.
    const RUNS: usize = 50;

    fn of(stream: &'a BlockStream) -> Self {
        Self { stream, terms: Vec::new(), before: (0, 0) }
    }

    /// Request `at` has been served; `counts` are those so far.
    fn add(&mut self, at: usize, counts: &Counts) {
        debug_assert_eq!(at, self.terms.len());
        let now = (counts.hit_tokens, counts.asked_tokens);
        self.terms.push((now.0 - self.before.0, now.1 - self.before.1));
        self.before = now;
    }

    fn items(&self, cell: &str) -> Vec<Vec<Value>> {
        let (all, runs) = (self.terms.len(), Self::RUNS.min(self.terms.len()).max(1));
        // Run `r` has the requests from r · all / runs on.
        let first = |run: usize| run * all / runs;
        let names: Vec<String> =
            (0..runs).map(|run| format!("requests {}-{}", first(run) + 1, first(run + 1))).collect();
        let run_of = |at: usize| (0..runs).rev().find(|&run| first(run) <= at).unwrap_or(0);
        let item = |at: usize| self.stream.item(at).unwrap_or_else(|| names[run_of(at)].as_str());
        let terms = self.terms.iter().enumerate().map(|(at, &(hit, asked))| (item(at), hit, asked));
        items::rates(cell, "pool_hit_rate", terms)
    }
}

/// Sets the metrics of a cache of `capacity` blocks that served `stream`.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub fn pool_measures(row: &mut CellRow, stream: &BlockStream, capacity: u64, counts: &Counts) {
    // Requests of a stream depend on each other through the cache: there is nothing to resample.
    let mut rate = |metric: &str, num: u64, den: u64| {
        let value = (den > 0).then(|| Estimate { value: num as f64 / den as f64, interval: None, se: None });
        row.rate(metric, value, num, den);
    };
    rate("pool_hit_rate", counts.hit_tokens, counts.asked_tokens);
    rate("pool_miss_rate", counts.missed_tokens, counts.asked_tokens);
    rate("pool_recompute_rate", counts.recomputed_tokens, counts.asked_tokens);
    rate("pool_found_rate", counts.found_blocks, counts.asked_blocks);
    row.count("pool_capacity_blocks", capacity);
    row.count("pool_working_set_blocks", stream.distinct().into());
    row.count("pool_evicted_blocks", counts.evicted_blocks);
    row.count("pool_unstored_blocks", counts.unstored_blocks);
    row.count("pool_peak_blocks", counts.peak_blocks);
    if let Some(size) = stream.block_bytes() {
        row.count("pool_peak_kv_bytes", counts.peak_blocks.saturating_mul(size.get()));
    }
}
