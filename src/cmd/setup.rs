//! `kvlab setup`: what is found, what is missing, and fetching it.

use super::runtime::LibraryArgs;
use crate::exit::{CliError, Done};
use crate::output::{self, news};
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
    library: LibraryArgs,
    /// Also install the GPU runtime and NVIDIA's libraries for it (CUDA 13; Linux on x86-64). Its size is said first
    #[arg(long)]
    cuda: bool,
    /// Say what is found and what is missing, and fetch nothing
    #[arg(long)]
    check: bool,
    /// Print the state as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let options = args.library.setup_options();
    let report = if args.check {
        setup::check(&options)
    } else {
        let bars = Bars::default();
        let report = setup::setup(&options, &bars).map_err(ExecutorError::from)?;
        if args.cuda && setup::cuda_library(&options).is_none() {
            if let Some(bytes) = setup::cuda_download_bytes() {
                news(&format!("the GPU runtime is a download of {:.0} MB", output::megabytes(bytes)));
            }
            setup::ensure_cuda(&options, &bars).map_err(ExecutorError::from)?;
        }
        report
    };
    let cuda = args.cuda.then(|| setup::check_cuda(&options));
    let report = SetupReport { cuda, ..report };
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
    let cuda = report.cuda.as_ref().map_or(String::new(), line);
    format!("cache                {cache}\n{}{}{cuda}", line(&report.library), line(&report.model))
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
