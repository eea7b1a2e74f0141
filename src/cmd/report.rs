//! `kvlab report`: one HTML file from result tables.

use super::studies;
use crate::exit::{CliError, Done};
use crate::output::news;
use std::path::{Path, PathBuf};

/// Write one self-contained HTML report from result tables: figures, tables, findings, provenance.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Results folders; several are shown together
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// The report [default: report.html inside the first results folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write Markdown instead, with the pictures in a folder beside it [default: report.md there]
    #[arg(long)]
    markdown: bool,
    /// Folder that `kvlab tune --out` wrote: the recommended thresholds are drawn into the step curves
    #[arg(long, value_name = "DIR")]
    tuned: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let results = studies::together(&args.results, args.tuned.as_deref())?;
    let from = args.results.first().map_or(Path::new(""), PathBuf::as_path);
    let name = if args.markdown { "report.md" } else { "report.html" };
    let path = args.out.clone().unwrap_or_else(|| from.join(name));
    if args.markdown {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let page = kvlab_plots::render_markdown(&results, &format!("{stem}-figures"))?;
        for (name, bytes) in page.pictures {
            write(&bytes, &path.with_file_name(name))?;
        }
        write(page.text.as_bytes(), &path)?;
    } else {
        write(kvlab_plots::render_report(&results).as_bytes(), &path)?;
    }
    news(&format!("report written to {}", path.display()));
    Ok(Done::All)
}

/// Writes `bytes` so that no half of it is ever seen.
pub(crate) fn write(bytes: &[u8], path: &Path) -> Result<(), CliError> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let failed = |source| CliError::Io { path: path.to_owned(), source };
    std::fs::create_dir_all(folder.unwrap_or(Path::new("."))).map_err(failed)?;
    kvlab_sim::table::write_whole(path, bytes).map_err(failed)
}
