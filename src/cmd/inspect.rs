//! `kvlab inspect`: what a trace holds.

use super::chrome;
use crate::exit::{CliError, Done};
use crate::output::{self, Format};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::{Column, Table};
use kvlab_sim::trace::{
    FieldStatistics, Manifest, Summary, Trace, TraceSource, leftovers, statistics, summary,
};
use std::path::{Path, PathBuf};

/// Show what a trace holds: model, runtime, sequences, size by field, which studies it can serve and what is missing for the others.
///
/// With `--chrome FILE` the trace is replayed through one eviction cell, or the problems of a scenario are served by one of its arms, and the timeline
/// (requests, prompts, decode steps, verification, who is pushed out, evictions, memory) is written as the JSON that Perfetto (ui.perfetto.dev) and
/// chrome://tracing open. Times in it are virtual.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kvlab inspect my-trace --field lens.entropy_nats\n  kvlab inspect my-trace --chrome timeline.json --policy snapkv --budget 64\n  \
kvlab inspect my-trees --scenario scenarios/serving/recorded.yaml --chrome rksc.json --arm rksc"
)]
pub(crate) struct Args {
    /// Trace folder; not needed for the timeline of generated problems
    #[arg(required_unless_present = "scenario")]
    trace: Option<PathBuf>,
    /// Print manifest, sizes and studies as JSON; the numbers about a field have --format json
    #[arg(long, conflicts_with_all = ["field", "chrome"])]
    json: bool,
    /// Print numbers about one field, by layer where it has layers
    #[arg(long, value_name = "NAME", conflicts_with = "chrome")]
    field: Option<String>,
    /// How the numbers about a field are printed
    #[arg(long, value_enum, default_value_t, requires = "field")]
    format: Format,
    /// Write the timeline of a replay to this file
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
    /// With --chrome: a scenario whose first eviction cell that is not the full cache is replayed, or one of whose serving arms is served
    #[arg(long, value_name = "FILE", requires = "chrome", conflicts_with_all = ["policy", "budget"])]
    scenario: Option<PathBuf>,
    /// With --scenario: the serving arm [default: the first one, where the scenario has no eviction study]
    #[arg(long, value_name = "LABEL", requires = "scenario")]
    arm: Option<String>,
    /// With --chrome: the eviction policy (a composition)
    #[arg(long, value_name = "ID", requires = "chrome", default_value = "streaming-llm")]
    policy: String,
    /// With --chrome: its budget in tokens
    #[arg(long, value_name = "TOKENS", requires = "chrome", default_value_t = 64)]
    budget: u32,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let told = inspected(args);
    match &args.trace {
        Some(trace) => told.map_err(|error| CliError::in_trace(trace, error)),
        None => told,
    }
}

fn inspected(args: &Args) -> Result<Done, CliError> {
    if let Some(file) = &args.chrome {
        return chrome(args, file);
    }
    let folder = trace_folder(args)?;
    let trace = Trace::open(folder)?;
    if let Some(field) = &args.field {
        output::table(
            &numbers(&statistics(&trace, field)?)?,
            &["layer", "count", "absent", "min", "mean", "max"],
            args.format,
        )?;
        return Ok(Done::All);
    }
    let summary = summary(&trace)?;
    if args.json {
        output::json(&serde_json::json!({
            "manifest": trace.manifest(), "digest": trace.digest(), "bytes": summary.bytes,
            "fields": summary.fields, "studies": summary.studies,
        }))?;
        return Ok(Done::All);
    }
    output::print(&text(&trace, &summary, &leftovers(folder)))?;
    Ok(Done::All)
}

fn text(trace: &Trace, summary: &Summary, leftovers: &[(PathBuf, &str)]) -> String {
    let (manifest, shape) = (trace.manifest(), trace.shape());
    let mut text = format!(
        "model     {} ({}), {} layers, {} query / {} KV heads of {} channels, hidden {}, vocabulary {}\n",
        manifest.model.name,
        manifest.model.family,
        shape.layers,
        shape.q_heads,
        shape.kv_heads,
        shape.head_dim,
        shape.hidden,
        shape.vocab,
    );
    match (&manifest.synthetic, &manifest.runtime) {
        (Some(synthetic), _) => {
            text += &format!("synthetic {} (seed {})\n", synthetic.generator, synthetic.seed);
        }
        (None, Some(run)) => {
            text += &format!(
                "runtime   {} {}, {}, {} threads\n",
                run.library, run.version, run.provider, run.threads
            );
        }
        (None, None) => {}
    }
    let decoding = &manifest.decoding;
    text += &format!("decoding  {}, at most {} new tokens", decoding.mode, decoding.max_new_tokens);
    text +=
        &decoding.batch.map_or_else(String::new, |batch| format!(", up to {batch} sequences in one pass"));
    text.push('\n');
    if let Some(protocol) = &decoding.protocol {
        text += &format!("protocol  {protocol}\n");
    }
    text += &format!("format    {}\ndigest    {}\n", manifest.format, trace.digest());
    for from in &manifest.derived_from {
        text += &format!("made from {} by `{}`\n", from.digest, from.how);
    }
    text += &format!(
        "size      {:.2} MB in {} shards\n",
        output::megabytes(summary.bytes),
        manifest.shards.len()
    );
    for field in &summary.fields {
        text += &format!(
            "  {:>10.3} MB  {:<40} {:<5} [{}]\n",
            output::megabytes(field.bytes),
            field.name,
            field.dtype,
            field.axes.join(", ")
        );
    }
    if manifest.requests.is_none() {
        text += &format!("lens      {}\ntimes     {}\n", lens(manifest), times(manifest));
    }
    for (path, what) in leftovers {
        text += &format!("beside    {}: {what}\n", path.display());
    }
    text += "studies\n";
    for study in &summary.studies {
        let state = if study.missing.is_empty() {
            "yes".to_owned()
        } else {
            format!("no, it has no {}", study.missing.join(", "))
        };
        text += &format!("  {:<54} {state}\n", study.study);
    }
    for sequence in &manifest.sequences {
        text += &format!(
            "sequence  {} {}: {} prompt + {} generated tokens, {}\n",
            sequence.seq,
            sequence.item,
            sequence.prompt_len,
            sequence.len - sequence.prompt_len,
            sequence.finish_reason
        );
    }
    if let Some(branches) = &manifest.branches {
        let count: u64 = branches.problems.iter().map(|info| u64::from(info.branches)).sum();
        text +=
            &format!("problems  {} with {count} branches, their roots included\n", branches.problems.len());
    }
    if let Some(requests) = &manifest.requests {
        text += &format!(
            "requests  {} with {} blocks of {} tokens\n",
            requests.count, requests.blocks, requests.block_tokens
        );
    }
    text
}

/// In which forms the lens looked.
fn lens(manifest: &Manifest) -> &'static str {
    let has = |name: &str| manifest.fields.iter().any(|field| field.name == name);
    match (has("lens.entropy_nats"), has("lens.raw_entropy_nats")) {
        (true, true) => "with the final norm and without it",
        (true, false) => "with the final norm only (`--lens normed`)",
        (false, _) => "none over sequences",
    }
}

/// Whether times of single passes were measured.
fn times(manifest: &Manifest) -> String {
    match &manifest.times {
        Some(times) => format!("{} measured", times.rows),
        None => "none (`kvlab record --times` measures them)".to_owned(),
    }
}

fn numbers(rows: &[FieldStatistics]) -> Result<Table, CliError> {
    let mut table = Table::new();
    let count = |of: fn(&FieldStatistics) -> u64| {
        Column::Int(rows.iter().map(|row| i64::try_from(of(row)).ok()).collect())
    };
    table.push("layer", Column::Int(rows.iter().map(|row| row.layer.map(i64::from)).collect()))?;
    table.push("count", count(|row| row.count))?;
    table.push("absent", count(|row| row.absent))?;
    table.push("min", Column::Real(rows.iter().map(|row| row.min).collect()))?;
    table.push("mean", Column::Real(rows.iter().map(|row| row.mean).collect()))?;
    table.push("max", Column::Real(rows.iter().map(|row| row.max).collect()))?;
    Ok(table)
}

/// A timeline: of the first eviction cell, or of a serving arm where one is named or nothing else is there.
fn chrome(args: &Args, file: &Path) -> Result<Done, CliError> {
    if file == Path::new("-") {
        let reason = "--chrome writes a file: `-` is found, a name is accepted".to_owned();
        return Err(CliError::Invalid { path: file.to_owned(), reason });
    }
    let scenario = match &args.scenario {
        Some(path) => Scenario::load(path)?,
        None => {
            let policy = serde_json::Value::from(args.policy.as_str());
            let text = format!(
                "id: inspect\nwhy: What does this policy do over time?\neviction:\n  budgets: [{}]\n  policies:\n    - use: {policy}\n",
                args.budget
            );
            Scenario::parse(&text, "the flags of `kvlab inspect`")?
        }
    };
    let serves = args.arm.is_some() || (scenario.serve.is_some() && scenario.eviction.is_none());
    let needs_trace =
        scenario.serve.as_ref().is_none_or(|study| study.is_recorded() || study.takes_times_of_trace());
    if let (true, false, Some(trace)) = (serves, needs_trace, &args.trace) {
        let reason = format!("its serving study reads no trace: leave out {}", trace.display());
        return Err(CliError::Invalid { path: args.scenario.clone().unwrap_or_default(), reason });
    }
    if serves && !needs_trace {
        return chrome::of_serving(file, &scenario, None, args.arm.as_deref());
    }
    let folder = trace_folder(args)?;
    let trace = Trace::open(folder)?;
    if serves {
        return chrome::of_serving(file, &scenario, Some((&trace, folder)), args.arm.as_deref());
    }
    chrome::of_eviction(file, &scenario, &trace, folder)
}

fn trace_folder(args: &Args) -> Result<&Path, CliError> {
    args.trace.as_deref().ok_or_else(|| CliError::Invalid {
        path: args.scenario.clone().unwrap_or_default(),
        reason: "it is about a trace: give the trace's folder too, `kvlab inspect TRACE ...`".to_owned(),
    })
}
