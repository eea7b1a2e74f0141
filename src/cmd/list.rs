//! `kvlab list`: what is registered.

use crate::exit::{CliError, Done};
use crate::output::{self, Format};
use kvlab_sim::cost::{devices, models, software};
use kvlab_sim::metrics::{METRICS, Scope};
use kvlab_sim::policy::{Law, ParamDoc, Randomness, registry};
use kvlab_sim::run::RunError;
use kvlab_sim::scenario::schema;
use kvlab_sim::table::{Column, Table};
use kvlab_sim::trace::{FIELDS, synth};

/// Show what is registered: policies, metrics, figures, model families, trace fields, built-in problems, answer checkers,
/// synthetic workloads, cost models with their devices and models. `schema` is the language of scenarios as a JSON Schema, for editors.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to list
    #[arg(value_enum)]
    what: What,
    /// With `policies`: the parameters of this policy with their defaults
    #[arg(long, value_name = "ID")]
    params: Option<String>,
    /// How the list is printed
    #[arg(long, value_enum)]
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    Policies,
    Metrics,
    Figures,
    Families,
    Fields,
    Problems,
    Graders,
    Workloads,
    Costs,
    Schema,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let format = args.format.unwrap_or_default();
    let refuse = |flag, reason: &str| Err(CliError::Usage { flag, reason: reason.to_owned() });
    match (&args.params, args.what) {
        (Some(id), What::Policies) => return params(id, format),
        (Some(_), _) => return refuse("--params", "it is for `kvlab list policies`"),
        (None, What::Schema) if args.format.is_some() => {
            return refuse("--format", "a schema is JSON: leave it out");
        }
        (None, _) => {}
    }
    let (names, rows) = match args.what {
        What::Schema => {
            output::print(&format!("{}\n", lines(&schema(REFERENCE), 0)))?;
            return Ok(Done::All);
        }
        What::Policies => policies(),
        What::Metrics => metrics(),
        What::Figures => (
            vec!["id", "title", "question"],
            kvlab_plots::FIGURES.iter().map(|f| vec![f.id(), f.title(), f.question()]).map(owned).collect(),
        ),
        What::Families => (
            vec!["id", "summary"],
            kvlab_executor::FAMILIES.iter().map(|f| vec![f.id(), f.summary()]).map(owned).collect(),
        ),
        What::Fields => (
            vec!["name", "axes", "dtype", "unit", "doc"],
            FIELDS
                .iter()
                .map(|f| {
                    let dtypes: Vec<String> =
                        f.dtypes.iter().map(|dtype| format!("{dtype:?}").to_lowercase()).collect();
                    let unit = if f.unit.is_empty() { "-" } else { f.unit };
                    let (name, axes) = (f.name.to_owned(), format!("[{}]", f.axes.join(", ")));
                    vec![name, axes, dtypes.join(" or "), unit.to_owned(), f.doc.to_owned()]
                })
                .collect(),
        ),
        What::Costs => costs()?,
        What::Problems => (
            vec!["id", "summary"],
            kvlab_executor::BUILT_INS.iter().map(|b| vec![b.id, b.summary]).map(owned).collect(),
        ),
        What::Graders => (
            vec!["id", "summary"],
            kvlab_executor::grade::CHECKERS.iter().map(|c| vec![c.id, c.summary]).map(owned).collect(),
        ),
        What::Workloads => (
            vec!["id", "for", "summary", "parameters"],
            synth::WORKLOADS
                .iter()
                .map(|w| {
                    vec![w.id.to_owned(), SYNTH.to_owned(), w.summary.to_owned(), w.defaults().to_string()]
                })
                .chain([vec![
                    synth::BRANCH_TREES.to_owned(),
                    SYNTH.to_owned(),
                    synth::BRANCH_TREES_SUMMARY.to_owned(),
                    serde_json::to_value(synth::BranchParams::default()).unwrap_or_default().to_string(),
                ]])
                .chain(kvlab_sim::pool::synth::STREAMS.iter().map(|stream| {
                    let summary = stream.summary.to_owned();
                    vec![stream.id.to_owned(), STREAM.to_owned(), summary, stream.defaults().to_string()]
                }))
                .collect(),
        ),
    };
    print(&names, &rows, format)
}

/// Its comments say what keys mean.
const REFERENCE: &str = include_str!("../../scenarios/reference.yaml");

/// JSON in which whatever fits into a line is in one.
fn lines(value: &serde_json::Value, indent: usize) -> String {
    const WIDTH: usize = 140;
    let flat = value.to_string();
    if indent + flat.len() <= WIDTH {
        return flat;
    }
    let (open, inner, close) = match value {
        serde_json::Value::Object(map) => {
            let one = |(key, value): (&String, &serde_json::Value)| {
                format!("{}: {}", serde_json::Value::from(key.as_str()), lines(value, indent + 2))
            };
            ('{', map.iter().map(one).collect::<Vec<_>>(), '}')
        }
        serde_json::Value::Array(list) => {
            ('[', list.iter().map(|value| lines(value, indent + 2)).collect(), ']')
        }
        _ => return flat,
    };
    let (inside, outside) = (" ".repeat(indent + 2), " ".repeat(indent));
    format!("{open}\n{inside}{}\n{outside}{close}", inner.join(&format!(",\n{inside}")))
}

/// Where a workload is used.
const SYNTH: &str = "trace synth";
const STREAM: &str = "pool.stream of a scenario";

type Listing = (Vec<&'static str>, Vec<Vec<String>>);

fn owned(row: Vec<&str>) -> Vec<String> {
    row.into_iter().map(str::to_owned).collect()
}

fn policies() -> Listing {
    let rows = registry::all()
        .into_iter()
        .map(|registry::Listed { spec, laws, .. }| {
            let random = if spec.randomness == Randomness::Random { "random" } else { "deterministic" };
            let laws: Vec<&str> = laws.iter().map(|law: &Law| law.word()).collect();
            let laws = if laws.is_empty() { "-".to_owned() } else { laws.join(" ") };
            let (family, needs) = (spec.family.word().to_owned(), spec.needs.words());
            let (summary, citation) = (spec.summary.to_owned(), spec.citation.to_owned());
            vec![family, spec.id.to_owned(), summary, needs, random.to_owned(), laws, citation]
        })
        .collect();
    (vec!["family", "id", "summary", "needs", "draws", "laws", "citation"], rows)
}

/// Cost models, and what a roofline knows by name.
fn costs() -> Result<Listing, CliError> {
    let row = |kind: &str, id: &str, figures: String, source: &str| {
        vec![kind.to_owned(), id.to_owned(), figures, source.to_owned()]
    };
    let mut rows: Vec<Vec<String>> = kvlab_sim::cost::COSTS
        .iter()
        .map(|entry| row("cost model", entry.id, entry.summary.to_owned(), "-"))
        .collect();
    for device in devices().map_err(RunError::from)? {
        let figures = format!(
            "{:.0} TFLOP/s, {:.0} GB/s, {:.0} GB",
            device.flops / 1e12,
            device.bytes_per_second / 1e9,
            device.memory_bytes / 1e9
        );
        rows.push(row("device", &device.name, figures, &device.source));
    }
    for model in models().map_err(RunError::from)? {
        let bytes = model.kv_bytes_per_token().get();
        let figures =
            format!("{} layers, {} parameters, {bytes} KV bytes a token", model.layers, model.params());
        rows.push(row("model", &model.name, figures, &model.source));
    }
    for software in software().map_err(RunError::from)? {
        let figures = format!(
            "{} of the operations, {} of the bandwidth, {} ns a layer on the host",
            software.compute_share, software.memory_share, software.host_nanos_a_layer
        );
        rows.push(row("software", &software.name, figures, &software.source));
    }
    Ok((vec!["kind", "id", "figures", "source"], rows))
}

fn metrics() -> Listing {
    let rows = METRICS
        .iter()
        .map(|metric| {
            let scope = match metric.scope {
                Scope::Cell => "cells".to_owned(),
                Scope::CellMean => "cells (mean, interval, standard error)".to_owned(),
                Scope::CellRate => {
                    "cells (rate, numerator, denominator, interval, standard error)".to_owned()
                }
                Scope::CellPaired => "cells (paired difference, interval, standard error, p)".to_owned(),
                Scope::Series { x } => format!("series by {x}"),
            };
            let better = format!("{:?}", metric.better).to_lowercase();
            let unit = if metric.unit.is_empty() { "-" } else { metric.unit };
            vec![
                metric.id.to_owned(),
                metric.evidence.word().to_owned(),
                unit.to_owned(),
                better,
                scope,
                metric.doc.to_owned(),
            ]
        })
        .collect();
    (vec!["id", "evidence", "unit", "better", "table", "meaning"], rows)
}

fn params(id: &str, format: Format) -> Result<Done, CliError> {
    let found: Vec<_> = registry::all().into_iter().filter(|listed| listed.spec.id == id).collect();
    if found.is_empty() {
        // The lookup builds the error with all known ids and the nearest.
        registry::composition(id)?;
    }
    let names = vec!["family", "id", "parameter", "default", "meaning"];
    let mut rows = Vec::new();
    for registry::Listed { spec, defaults, docs, .. } in found {
        let cell = |doc: &ParamDoc| {
            let default = defaults.get(doc.name).map_or_else(String::new, default_text);
            let (family, id) = (spec.family.word().to_owned(), spec.id.to_owned());
            vec![family, id, doc.name.to_owned(), default, doc.meaning.to_owned()]
        };
        rows.extend(docs.iter().map(cell));
        if docs.is_empty() {
            let (family, id) = (spec.family.word().to_owned(), spec.id.to_owned());
            rows.push(vec![family, id, "-".to_owned(), "-".to_owned(), "it has no parameters".to_owned()]);
        }
    }
    print(&names, &rows, format)
}

/// A default as one would type it: most are binary32, whose digits in binary64 nobody wrote.
fn default_text(value: &serde_json::Value) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "compared with what was there")]
    let narrow = value.as_f64().map(|number| number as f32);
    match (value.as_f64(), narrow) {
        (Some(number), Some(narrow)) if value.is_f64() && f64::from(narrow).to_bits() == number.to_bits() => {
            narrow.to_string()
        }
        _ => value.to_string(),
    }
}

fn print(names: &[&'static str], rows: &[Vec<String>], format: Format) -> Result<Done, CliError> {
    let mut table = Table::new();
    for (at, name) in names.iter().enumerate() {
        table.push(name, Column::Text(rows.iter().map(|row| Some(row[at].as_str().into())).collect()))?;
    }
    output::table(&table, names, format)?;
    Ok(Done::All)
}
