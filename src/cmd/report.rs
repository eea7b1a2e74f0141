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

/// Writes `bytes` to a temporary sibling and renames it, so that no half of it is ever seen.
pub(crate) fn write(bytes: &[u8], path: &Path) -> Result<(), CliError> {
    let failed = |source| CliError::Io { path: path.to_owned(), source };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let partial = path.with_file_name(name);
    std::fs::write(&partial, bytes).map_err(failed)?;
    std::fs::rename(&partial, path).map_err(failed)
}
