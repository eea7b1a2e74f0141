//! `kvlab setup`: what is found, what is missing, and fetching it.

use super::runtime::RuntimeArgs;
use crate::exit::{CliError, Done};
use crate::output;
use crate::progress::Bars;
use kvlab_executor::ExecutorError;
use kvlab_executor::setup::{self, Found, SetupReport};

/// Find, and where missing install, the ONNX Runtime library and the demonstration model.
///
/// Everything goes into kvlab's cache folder ($KVLAB_CACHE, else $XDG_CACHE_HOME/kvlab, else ~/.cache/kvlab) with
/// `python3 -m pip` and is compared with pinned hashes. Running it again changes nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    runtime: RuntimeArgs,
    /// Say what is found and what is missing, and fetch nothing
    #[arg(long)]
    check: bool,
    /// Print the state as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let options = args.runtime.setup_options();
    let report = if args.check {
        setup::check(&options)
    } else {
        setup::setup(&options, &Bars::default()).map_err(ExecutorError::from)?
    };
    if args.json {
        output::json(&report)?
    } else {
        output::print(&text(&report))?
    }
    Ok(if report.is_complete() { Done::All } else { Done::CheckFailed })
}

fn text(report: &SetupReport) -> String {
    let cache =
        report.cache.as_ref().map_or("none can be chosen".to_owned(), |path| path.display().to_string());
    format!("cache                {cache}\n{}{}", line(&report.library), line(&report.model))
}

fn line(found: &Found) -> String {
    let path = found.path.as_ref().map_or("missing".to_owned(), |path| path.display().to_string());
    let version = found.version.as_ref().map_or(String::new(), |version| format!(" ({version})"));
    let mut text = format!("{:20} {path}{version}\n", found.what);
    if let Some(problem) = &found.problem {
        text += &format!("  problem: {problem}\n");
    }
    if let Some(remedy) = &found.remedy {
        text += &format!("  to mend it: {remedy}\n");
    }
    text
}
