//! The block-cache half of a study: every policy and capacity over one stream.

use super::RunError;
use super::study::Context;
use crate::pool::{BlockStream, Counts, Limits, from_trace, replay_with, synth};
use crate::results::{CellRow, Estimate, cell_id};
use crate::scenario::{PoolPlan, PoolStudy, StreamChoice};
use crate::table::Value;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

/// Rows of the cells, in their order.
pub(super) fn run(
    context: &Context<'_>,
    study: &PoolStudy,
    plans: &[PoolPlan<'_>],
) -> Result<Vec<CellRow>, RunError> {
    let mut streams: Vec<(Option<u64>, BlockStream)> = Vec::new();
    for plan in plans {
        if !streams.iter().any(|(seed, _)| *seed == plan.seed) {
            streams.push((plan.seed, stream(context, study, plan.seed)?));
        }
    }
    plans
        .par_iter()
        .map(|plan| {
            let stream = streams.iter().find(|(seed, _)| *seed == plan.seed).map(|(_, stream)| stream);
            let row =
                stream.map_or_else(|| Ok(CellRow::default()), |stream| cell(context, study, plan, stream));
            context.advance();
            row
        })
        .collect()
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
) -> Result<CellRow, RunError> {
    let policy = plan.choice.build()?;
    let mut row = context.keys("pool");
    row.text("source", stream.name());
    row.set("synthetic", Value::Bool(stream.is_synthetic()));
    row.int("sequences", 0);
    row.text("policy", plan.choice.label.clone());
    if let Some(seed) = plan.seed {
        row.int("seed", i64::try_from(seed).unwrap_or(i64::MAX));
    }
    let origin = match &study.stream {
        StreamChoice::Trace => serde_json::json!(context.digest),
        StreamChoice::Generated { id, params } => serde_json::json!({ "id": id, "params": params }),
    };
    let params = serde_json::json!({
        "policy": policy.params(),
        "capacity": plan.capacity.to_string(),
        "block_tokens": stream.block_tokens(),
        "in_flight": study.in_flight,
    });
    let key = serde_json::json!({
        "source": origin, "study": "pool", "kind": policy.spec().id, "params": params, "seed": plan.seed,
    });
    row.text("cell", cell_id(&key));
    row.text("params", params.to_string());
    let capacity_blocks = match plan.capacity.blocks(stream) {
        Ok(blocks) => blocks,
        Err(error) => {
            row.text("status", "skipped");
            row.text("error", error.to_string());
            return Ok(row);
        }
    };
    let mut log = Sha256::new();
    let mut lines = Vec::with_capacity(1 << 12);
    let limits = Limits { capacity_blocks, in_flight: study.in_flight };
    let counts = replay_with(stream, policy.as_ref(), limits, |request, block| {
        lines.extend_from_slice(&request.to_le_bytes());
        lines.extend_from_slice(&block.to_le_bytes());
        if lines.len() >= 1 << 12 {
            log.update(&lines);
            lines.clear();
        }
    });
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
    metrics(&mut row, stream, capacity_blocks, &counts);
    Ok(row)
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn metrics(row: &mut CellRow, stream: &BlockStream, capacity: u64, counts: &Counts) {
    // Requests of a stream depend on each other through the cache: there is nothing to resample.
    let mut rate = |metric: &str, num: u64, den: u64| {
        let value = (den > 0).then(|| Estimate { value: num as f64 / den as f64, interval: None });
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
