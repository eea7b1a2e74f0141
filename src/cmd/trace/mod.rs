//! `kvlab trace`: traces made from traces, from generators and from other tools' files.

mod edit;
mod neighbours;
mod synth;

use crate::exit::{CliError, Done};

/// Make traces without a model: generate, cut, join, convert, import and export.
///
/// Every result is a whole new folder with its own digests; nothing is edited in place. A trace made from another one names its
/// digest in `derived_from`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Synth(synth::Args),
    Slice(edit::SliceArgs),
    Merge(edit::MergeArgs),
    Convert(edit::ConvertArgs),
    Export(neighbours::ExportArgs),
    Import(neighbours::ImportArgs),
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    match &args.verb {
        Verb::Synth(args) => synth::run(args),
        Verb::Slice(args) => edit::slice(args),
        Verb::Merge(args) => edit::merge(args),
        Verb::Convert(args) => edit::convert(args),
        Verb::Export(args) => neighbours::export(args),
        Verb::Import(args) => neighbours::import(args),
    }
}
