//! `kvlab plot`: figures from result tables.

use crate::exit::{CliError, Done};
use crate::output::news;
use kvlab_plots::{Rendered, Status, render_all, render_one};
use std::path::PathBuf;

/// Draw figures from result tables: SVG, the data behind each as CSV, and the command.
///
/// Figures whose columns are missing are named with what they lack; `kvlab list figures` shows all.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Results folder
    results: PathBuf,
    /// Draw only this figure
    #[arg(long, value_name = "ID")]
    figure: Option<String>,
    /// Folder for the figures [default: RESULTS/figures]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let results = kvlab_sim::results::read(&args.results)?;
    let folder = args.out.clone().unwrap_or_else(|| args.results.join("figures"));
    let rendered = match &args.figure {
        Some(id) => vec![render_one(&results, id, &folder)?],
        None => render_all(&results, &folder)?,
    };
    tell(&rendered);
    let drawn = rendered.iter().any(|figure| figure.status == Status::Drawn);
    news(&format!("figures are in {}", folder.display()));
    Ok(if drawn { Done::All } else { Done::Partly })
}

/// Says what became of each figure.
pub(crate) fn tell(rendered: &[Rendered]) {
    for figure in rendered {
        match &figure.status {
            Status::Drawn => {}
            Status::NothingToDraw { reason } => news(&format!("{}: nothing to draw: {reason}", figure.id)),
        }
    }
}
