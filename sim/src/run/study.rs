//! One study over one trace.

use super::recording::{entropy_series, range_series};
use super::{RunError, eviction, exit, pool, serve, trees};
use crate::replay::lens_decode_rows;
use crate::results::{
    Bootstrap, CellRow, RESULTS_VERSION, Results, ResultsManifest, SourceInfo, cells_table, series_table,
    sha256_hex,
};
use crate::scenario::{Plan, Scenario};
use crate::trace::{LayerTensors, LensRow, SequenceMeta, TraceError, TraceSource};
use crate::types::{LayerIdx, ModelShape, SeqIdx};
use rayon::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a study is run. None of it changes a number.
pub struct RunOptions<'a> {
    /// Worker threads; 0 for one a core.
    pub threads: usize,
    /// The command line that results are attributed to.
    pub command: String,
    /// Called with (done, total) units of work, from any thread.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl std::fmt::Debug for RunOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOptions").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// What all cells of a study share.
pub(super) struct Context<'a> {
    pub(super) source: &'a dyn TraceSource,
    pub(super) digest: String,
    pub(super) scenario: &'a str,
    pub(super) shape: &'a ModelShape,
    pub(super) sequences: &'a [SequenceMeta],
    pub(super) bootstrap: Bootstrap,
    done: AtomicU64,
    total: u64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl Context<'_> {
    /// Counts one unit of work.
    pub(super) fn advance(&self) {
        (self.progress)(self.done.fetch_add(1, Ordering::Relaxed) + 1, self.total);
    }

    /// The key columns that all cells have.
    pub(super) fn keys(&self, study: &str) -> CellRow {
        let mut row = CellRow::default();
        row.text("scenario", self.scenario);
        row.text("source", self.source.name());
        row.set("synthetic", crate::table::Value::Bool(self.source.is_synthetic()));
        row.text("arm", "replay");
        row.text("study", study);
        row.int("sequences", i64::try_from(self.sequences.len()).unwrap_or(i64::MAX));
        row
    }
}

/// The source of a study that reads no trace: every stream of it is generated.
#[derive(Clone, Copy, Debug)]
pub struct Generated;

impl TraceSource for Generated {
    fn name(&self) -> &str {
        "generated"
    }

    fn digest(&self) -> String {
        sha256_hex(b"")
    }

    fn is_synthetic(&self) -> bool {
        true
    }

    fn shape(&self) -> &ModelShape {
        const NONE: ModelShape =
            ModelShape { layers: 1, q_heads: 1, kv_heads: 1, head_dim: 1, hidden: 1, vocab: 1 };
        &NONE
    }

    fn sequences(&self) -> &[SequenceMeta] {
        &[]
    }

    fn layer(&self, _seq: SeqIdx, _layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        Err(TraceError::MissingField { field: "q", held: Vec::new() })
    }

    fn lens(&self, _seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        Err(TraceError::MissingField { field: "lens.top1_token", held: Vec::new() })
    }
}

/// What results say about a trace; `model` and `provider` come from whoever opened it.
#[must_use]
pub fn source_info(source: &dyn TraceSource, model: &str, provider: &str) -> SourceInfo {
    let shape = source.shape();
    SourceInfo {
        name: source.name().to_owned(),
        digest: source.digest(),
        synthetic: source.is_synthetic(),
        model: model.to_owned(),
        provider: provider.to_owned(),
        sequences: u32::try_from(source.sequences().len()).unwrap_or(u32::MAX),
        tokens: source.sequences().iter().map(|meta| u64::from(meta.len)).sum(),
        layers: shape.layers,
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        vocab: shape.vocab,
    }
}

/// Runs every cell of `scenario` over `source`.
///
/// The tables depend on trace, scenario and seeds only: not on threads, nor on which cells run together.
///
/// # Errors
/// When the trace lacks a field that a cell needs or cannot be read, or a policy or the engine breaks a rule.
pub fn study(
    scenario: &Scenario,
    source: &dyn TraceSource,
    info: SourceInfo,
    options: &RunOptions<'_>,
) -> Result<Results, RunError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| RunError::Threads { threads: options.threads, detail: error.to_string() })?;
    pool.install(|| in_pool(scenario, source, info, options))
}

fn in_pool(
    scenario: &Scenario,
    source: &dyn TraceSource,
    info: SourceInfo,
    options: &RunOptions<'_>,
) -> Result<Results, RunError> {
    let all = source.sequences();
    let sequences = &all[..all.len().min(scenario.limit.map_or(usize::MAX, |limit| limit as usize))];
    if sequences.is_empty() && (scenario.eviction.is_some() || scenario.exit.is_some()) {
        return Err(RunError::NoSequences { source_name: source.name().to_owned() });
    }
    let shape = source.shape();
    let plan = scenario.plan(shape.vocab);
    let pool_plans = scenario.pool_cells();
    let arms = scenario.serve.as_ref().map_or(0, |study| study.arms.len() as u64);
    let context = Context {
        source,
        digest: source.digest(),
        scenario: &scenario.id,
        shape,
        sequences,
        bootstrap: Bootstrap::by_item(sequences.iter().map(|meta| meta.item.as_str())),
        done: AtomicU64::new(0),
        total: units(&plan, sequences, shape)
            + trees::units(&plan.trees, source, scenario.limit)
            + pool_plans.len() as u64
            + arms,
        progress: options.progress,
    };
    let (mut cells, mut series) = (Vec::new(), Vec::new());
    if let Some(study) = &scenario.eviction {
        let results = eviction::run(&context, study, &plan.eviction)?;
        let mut reserved: Vec<u32> =
            plan.eviction.iter().filter_map(|p| p.stack.as_ref().ok()).map(|s| s.value_tokens()).collect();
        reserved.sort_unstable();
        reserved.dedup();
        series.extend(range_series(&results.ranges, &reserved));
        cells.extend(results.cells);
        series.extend(results.series);
    }
    if let Some(study) = &scenario.exit {
        let lens: Vec<Vec<LensRow>> = sequences
            .par_iter()
            .map(|meta| {
                let rows = source.lens(meta.seq)?;
                context.advance();
                Ok(lens_decode_rows(rows, meta))
            })
            .collect::<Result<_, RunError>>()?;
        let flat: Vec<LensRow> = lens.iter().flatten().copied().collect();
        series.extend(entropy_series(&flat, shape.layers));
        let (rows, more) = exit::run(&context, study, &plan.exit, &lens)?;
        cells.extend(rows);
        series.extend(more);
    }
    if let Some(study) = &scenario.pool {
        cells.extend(pool::run(&context, study, &pool_plans)?);
    }
    if let Some(study) = &scenario.serve {
        cells.extend(serve::run(&context, scenario, study)?);
    }
    let mut more = Vec::new();
    if let Some(study) = &scenario.trees {
        let found = trees::run(&context, study, plan.trees, scenario.limit)?;
        cells.extend(found.cells);
        series.extend(found.series);
        more = found.tables;
    }
    Ok(Results {
        manifest: ResultsManifest {
            version: RESULTS_VERSION,
            tool: concat!("kvlab ", env!("CARGO_PKG_VERSION")).to_owned(),
            scenario: scenario.id.clone(),
            why: scenario.why.clone(),
            scenario_digest: sha256_hex(scenario.text.as_bytes()),
            scenario_text: scenario.text.clone(),
            // What was read, not what there is.
            sources: vec![SourceInfo {
                sequences: u32::try_from(sequences.len()).unwrap_or(u32::MAX),
                tokens: sequences.iter().map(|meta| u64::from(meta.len)).sum(),
                ..info
            }],
            command: options.command.clone(),
        },
        cells: cells_table(&cells)?,
        series: series_table(&series)?,
        more,
    })
}

/// Units of work: layers of sequences for eviction, sequences for exits.
fn units(plan: &Plan, sequences: &[SequenceMeta], shape: &ModelShape) -> u64 {
    let sequences = sequences.len() as u64;
    let eviction = if plan.eviction.is_empty() { 0 } else { sequences * u64::from(shape.layers) };
    eviction + if plan.exit.is_empty() { 0 } else { sequences }
}
