//! What `replay`, `sweep` and `demo` share: a scenario over a trace, into a results folder.

use super::folder;
use crate::exit::{CliError, Done};
use crate::output::news;
use crate::progress::Bars;
use kvlab_sim::fidelity::{Predictor, predict_cells};
use kvlab_sim::results::{self, Formats, Results, SourceInfo};
use kvlab_sim::run::{RunOptions, Study, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::Trace;
use std::path::Path;

/// Says how well measured times were fitted, where a cost model is.
pub(crate) fn tell_fit(study: &Study<'_>) {
    let Some(params) = study.cost_params() else { return };
    let percent = |key: &str| params[key].as_f64().map(|error| format!("{:.1} %", 100.0 * error));
    if let (Some(mean), Some(most)) = (percent("mean_relative_error"), percent("max_relative_error")) {
        let count = &params["measurements"];
        news(&format!(
            "simulated times are fitted to {count} measured ones: off by {mean} in the mean, {most} at most"
        ));
    }
}

/// The largest seed of a scenario: beyond, numbers of tables are not told from their neighbours.
pub(crate) const MOST_SEED: u64 = 1 << 53;

/// A number of worker threads that a machine may have.
pub(crate) fn threads(given: &str) -> Result<usize, String> {
    match given.parse() {
        Ok(threads @ 0..=1024) => Ok(threads),
        _ => Err("expected 0 (one a core) to 1024".to_owned()),
    }
}

/// Columns that a person wants to see first.
pub(crate) const SHOWN: &[&str] = &[
    "study",
    "policy",
    "lens",
    "budget_tokens",
    "tau",
    "tau_conf",
    "margin",
    "theta",
    "epsilon",
    "seed",
    "status",
    "problems",
    "drawn",
    "predicted_accuracy",
    "predicted_accuracy_lo",
    "predicted_accuracy_hi",
    "tree_accuracy",
    "tree_accuracy_lo",
    "tree_accuracy_hi",
    "tree_accuracy_vs_baseline",
    "tree_accuracy_vs_baseline_lo",
    "tree_accuracy_vs_baseline_hi",
    "tree_accuracy_vs_baseline_p",
    "full_pipeline_accuracy",
    "random_skip_accuracy",
    "harm_rate",
    "share_rate",
    "break_even_share_rate",
    "prefill_work_rate",
    "verify_skip_rate",
    "verify_work_rate",
    "verdict_flip_rate",
    "evictions",
    "mean_keep_ratio",
    "attn_mass_recall",
    "attn_mass_recall_lo",
    "attn_mass_recall_hi",
    "attn_mass_recall_vs_baseline",
    "attn_mass_recall_vs_baseline_lo",
    "attn_mass_recall_vs_baseline_hi",
    "attn_mass_recall_vs_baseline_p",
    "attn_output_error",
    "peak_kv_bytes",
    "pool_capacity_blocks",
    "pool_hit_rate",
    "pool_hit_rate_num",
    "pool_hit_rate_den",
    "pool_miss_rate_num",
    "pool_recompute_rate_num",
    "pool_evicted_blocks",
    "serve_latency_ms",
    "serve_speedup",
    "serve_speedup_lo",
    "serve_speedup_hi",
    "serve_tokens_per_second",
    "serve_generated_tokens",
    "serve_recomputed_tokens",
    "serve_peak_kv_bytes",
    "skip_rate",
    "exit_agreement",
    "mean_layers_run",
    "log_digest",
    "lint",
    "error",
];

/// Runs `scenario` over `trace` with a progress bar.
pub(crate) fn run(
    scenario: &Scenario,
    trace: &Trace,
    threads: usize,
    command: String,
    bars: &Bars,
) -> Result<Results, CliError> {
    bars.piece("replay", |progress| {
        Ok(study(scenario, trace, info(trace), &RunOptions { threads, command, progress })?)
    })
}

/// What results say about `trace`.
pub(crate) fn info(trace: &Trace) -> SourceInfo {
    let manifest = trace.manifest();
    let provider = manifest.runtime.as_ref().map_or("", |runtime| runtime.provider.as_str());
    source_info(trace, &manifest.model.name, provider)
}

/// The results with `predicted_accuracy` by the predictor in the file `predictor`, where one is given.
pub(crate) fn with_predictions(results: Results, predictor: Option<&Path>) -> Result<Results, CliError> {
    let Some(path) = predictor else { return Ok(results) };
    let invalid = |reason: String| CliError::Invalid { path: path.to_owned(), reason };
    let text =
        std::fs::read_to_string(path).map_err(|source| CliError::Io { path: path.to_owned(), source })?;
    let predictor = Predictor::from_json(&text).map_err(|error| invalid(error.to_string()))?;
    if predictor.outcome != "accuracy" {
        let found = predictor.outcome;
        return Err(invalid(format!("it predicts {found}: fit one without --forced-only, for accuracy")));
    }
    for source in &results.manifest.sources {
        if source.model != predictor.model_name() {
            let (of, trace) = (predictor.model_name(), &source.model);
            return Err(invalid(format!("it was fitted on the model {of}, and the trace is of {trace}")));
        }
    }
    let cells = predict_cells(&results.cells, &predictor)?;
    Ok(Results { cells, ..results })
}

/// Files beside the Parquet tables.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct TableArgs {
    /// Also write the tables as CSV
    #[arg(long, requires = "out")]
    csv: bool,
    /// Also write the tables as JSON Lines, one object a row
    #[arg(long, requires = "out")]
    jsonl: bool,
}

impl TableArgs {
    /// CSV.
    pub(crate) const CSV: Self = Self { csv: true, jsonl: false };

    /// Whether there are any.
    pub(crate) fn is_any(self) -> bool {
        self.csv || self.jsonl
    }
}

/// Writes the tables and says where they are.
pub(crate) fn write(results: &Results, out: &Path, export: TableArgs) -> Result<(), CliError> {
    folder::check(out)?;
    results::write(out, results, Formats { csv: export.csv, jsonl: export.jsonl })?;
    news(&format!("{} cells written to {}", results.cells.rows(), out.display()));
    Ok(())
}

/// Whether every cell is there; says which are not.
pub(crate) fn outcome(results: &Results) -> Done {
    let generated = (0..results.cells.rows())
        .filter(|&row| results.cells.value("synthetic", row) == Value::Bool(true))
        .count();
    if generated > 0 {
        news(&format!(
            "synthetic: {generated} of {} cells are of generated data, not of a model",
            results.cells.rows()
        ));
    }
    let mut missing = 0;
    for row in 0..results.cells.rows() {
        if results.cells.value("status", row) != Value::Text("ok".to_owned()) {
            missing += 1;
            let word = |column: &str| results.cells.value(column, row);
            if let (Value::Text(status), Value::Text(policy), Value::Text(error)) =
                (word("status"), word("policy"), word("error"))
            {
                news(&format!("{status}: {policy}: {error}"));
            }
        }
    }
    let refusing = refusing(results);
    if missing > 0 {
        news(&format!("{missing} of {} cells were skipped or failed", results.cells.rows()));
    }
    if missing + refusing == 0 { Done::All } else { Done::Partly }
}

/// Serving cells that are there although some of their problems were refused; says which.
fn refusing(results: &Results) -> usize {
    let mut refusing = 0;
    for row in 0..results.cells.rows() {
        let is_ok = results.cells.value("status", row) == Value::Text("ok".to_owned());
        let refused = match results.cells.value("serve_refused", row) {
            Value::Real(refused) if is_ok && refused > 0.0 => refused,
            _ => continue,
        };
        refusing += 1;
        if let Value::Text(arm) = results.cells.value("policy", row) {
            news(&format!(
                "refused: {arm}: {refused} problems do not fit into the blocks; `lint` has the numbers"
            ));
        }
    }
    refusing
}

/// Flags that change where results go or how fast they come, and no number.
const SILENT: &[&str] = &[
    "--threads",
    "--out",
    "--format",
    "--csv",
    "--jsonl",
    "--check",
    "--shard",
    "--batch",
    "--fresh",
    "--tables",
];

/// The command line as it was given, with the program's name only and without [`SILENT`] flags: equal results are
/// attributed to equal commands.
pub(crate) fn command_line() -> String {
    let mut words = vec!["kvlab".to_owned()];
    // A name that is no text is no reason to stop: it is shown as well as it can be.
    let mut args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    while let Some(arg) = args.next() {
        let name = arg.split('=').next().unwrap_or(&arg);
        if SILENT.contains(&name) {
            let is_switch = matches!(name, "--csv" | "--jsonl" | "--check" | "--fresh");
            if !is_switch && !arg.contains('=') {
                args.next();
            }
            continue;
        }
        words.push(quoted(&arg));
    }
    words.join(" ")
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
