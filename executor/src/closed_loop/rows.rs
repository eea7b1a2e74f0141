//! From runs to the tables: rows of `arm = real`.

use kvlab_sim::{
    results::{
        Bootstrap, CellRow, RESULTS_VERSION, Results, ResultsManifest, SourceInfo, cell_id, cells_table,
        series_table, sha256_hex,
    },
    run::{never_triggered, plan_columns},
    scenario::Scenario,
    table::Value,
};

use super::{
    Footprint, ForcedRun, FreeRun,
    free::FinishReason,
    study::{CellRun, ExecPlan, Executed, Measured},
};
use crate::{error::ExecutorError, items::ItemSet, model::Model, record};

/// The results of an execution.
pub(super) fn results(
    model: &Model,
    set: &ItemSet,
    plan: &ExecPlan<'_>,
    executed: &Executed<'_>,
) -> Result<Results, ExecutorError> {
    let (source, rows) = real_rows(model, set, plan, executed)?;
    Ok(Results {
        manifest: manifest(plan, source),
        cells: cells_table(&rows)?,
        series: series_table(&[])?,
        more: Vec::new(),
    })
}

/// What is known about the run beside its numbers.
pub(crate) fn manifest(plan: &ExecPlan<'_>, source: SourceInfo) -> ResultsManifest {
    manifest_of(plan.scenario, &plan.command, source)
}

/// The same of a scenario that was run by `command`.
pub(crate) fn manifest_of(scenario: &Scenario, command: &str, source: SourceInfo) -> ResultsManifest {
    ResultsManifest {
        version: RESULTS_VERSION,
        tool: concat!("kvlab ", env!("CARGO_PKG_VERSION")).to_owned(),
        scenario: scenario.id.clone(),
        why: scenario.why.clone(),
        scenario_digest: sha256_hex(scenario.text.as_bytes()),
        scenario_text: scenario.text.clone(),
        sources: vec![source],
        command: command.to_owned(),
    }
}

/// The key columns that all rows about runs have.
pub(crate) fn run_keys(scenario: &Scenario, source: &SourceInfo, arm: &str, study: &str) -> CellRow {
    let mut row = CellRow::default();
    row.text("scenario", scenario.id.clone());
    row.text("source", source.name.clone());
    row.set("synthetic", Value::Bool(source.synthetic));
    row.text("arm", arm);
    row.text("study", study);
    row.int("sequences", source.sequences);
    row
}

/// What was run, and a row for each cell.
pub(crate) fn real_rows(
    model: &Model,
    set: &ItemSet,
    plan: &ExecPlan<'_>,
    executed: &Executed<'_>,
) -> Result<(SourceInfo, Vec<CellRow>), ExecutorError> {
    let source = source(model, set, executed)?;
    let bootstrap = Bootstrap::by_item(executed.items.iter().map(|item| item.item.as_str()));
    let context = Context { model, source: &source, plan, executed, bootstrap };
    let rows = executed.cells.iter().map(|cell| context.row(cell)).collect::<Result<_, ExecutorError>>()?;
    Ok((source, rows))
}

/// What results say about the model and the items; the digest covers weights, graphs, tokenizer, prompts and answers.
fn source(model: &Model, set: &ItemSet, executed: &Executed<'_>) -> Result<SourceInfo, ExecutorError> {
    let shape = model.shape()?;
    let of_items: Vec<serde_json::Value> = executed
        .items
        .iter()
        .zip(&executed.prompts)
        .map(|(item, prompt)| serde_json::json!([item.item, prompt, item.stops, item.expected_answer]))
        .collect();
    let digest = serde_json::json!({ "model": model.identity()?, "items": of_items }).to_string();
    let tokens = |(prompt, full): (&Vec<u32>, &Measured)| match full {
        Measured::Free { run, .. } => (prompt.len() + run.tokens.len()) as u64,
        Measured::Forced(_) => prompt.len() as u64,
    };
    Ok(SourceInfo {
        name: set.name.clone(),
        digest: sha256_hex(digest.as_bytes()),
        synthetic: false,
        model: model.name().to_owned(),
        provider: record::runtime_info(model.runtime()).provider,
        sequences: u32::try_from(executed.items.len()).unwrap_or(u32::MAX),
        tokens: executed.prompts.iter().zip(&executed.full).map(tokens).sum(),
        layers: shape.layers,
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        vocab: shape.vocab,
    })
}

/// What all rows share.
struct Context<'a> {
    model: &'a Model,
    source: &'a SourceInfo,
    plan: &'a ExecPlan<'a>,
    executed: &'a Executed<'a>,
    bootstrap: Bootstrap,
}

impl Context<'_> {
    fn row(&self, cell: &CellRun<'_>) -> Result<CellRow, ExecutorError> {
        let mut row = self.keys(cell);
        if let Err(error) = &cell.plan.stack {
            row.text("status", "skipped");
            row.text("error", error.to_string());
            return Ok(row);
        }
        if let Some(failure) = &cell.failure {
            row.text("status", if cell.is_skipped { "skipped" } else { "failed" });
            row.text("error", failure.clone());
            return Ok(row);
        }
        row.text("status", "ok");
        row.text("log_digest", log_digest(&cell.measured));
        self.footprints(&mut row, cell)?;
        self.free(&mut row, &cell.measured);
        self.forced(&mut row, &cell.measured);
        Ok(row)
    }

    fn keys(&self, cell: &CellRun<'_>) -> CellRow {
        let mut row = run_keys(self.plan.scenario, self.source, "real", "eviction");
        let params = cell.plan.stack.as_ref().map_or(serde_json::Value::Null, |stack| stack.params());
        row.text(
            "cell",
            cell_id(&serde_json::json!({
                "source": self.source.digest,
                "arm": "real",
                "mode": self.plan.mode.word(),
                "max_new_tokens": self.plan.max_new_tokens,
                "study": "eviction",
                "policy": cell.plan.label,
                "params": params,
                "budget": cell.plan.budget,
                "seed": cell.plan.seed,
                "bytes_per_scalar": self.executed.study.bytes_per_scalar,
            })),
        );
        plan_columns(cell.plan, &mut row);
        row
    }

    fn footprints(&self, row: &mut CellRow, cell: &CellRun<'_>) -> Result<(), ExecutorError> {
        let footprints: Vec<&Footprint> = cell.measured.iter().map(footprint).collect();
        let evictions = footprints.iter().map(|footprint| footprint.eviction_count()).sum();
        row.count("evictions", evictions);
        let width = u64::from(self.executed.study.bytes_per_scalar);
        let entry = self.model.shape()?.kv_bytes_per_entry(width).get();
        let peak = footprints.iter().map(|footprint| footprint.peak_entries).max().unwrap_or(0);
        row.count("peak_kv_bytes", peak * entry);
        let stored = footprints.iter().map(|footprint| footprint.peak_stored_bits).max().unwrap_or(0);
        row.count("peak_stored_kv_bytes", stored.div_ceil(8));
        let shape = self.model.shape()?;
        let heads = f64::from(shape.layers) * f64::from(shape.q_heads);
        let by_step = |of: &dyn Fn(&Footprint) -> f64| -> Vec<Option<f64>> {
            let share = |footprint: &&Footprint| {
                (footprint.steps > 0).then(|| of(footprint) / f64::from(footprint.steps))
            };
            footprints.iter().map(share).collect()
        };
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        let reads = [
            ("attended_tokens", by_step(&|footprint| footprint.attended as f64 / heads)),
            ("read_kv_bytes_per_step", by_step(&|footprint| footprint.read_bits as f64 / 8.0)),
        ];
        for (metric, values) in reads {
            row.mean(metric, self.bootstrap.mean(&values), values.iter().flatten().count());
        }
        let ratios: Vec<Option<f64>> = footprints.iter().map(|footprint| footprint.mean_keep_ratio).collect();
        row.mean("mean_keep_ratio", self.bootstrap.mean(&ratios), ratios.iter().flatten().count());
        if let (0, Ok(stack)) = (evictions, &cell.plan.stack)
            && stack.can_evict()
        {
            let longest = footprints.iter().map(|footprint| footprint.seen).max().unwrap_or(0);
            row.text("lint", never_triggered(cell.plan.budget, stack.period(), longest));
        }
        Ok(())
    }

    fn free(&self, row: &mut CellRow, measured: &[Measured]) {
        let runs: Vec<(&FreeRun, Option<bool>)> = measured.iter().filter_map(free_run).collect();
        if runs.is_empty() {
            return;
        }
        let correct: Vec<Option<f64>> = runs.iter().map(|(_, is_correct)| is_correct.map(unit)).collect();
        let graded = correct.iter().flatten().count();
        if graded > 0 {
            let right = runs.iter().filter(|(_, is_correct)| *is_correct == Some(true)).count();
            row.rate("accuracy", self.bootstrap.mean(&correct), right as u64, graded as u64);
            let full = self.executed.full.iter().map(|full| free_run(full)?.1.map(unit));
            let gains: Vec<Option<f64>> =
                correct.iter().zip(full).map(|(own, full)| Some((*own)? - full?)).collect();
            row.mean("accuracy_vs_full", self.bootstrap.mean(&gains), gains.iter().flatten().count());
        }
        let lengths: Vec<Option<f64>> = runs.iter().map(|(run, _)| Some(real(run.tokens.len()))).collect();
        row.mean("generated_tokens", self.bootstrap.mean(&lengths), lengths.len());
        let cut: Vec<bool> = runs.iter().map(|(run, _)| run.finish == FinishReason::Length).collect();
        let shares: Vec<Option<f64>> = cut.iter().map(|is_cut| Some(unit(*is_cut))).collect();
        let count = cut.iter().filter(|is_cut| **is_cut).count();
        row.rate("truncated_rate", self.bootstrap.mean(&shares), count as u64, cut.len() as u64);
    }

    fn forced(&self, row: &mut CellRow, measured: &[Measured]) {
        let runs: Vec<&ForcedRun> = measured.iter().filter_map(forced_run).collect();
        if runs.is_empty() {
            return;
        }
        let means: Vec<Option<f64>> = runs
            .iter()
            .map(|run| {
                let steps = run.divergences.len();
                (steps > 0).then(|| run.divergences.iter().sum::<f64>() / real(steps))
            })
            .collect();
        row.mean("next_token_kl", self.bootstrap.mean(&means), means.iter().flatten().count());
        let (num, den) = runs
            .iter()
            .fold((0, 0), |(num, den), run| (num + run.agreements, den + run.divergences.len() as u64));
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        let terms: Vec<(f64, f64)> =
            runs.iter().map(|run| (run.agreements as f64, real(run.divergences.len()))).collect();
        row.rate("top1_agreement", self.bootstrap.ratio(&terms), num, den);
    }
}

fn footprint(measured: &Measured) -> &Footprint {
    match measured {
        Measured::Free { run, .. } => &run.footprint,
        Measured::Forced(run) => &run.footprint,
    }
}

fn free_run(measured: &Measured) -> Option<(&FreeRun, Option<bool>)> {
    match measured {
        Measured::Free { run, is_correct } => Some((run, *is_correct)),
        Measured::Forced(_) => None,
    }
}

fn forced_run(measured: &Measured) -> Option<&ForcedRun> {
    match measured {
        Measured::Free { .. } => None,
        Measured::Forced(run) => Some(run),
    }
}

fn unit(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn real(count: usize) -> f64 {
    count as f64
}

/// SHA-256 over tokens or divergences and kept sets of every item, first 16 hex digits.
fn log_digest(measured: &[Measured]) -> String {
    let mut bytes = Vec::new();
    for measured in measured {
        match measured {
            Measured::Free { run, .. } => run.tokens.iter().for_each(|t| bytes.extend(t.to_le_bytes())),
            Measured::Forced(run) => {
                run.divergences.iter().for_each(|kl| bytes.extend(kl.to_bits().to_le_bytes()));
            }
        }
        for eviction in footprint(measured).evictions.iter().flatten() {
            bytes.extend(eviction.seen.to_le_bytes());
            eviction.heads.iter().for_each(|set| bytes.extend(set.digest));
        }
    }
    sha256_hex(&bytes)[..16].to_owned()
}
