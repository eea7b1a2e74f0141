//! `kvlab trace export` and `import`: files of other tools.

use crate::exit::{CliError, Done};
use crate::output::{self, news};
use kvlab_sim::trace::Trace;
use kvlab_sim::trace::mooncake::{self, ImportOptions};
use std::path::PathBuf;

/// Write the requests of a trace as Mooncake JSON lines: timestamp, input_length, output_length, hash_ids.
///
/// Branches are requests (the root prefix is none), behind their own prefix; without branch trees, sequences are. Ids are those of
/// chained blocks: equal ids mean equal tokens up to there. A file FILE.meta.json says how many tokens a block has, since the
/// lines do not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kvlab trace export trees --out trees.jsonl --block-size 16 --gap-ms 100")]
pub(super) struct ExportArgs {
    /// Trace folder
    trace: PathBuf,
    /// File for the lines
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tokens of a block [default: that of imported requests, else 512, as in the published traces]
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<u32>,
    /// Time between the arrivals of two problems, or sequences, which a trace of them does not hold [default: 1000]
    #[arg(long, value_name = "MS")]
    gap_ms: Option<u64>,
    /// Replace FILE
    #[arg(long)]
    force: bool,
}

/// Make a trace of Mooncake JSON lines, for studies of prefix caches. It holds requests and blocks, no tokens and no tensors.
///
/// Fractions of a millisecond are cut off, and keys beside timestamp, input_length, output_length and hash_ids are left alone.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: kvlab trace import conversation_trace.jsonl --block-size 512 --out requests"
)]
pub(super) struct ImportArgs {
    /// File of lines
    lines: PathBuf,
    /// Folder for the trace
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Tokens of a block; needed when no FILE.meta.json says it
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<u32>,
    /// Leave out a last line that was cut off instead of refusing the file
    #[arg(long)]
    complete_part: bool,
}

/// Time between arrivals when nobody says otherwise.
const GAP_MS: u64 = 1000;

pub(super) fn export(args: &ExportArgs) -> Result<Done, CliError> {
    for file in [&args.out, &mooncake::meta_path(&args.out)] {
        output::check_new_file(file, &args.trace, args.force)?;
    }
    let trace = Trace::open(&args.trace)?;
    if args.gap_ms.is_some() && trace.manifest().requests.is_some() {
        let reason = "the trace's requests have times of arrival of their own".to_owned();
        return Err(CliError::Usage { flag: "--gap-ms", reason });
    }
    let meta = mooncake::export(&trace, args.block_size, args.gap_ms.unwrap_or(GAP_MS), &args.out)?;
    news(&format!(
        "{} lines in blocks of {} tokens written to {}, the block size to {}",
        meta.lines,
        meta.block_tokens,
        args.out.display(),
        mooncake::meta_path(&args.out).display()
    ));
    Ok(Done::All)
}

pub(super) fn import(args: &ImportArgs) -> Result<Done, CliError> {
    let options = ImportOptions { block_tokens: args.block_size, complete_part: args.complete_part };
    let imported = mooncake::import(&args.lines, options, &args.out)?;
    news(&format!("{} requests written to {}", imported.requests, args.out.display()));
    if imported.dropped > 0 {
        news(&format!("{} line that the file ends within was left out", imported.dropped));
    }
    Ok(Done::All)
}
