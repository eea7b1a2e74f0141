//! `kvlab pareto`: the settings that no other setting beats.

use crate::exit::{CliError, Done};
use crate::output::{self, Format, news};
use kvlab_sim::metrics::metric;
use kvlab_sim::results::{KNEE, ParetoAxis, ParetoError, Results, pareto, read};
use kvlab_sim::scenario::Direction;
use kvlab_sim::table::{Table, Value};
use std::path::PathBuf;

/// Show the settings of one or several results that no other beats in two or three columns, the knee among them, and what each lacks to the bound.
///
/// A column is a metric, whose direction is known, or any other column of numbers in `cells` with its direction: min:budget_tokens. Cells that differ in
/// the seed only are one setting, with the means over seeds: a front of single seeds would be one of lucky ones. A front is a choice among what was
/// measured, without any allowance for chance, and a folder that is named twice counts once; `kvlab tune` gives one with a guarantee.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kvlab pareto study --x peak_kv_bytes --y attn_mass_recall\n  \
kvlab pareto pool --x min:pool_capacity_blocks --y pool_hit_rate --all\n  \
kvlab pareto trees --x verify_work_rate --y prefill_work_rate --z tree_accuracy --json")]
pub(crate) struct Args {
    /// Folders of results
    #[arg(required = true, value_name = "RESULTS")]
    folders: Vec<PathBuf>,
    /// First column: COLUMN, max:COLUMN or min:COLUMN
    #[arg(long, value_name = "COLUMN")]
    x: String,
    /// Second column
    #[arg(long, value_name = "COLUMN")]
    y: String,
    /// Third column
    #[arg(long, value_name = "COLUMN")]
    z: Option<String>,
    /// Label of the policy that regret is counted from, at the same budget or capacity; bounds are on no front [default: the first of oracle, belady,
    /// oracle-block and oracle-top-k]
    #[arg(long, value_name = "LABEL")]
    bound: Option<String>,
    /// Show all settings, not only those on the front
    #[arg(long)]
    all: bool,
    /// How the settings are printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Print the settings with directions, sources and the definition of the knee as JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let results: Vec<Results> =
        args.folders.iter().map(|folder| Ok(read(folder)?)).collect::<Result<_, CliError>>()?;
    let names: Vec<String> = args.folders.iter().map(|folder| folder.display().to_string()).collect();
    let tables: Vec<(&str, &Table)> =
        names.iter().map(String::as_str).zip(results.iter().map(|results| &results.cells)).collect();
    let refused =
        |error: ParetoError| CliError::Invalid { path: args.folders[0].clone(), reason: error.to_string() };
    let given = [("--x", Some(&args.x)), ("--y", Some(&args.y)), ("--z", args.z.as_ref())];
    let axes: Vec<ParetoAxis> = given
        .iter()
        .filter_map(|(axis, given)| given.map(|given| ParetoAxis::of(given, axis, &tables)))
        .collect::<Result<_, _>>()
        .map_err(refused)?;
    for (at, axis) in axes.iter().enumerate() {
        if axes[..at].iter().any(|other| other.column == axis.column) {
            let reason = format!("{} is `{}` again; accepted: another column", given[at].0, axis.column);
            return Err(CliError::Invalid { path: args.folders[0].clone(), reason });
        }
    }
    let table = pareto(&tables, &axes, args.bound.as_deref()).map_err(refused)?;
    let has_bound = table.names().iter().any(|name| name.starts_with("regret_"));
    if let (Some(bound), false) = (&args.bound, has_bound) {
        let reason = format!("--bound: no finished row has the policy `{bound}`");
        return Err(CliError::Invalid { path: args.folders[0].clone(), reason });
    }
    let is_on_front = |row: usize| table.value("front", row) == Value::Bool(true);
    let on_front = (0..table.rows()).filter(|&row| is_on_front(row)).count();
    let rows: Vec<usize> = (0..table.rows()).filter(|&row| args.all || is_on_front(row)).collect();
    let shown = table.take(&rows);
    let columns: Vec<&str> = shown.names().iter().map(String::as_str).collect();
    let mut sources: Vec<(&str, bool)> = Vec::new();
    for source in results.iter().flat_map(|results| &results.manifest.sources) {
        if !sources.iter().any(|(name, _)| *name == source.name) {
            sources.push((&source.name, source.synthetic));
        }
    }
    if args.json {
        let axis = |axis: &ParetoAxis| {
            serde_json::json!({
                "column": axis.column, "better": better(axis), "evidence": evidence(axis, &table),
            })
        };
        let row = |row: usize| -> serde_json::Map<String, serde_json::Value> {
            columns.iter().map(|name| ((*name).to_owned(), output::to_json(shown.value(name, row)))).collect()
        };
        let source =
            |(name, synthetic): &(&str, bool)| serde_json::json!({ "name": name, "synthetic": synthetic });
        output::json(&serde_json::json!({
            "axes": axes.iter().map(axis).collect::<Vec<_>>(),
            "knee": KNEE,
            "settings": table.rows(),
            "front": on_front,
            "sources": sources.iter().map(source).collect::<Vec<_>>(),
            "rows": (0..shown.rows()).map(row).collect::<Vec<_>>(),
        }))?;
        return Ok(Done::All);
    }
    output::table(&shown, &columns, args.format)?;
    let words: Vec<String> = axes
        .iter()
        .map(|axis| format!("{} ({}, {} is better)", axis.column, evidence(axis, &table), better(axis)))
        .collect();
    news(&format!(
        "{on_front} of {} settings are beaten by none in {}; bounds do not count",
        table.rows(),
        words.join(" and ")
    ));
    if on_front > 2 {
        news(&format!("knee: {KNEE}"));
    }
    if sources.len() > 1 {
        let names: Vec<&str> = sources.iter().map(|(name, _)| *name).collect();
        news(&format!("rows of several traces stand beside each other: {}", names.join(", ")));
    }
    if sources.iter().any(|(_, synthetic)| *synthetic) {
        news("synthetic: there are rows of generated data, not of a model");
    }
    Ok(Done::All)
}

fn better(axis: &ParetoAxis) -> &'static str {
    if axis.direction == Direction::Maximise { "higher" } else { "lower" }
}

/// What kind of number a column holds in these rows: those of runs are executed, whatever a replay would call them.
fn evidence(axis: &ParetoAxis, rows: &Table) -> &'static str {
    let Some(metric) = metric(&axis.column) else { return "setting" };
    let real = Value::Text("real".to_owned());
    let executed = (0..rows.rows()).filter(|&row| rows.value("arm", row) == real).count();
    match executed {
        0 => metric.evidence.word(),
        _ if executed == rows.rows() => "executed",
        _ => "executed where arm is real, else of the replay",
    }
}
