//! `kvlab trace slice`, `merge` and `convert`.

use crate::cmd::record::StoreDtype;
use crate::cmd::study::command_line;
use crate::exit::{CliError, Done};
use crate::output::news;
use kvlab_sim::trace::edit::{self, EditReport, Selection, Storage};
use kvlab_sim::trace::{Dtype, Trace};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Take a part of a trace: sequences, layers, problems, or the beginning of each sequence.
///
/// A slice of sequences replays exactly like those sequences in the whole. Lists are numbers and ranges, both ends included:
/// `0,3,5-9`. Layers and sequences are numbered anew in the result.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kvlab trace slice my-trace --sequences 0-3 --layers 10-29 --out small")]
pub(super) struct SliceArgs {
    /// Trace folder
    trace: PathBuf,
    /// Folder for the result
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Sequences to take
    #[arg(long, value_name = "LIST", value_parser = list::<u32>)]
    sequences: Option<List<u32>>,
    /// Layers to take. Branch facts are left out then, and lens facts unless the last layer comes last
    #[arg(long, value_name = "LIST", value_parser = list::<u16>)]
    layers: Option<List<u16>>,
    /// Problems with branch trees to take
    #[arg(long, value_name = "LIST", value_parser = list::<u32>)]
    problems: Option<List<u32>>,
    /// At most so many positions of each sequence, from its first: what comes later looks back at all of them
    #[arg(long, value_name = "N")]
    first: Option<u32>,
}

/// Join traces of the same model and settings.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kvlab trace merge monday tuesday --out both")]
pub(super) struct MergeArgs {
    /// Trace folders, in order
    #[arg(required = true, num_args = 2..)]
    traces: Vec<PathBuf>,
    /// Folder for the result
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Store a trace in another way: half or single precision, other shards, or facts as JSON lines.
///
/// Going to f16 says what the rounding cost; a value that does not fit is an error with its place.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kvlab trace convert my-trace --dtype f16 --out half\n  kvlab trace convert my-trace --to jsonl --out facts"
)]
pub(super) struct ConvertArgs {
    /// Trace folder
    trace: PathBuf,
    /// Folder for the result
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How queries, keys, values and weight matrices are stored
    #[arg(long, value_enum)]
    dtype: Option<StoreDtype>,
    /// Positions a shard holds
    #[arg(long, value_name = "N")]
    shard_tokens: Option<u32>,
    /// `trace`, or `jsonl`: the facts alone, one JSON object a row
    #[arg(long, value_enum, default_value_t = To::Trace)]
    to: To,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum To {
    Trace,
    Jsonl,
}

/// Numbers and ranges.
#[derive(Clone, Debug)]
pub(super) struct List<T>(Vec<T>);

fn list<T: std::str::FromStr + TryFrom<u64>>(given: &str) -> Result<List<T>, String> {
    const MOST: u64 = 1 << 20;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| format!("`{text}` is no number"));
    let mut numbers = Vec::new();
    for part in given.split(',') {
        let range: RangeInclusive<u64> = match part.split_once('-') {
            Some((first, last)) => number(first)?..=number(last)?,
            None => number(part)?..=number(part)?,
        };
        if range.is_empty() || range.end() - range.start() >= MOST {
            return Err(format!("`{part}` is no range: expected FIRST-LAST, at most {MOST} numbers"));
        }
        for number in range {
            numbers.push(T::try_from(number).map_err(|_| format!("{number} is too large"))?);
        }
    }
    Ok(List(numbers))
}

pub(super) fn slice(args: &SliceArgs) -> Result<Done, CliError> {
    let trace = Trace::open(&args.trace)?;
    let selection = Selection {
        sequences: args.sequences.as_ref().map(|list| list.0.clone()),
        layers: args.layers.as_ref().map(|list| list.0.clone()),
        first: args.first,
        problems: args.problems.as_ref().map(|list| list.0.clone()),
    };
    tell(&edit::slice(&trace, &selection, Storage::default(), &args.out, &command_line())?, &args.out);
    Ok(Done::All)
}

pub(super) fn merge(args: &MergeArgs) -> Result<Done, CliError> {
    let traces = args.traces.iter().map(|path| Trace::open(path)).collect::<Result<Vec<_>, _>>()?;
    let traces: Vec<&Trace> = traces.iter().collect();
    tell(&edit::merge(&traces, &args.out, &command_line())?, &args.out);
    Ok(Done::All)
}

pub(super) fn convert(args: &ConvertArgs) -> Result<Done, CliError> {
    let trace = Trace::open(&args.trace)?;
    if args.to == To::Jsonl {
        if args.dtype.is_some() || args.shard_tokens.is_some() {
            let reason =
                "JSON lines hold no tensors: --dtype and --shard-tokens do not go with --to jsonl".to_owned();
            return Err(CliError::Invalid { path: args.out.clone(), reason });
        }
        let lines = edit::to_jsonl(&trace, &args.out)?;
        news(&format!("{lines} lines written to {}", args.out.display()));
        return Ok(Done::All);
    }
    let dtype = args.dtype.map(|dtype| if dtype == StoreDtype::F16 { Dtype::F16 } else { Dtype::F32 });
    let storage = Storage { dtype, shard_tokens: args.shard_tokens };
    tell(&edit::slice(&trace, &Selection::default(), storage, &args.out, &command_line())?, &args.out);
    Ok(Done::All)
}

fn tell(report: &EditReport, out: &Path) {
    news(&format!(
        "{} sequences, {} tokens, {} problems written to {} (digest {})",
        report.sequences,
        report.tokens,
        report.problems,
        out.display(),
        report.digest
    ));
    for reason in &report.left_out {
        news(&format!("left out: {reason}"));
    }
    if let Some(loss) = report.loss {
        news(&format!(
            "rounding to f16: {} of {} values changed, by at most {:e} ({:.2e} of the value); {} became 0",
            loss.changed, loss.values, loss.max_abs, loss.max_rel, loss.to_zero
        ));
    }
}
