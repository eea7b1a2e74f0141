//! `kvlab trace synth`: a generated trace, free or like a recorded one.

use crate::cmd::record::StoreDtype;
use crate::exit::{CliError, Done};
use crate::output::{self, Format, news};
use kvlab_sim::table::{Column, Table};
use kvlab_sim::trace::synth::{
    BRANCH_TREES, Fit, SynthLength, SynthSpec, Synthetic, SyntheticBranches, branch_params, fit,
};
use kvlab_sim::trace::{Dtype, Leftover, Trace, TraceHeader, TraceSource};
use kvlab_sim::types::ModelShape;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Write a generated trace. It is labelled synthetic wherever it is used.
///
/// `kvlab list workloads` shows the generators and their parameters. With `--like TRACE` the parameters of sinks-and-hitters, the
/// shape and the lengths are taken from a recorded trace, and a table says how far the two are apart; without `--out` it is all
/// that is done.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kvlab trace synth sinks-and-hitters --len 512 --sequences 4 --set sink_bonus=8 --out synthetic\n  \
kvlab trace synth branch-trees --set problems=100 --set branches=8 --set sigma=[1,0.95,0.8,0.6] --out trees\n  \
kvlab trace synth --like my-trace --out twin"
)]
pub(super) struct Args {
    /// Generator; see `kvlab list workloads`
    #[arg(default_value = "sinks-and-hitters")]
    workload: String,
    /// Folder for the trace
    #[arg(long, value_name = "DIR", required_unless_present = "like")]
    out: Option<PathBuf>,
    /// Fit the generator to this recorded trace first
    #[arg(long, value_name = "TRACE")]
    like: Option<PathBuf>,
    /// Seed of all draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A parameter of the generator; a value is a number, a truth value or a list
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, Value)>,
    /// Decoder layers [default: 4]
    #[arg(long)]
    layers: Option<u16>,
    /// Query heads [default: 4]
    #[arg(long)]
    q_heads: Option<u16>,
    /// KV heads [default: 2]
    #[arg(long)]
    kv_heads: Option<u16>,
    /// Channels of a head [default: 32]
    #[arg(long)]
    head_dim: Option<u16>,
    /// Vocabulary size [default: 4096]
    #[arg(long)]
    vocab: Option<u32>,
    /// Sequences [default: 2]
    #[arg(long)]
    sequences: Option<u32>,
    /// Prompt tokens of a sequence [default: half of --len]
    #[arg(long)]
    prompt: Option<u32>,
    /// Tokens of a sequence, prompt included [default: 256]
    #[arg(long)]
    len: Option<u32>,
    /// How queries, keys and values are stored [default: f32]
    #[arg(long, value_enum)]
    dtype: Option<StoreDtype>,
    /// How the comparison with --like is printed
    #[arg(long, value_enum, default_value_t, requires = "like")]
    format: Format,
}

/// `key=value`, the value as JSON or as text.
fn setting(given: &str) -> Result<(String, Value), String> {
    let Some((key, value)) = given.split_once('=') else {
        return Err("expected KEY=VALUE".to_owned());
    };
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((key.to_owned(), value))
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<Done, CliError> {
    let mut params: Map<String, Value> = Map::new();
    let mut shape = ModelShape { layers: 4, q_heads: 4, kv_heads: 2, head_dim: 32, hidden: 128, vocab: 4096 };
    let mut lengths: Option<Vec<SynthLength>> = None;
    let mut lens_top = 8;
    if let Some(like) = &args.like {
        if args.workload != "sinks-and-hitters" {
            let reason = format!("--like fits sinks-and-hitters, not {}", args.workload);
            return Err(CliError::Invalid { path: like.clone(), reason });
        }
        let trace = Trace::open(like)?;
        news("fitting");
        let fitted = fit(&trace, args.seed)?;
        output::table(&table(&fitted)?, NAMES, args.format)?;
        news(
            "a generator has no heads of its own kind and no dependence between layers: read the distances before you use it",
        );
        if let Ok(Value::Object(fitted)) = serde_json::to_value(&fitted.params) {
            params = fitted;
        }
        shape = *trace.shape();
        lens_top = trace.manifest().lens_top;
        let of = |meta: &kvlab_sim::trace::SequenceMeta| SynthLength {
            prompt_len: meta.prompt_len,
            len: meta.len,
        };
        lengths = Some(trace.sequences().iter().map(of).collect());
    }
    let Some(out) = &args.out else { return Ok(Done::All) };
    shape.layers = args.layers.unwrap_or(shape.layers);
    shape.q_heads = args.q_heads.unwrap_or(shape.q_heads);
    shape.kv_heads = args.kv_heads.unwrap_or(shape.kv_heads);
    shape.head_dim = args.head_dim.unwrap_or(shape.head_dim);
    shape.vocab = args.vocab.unwrap_or(shape.vocab);
    for (at, (key, value)) in args.set.iter().enumerate() {
        if args.set[..at].iter().any(|(earlier, _)| earlier == key) {
            let reason = format!("--set {key} is given twice");
            return Err(CliError::Invalid { path: out.clone(), reason });
        }
        params.insert(key.clone(), value.clone());
    }
    let params = Value::Object(params);
    let digest = if args.workload == BRANCH_TREES {
        refuse_lengths(args, out)?;
        let trees = SyntheticBranches::build(shape, args.seed, branch_params(params)?)?;
        trees.write(out, Leftover::Resume)?.digest
    } else {
        let len = args.len.unwrap_or(256);
        let asked = args.len.is_some() || args.sequences.is_some() || args.prompt.is_some();
        let each = SynthLength { prompt_len: args.prompt.unwrap_or((len / 2).max(1)), len };
        let lengths =
            lengths.filter(|_| !asked).unwrap_or_else(|| vec![each; args.sequences.unwrap_or(2) as usize]);
        let source =
            Synthetic::with_params(&args.workload, SynthSpec { shape, lengths, seed: args.seed }, params)?;
        let dtype = if args.dtype == Some(StoreDtype::F16) { Dtype::F16 } else { Dtype::F32 };
        let top = lens_top.min(u16::try_from(shape.vocab).unwrap_or(u16::MAX));
        source.write(out, dtype, top, TraceHeader::SHARD_TOKENS, Leftover::Resume)?.digest
    };
    news(&format!("synthetic trace written to {} (digest {digest})", out.display()));
    Ok(Done::All)
}

/// Lengths and heads are those of sequences, which branch trees have none of.
fn refuse_lengths(args: &Args, out: &Path) -> Result<(), CliError> {
    let given = [
        ("--len", args.len.is_some()),
        ("--prompt", args.prompt.is_some()),
        ("--sequences", args.sequences.is_some()),
        ("--q-heads", args.q_heads.is_some()),
        ("--kv-heads", args.kv_heads.is_some()),
        ("--head-dim", args.head_dim.is_some()),
        ("--dtype", args.dtype.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => {
            let reason = format!(
                "{flag} means nothing to {BRANCH_TREES}: their sizes are parameters, see `kvlab list workloads`"
            );
            Err(CliError::Invalid { path: out.to_owned(), reason })
        }
        None => Ok(()),
    }
}

const NAMES: &[&str] = &[
    "statistic",
    "layer",
    "recorded_p10",
    "recorded_p50",
    "recorded_p90",
    "synthetic_p10",
    "synthetic_p50",
    "synthetic_p90",
    "ks",
];

fn table(fit: &Fit) -> Result<Table, CliError> {
    let mut table = Table::new();
    let text = fit.rows.iter().map(|row| Some(row.statistic.into())).collect();
    table.push("statistic", Column::Text(text))?;
    table.push("layer", Column::Int(fit.rows.iter().map(|row| row.layer.map(i64::from)).collect()))?;
    for (at, share) in ["p10", "p50", "p90"].into_iter().enumerate() {
        let recorded = fit.rows.iter().map(|row| Some(row.recorded[at])).collect();
        table.push(&format!("recorded_{share}"), Column::Real(recorded))?;
        let synthetic = fit.rows.iter().map(|row| Some(row.synthetic[at])).collect();
        table.push(&format!("synthetic_{share}"), Column::Real(synthetic))?;
    }
    table.push("ks", Column::Real(fit.rows.iter().map(|row| Some(row.ks)).collect()))?;
    Ok(table)
}
