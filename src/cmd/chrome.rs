//! Timelines as Chrome trace files: of a replayed eviction cell, or of a serving arm.

use crate::exit::{CliError, Done};
use crate::output::{self, news};
use kvlab_sim::engine::Observer;
use kvlab_sim::observe::ChromeTrace;
use kvlab_sim::run::{Generated, RunError, serve_timeline, timeline};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::{Trace, TraceSource};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// The timeline of the first eviction cell of `scenario` that evicts something, over the trace in `folder`.
pub(crate) fn of_eviction(
    file: &Path,
    scenario: &Scenario,
    trace: &Trace,
    folder: &Path,
) -> Result<Done, CliError> {
    let invalid = |reason: &str| CliError::Invalid { path: folder.to_owned(), reason: reason.to_owned() };
    if trace.sequences().is_empty() {
        return Err(invalid("it holds no sequences, and a timeline of evictions is that of sequences"));
    }
    let Some(study) = &scenario.eviction else {
        return Err(invalid("--chrome needs an eviction or a serving study in the scenario"));
    };
    let plan = scenario.plan(trace.shape().vocab);
    let cell = plan.eviction.iter().find(|cell| cell.stack.as_ref().is_ok_and(|stack| stack.can_evict()));
    let Some(cell) = cell.or(plan.eviction.first()) else {
        return Err(invalid("the scenario has no eviction cell"));
    };
    let title = format!(
        "{}: {} at {} tokens",
        trace.name(),
        cell.label,
        cell.budget.map_or("no limit".to_owned(), |budget| budget.to_string())
    );
    written(file, folder, &title, |observer| timeline(trace, scenario.limit, study, cell, observer))
}

/// The timeline of the serving arm called `label`, or of the first one; `trace` with its folder where problems are recorded.
pub(crate) fn of_serving(
    file: &Path,
    scenario: &Scenario,
    trace: Option<(&Trace, &Path)>,
    label: Option<&str>,
) -> Result<Done, CliError> {
    let source: &dyn TraceSource = match trace {
        Some((trace, _)) => trace,
        None => &Generated,
    };
    let arm = label.or_else(|| scenario.serve.as_ref()?.arms.first().map(|arm| arm.label.as_str()));
    let title = format!("{}: {}", scenario.id, arm.unwrap_or("-"));
    let folder = trace.map_or(Path::new(""), |(_, folder)| folder);
    written(file, folder, &title, |observer| serve_timeline(scenario, source, label, observer).map(|_| ()))
}

/// Writes what `work` tells an observer to `file`, which must not be there and not lie inside of the trace in `folder`.
fn written(
    file: &Path,
    folder: &Path,
    title: &str,
    work: impl FnOnce(&mut dyn Observer) -> Result<(), RunError>,
) -> Result<Done, CliError> {
    output::check_new_file(file, folder, false)?;
    // Under another name until it is whole.
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let unfinished = file.with_file_name(name);
    let io = |source| CliError::Io { path: file.to_owned(), source };
    let mut observer = ChromeTrace::new(BufWriter::new(File::create(&unfinished).map_err(io)?), title);
    let written = work(&mut observer)
        .map_err(CliError::from)
        .and_then(|()| {
            observer
                .finish()
                .and_then(|out| out.into_inner().map_err(|error| error.into_error()))
                .and_then(|out| out.sync_all())
                .map_err(io)
        })
        .and_then(|()| std::fs::rename(&unfinished, file).map_err(io));
    if written.is_err() {
        // The first error is the one to report.
        drop(std::fs::remove_file(&unfinished));
    }
    written?;
    news(&format!("{title}: timeline written to {}", file.display()));
    Ok(Done::All)
}
