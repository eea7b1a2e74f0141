//! `kvlab plot`: figures from result tables.

use super::report::write;
use super::studies;
use crate::exit::{CliError, Done};
use crate::output::{news, print};
use kvlab_plots::{
    FIGURES, Outcome, Page, Pictures, Rendered, Status, draw, render_all, render_gallery, render_one,
};
use kvlab_sim::results::Results;
use std::path::{Path, PathBuf};

/// Draw figures from result tables: SVG, the data behind each as CSV, and the command.
///
/// Figures whose columns are missing are named with what they lack; `--list` shows that without drawing. Several results folders are shown
/// together: a Pareto front is that of all their cells, and every label names its study.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kvlab plot study --figure occupancy --png\n  kvlab plot study other-study --figure pareto-bytes --out both\n  \
kvlab plot trees --tuned tuned --figure steps-tau   with what `kvlab tune --out tuned` recommends"
)]
pub(crate) struct Args {
    /// Results folders; several are shown together, or side by side with --gallery
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Draw only this figure
    #[arg(long, value_name = "ID")]
    figure: Option<String>,
    /// Folder for the figures [default: figures inside the first results folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write each figure as PNG, with a font that ships with kvlab
    #[arg(long)]
    png: bool,
    /// Say which figures the tables allow and what the others lack, and draw nothing
    #[arg(long, conflicts_with_all = ["figure", "out", "png", "gallery"])]
    list: bool,
    /// Folder that `kvlab tune --out` wrote: the recommended thresholds are drawn into the step curves
    #[arg(long, value_name = "DIR")]
    tuned: Option<PathBuf>,
    /// Write a Markdown page of all figures, each from the first folder that allows it, with the pictures in a folder of its name
    #[arg(long, value_name = "FILE", conflicts_with_all = ["figure", "out", "png"])]
    gallery: Option<PathBuf>,
    /// With --gallery: compare with the files that are there and write nothing
    #[arg(long, requires = "gallery")]
    check: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    if let Some(page) = &args.gallery {
        let each = |folder: &PathBuf| studies::together(std::slice::from_ref(folder), args.tuned.as_deref());
        let studies: Vec<Results> = args.results.iter().map(each).collect::<Result<_, _>>()?;
        return gallery(args, &studies, page);
    }
    let results = studies::together(&args.results, args.tuned.as_deref())?;
    if args.list {
        return list(&results);
    }
    let from = args.results.first().map_or(Path::new(""), PathBuf::as_path);
    let folder = args.out.clone().unwrap_or_else(|| from.join("figures"));
    let pictures = if args.png { Pictures::SvgAndPng } else { Pictures::Svg };
    let rendered = match &args.figure {
        Some(id) => vec![render_one(&results, id, &folder, pictures)?],
        None => render_all(&results, &folder, pictures)?,
    };
    tell(&rendered);
    let drawn = rendered.iter().any(|figure| figure.status == Status::Drawn);
    news(&format!("figures are in {}", folder.display()));
    Ok(if drawn { Done::All } else { Done::Partly })
}

/// One line a figure: what it shows, or why it cannot be drawn.
fn list(results: &Results) -> Result<Done, CliError> {
    let mut lines = String::new();
    for figure in FIGURES {
        let said = match draw(*figure, results)? {
            Outcome::Drawn(_) => format!("can be drawn: {}", figure.title()),
            Outcome::Nothing(reason) => format!("cannot be drawn: {reason}"),
        };
        lines.push_str(&format!("{:24} {said}\n", figure.id()));
    }
    print(&lines)?;
    Ok(Done::All)
}

fn gallery(args: &Args, studies: &[Results], page: &Path) -> Result<Done, CliError> {
    let named: Vec<String> = args.results.iter().map(|folder| folder.display().to_string()).collect();
    let tuned = args.tuned.as_ref().map_or(String::new(), |folder| format!(" --tuned {}", folder.display()));
    let command = format!("kvlab plot {}{tuned} --gallery {}", named.join(" "), page.display());
    let stem = page.file_stem().unwrap_or_default().to_string_lossy();
    let Page { text, pictures } = render_gallery(studies, &stem, &command)?;
    let folder = page.parent().unwrap_or(Path::new(""));
    let files = pictures.iter().map(|(name, bytes)| (folder.join(name), bytes.as_slice()));
    let files: Vec<(PathBuf, &[u8])> = files.chain([(page.to_owned(), text.as_bytes())]).collect();
    if args.check {
        let differs = |(path, bytes): &&(PathBuf, &[u8])| std::fs::read(path).ok().as_deref() != Some(*bytes);
        let stale: Vec<String> =
            files.iter().filter(differs).map(|(path, _)| path.display().to_string()).collect();
        if stale.is_empty() {
            news(&format!("{} is up to date", page.display()));
            return Ok(Done::All);
        }
        news(&format!("not what the tables give: {}; make it again without --check", stale.join(", ")));
        return Ok(Done::CheckFailed);
    }
    for (path, bytes) in files {
        write(bytes, &path)?;
    }
    news(&format!("gallery written to {}", page.display()));
    Ok(Done::All)
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
