//! Exit codes, and the one place that prints errors with hints.

use crate::output::news;
use kvlab_executor::workload::chain::LEVELS;
use kvlab_executor::{BUILT_INS, ExecutorError};
use kvlab_plots::PlotsError;
use kvlab_sim::policy::PolicyError;
use kvlab_sim::results::ResultsError;
use kvlab_sim::run::RunError;
use kvlab_sim::scenario::ScenarioError;
use kvlab_sim::table::TableError;
use kvlab_sim::trace::TraceError;
use kvlab_sim::tune::TuneError;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What `--help` says about exit codes.
pub(crate) const HELP: &str = "Exit codes: 0 all done · 1 internal error · 2 usage · 3 invalid scenario, trace, model \
or set-up · 4 some cells failed or were skipped · 5 a check was not met";

/// How a command ended, if it did not end in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// All of it was done.
    All,
    /// Some cells failed or were skipped; the tables say which and why.
    Partly,
    /// A check was not met.
    CheckFailed,
}

/// Everything that can stop a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Results(#[from] ResultsError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Tune(#[from] TuneError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    #[error(transparent)]
    Plots(#[from] PlotsError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("failed to write to standard output: {0}")]
    Output(std::io::Error),
    #[error("{}: {reason}", path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error("{}: {source}", path.display())]
    In { path: PathBuf, source: Box<CliError> },
    #[error("{}: {reason}", path.display())]
    NoModel { path: PathBuf, reason: String },
    #[error("{flag}: {reason}")]
    Usage { flag: &'static str, reason: String },
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf, remedy: String },
}

impl CliError {
    /// Says which trace is meant, unless the error does: values are named by sequence, layer and position.
    pub(crate) fn in_trace(path: &Path, error: impl Into<Self>) -> Self {
        let error = error.into();
        match error {
            Self::Trace(_) | Self::Run(_) if !error.to_string().contains(&*path.to_string_lossy()) => {
                Self::In { path: path.to_owned(), source: Box::new(error) }
            }
            other => other,
        }
    }

    /// Says which model is meant, unless the error does: shapes and features are named by themselves.
    pub(crate) fn in_model(path: &Path, error: impl Into<Self>) -> Self {
        let error = error.into();
        match error {
            Self::Executor(ExecutorError::Model(_) | ExecutorError::Text(_))
                if !error.to_string().contains(&*path.to_string_lossy()) =>
            {
                Self::In { path: path.to_owned(), source: Box::new(error) }
            }
            other => other,
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Exists { .. } | Self::Invalid { .. } | Self::Usage { .. } => 2,
            Self::In { source, .. } => source.code(),
            Self::Run(RunError::Engine(_) | RunError::Table(_) | RunError::Threads { .. })
            | Self::Output(_) => 1,
            _ => 3,
        }
    }

    /// The one command or change that mends it, where there is one.
    fn hint(&self) -> Option<String> {
        match self {
            Self::Trace(error)
            | Self::Executor(ExecutorError::Trace(error))
            | Self::Run(RunError::Trace(error)) => of_trace(error),
            Self::Executor(error) => error.remedy(),
            Self::Exists { remedy, .. } => Some(remedy.clone()),
            Self::In { source, .. } => source.hint(),
            _ => None,
        }
    }
}

fn of_trace(error: &TraceError) -> Option<String> {
    match error {
        TraceError::Leftover { .. } | TraceError::Incomplete { .. } => {
            Some("give the command that began it again to finish it, or remove that folder".to_owned())
        }
        TraceError::Aside { target, .. } => Some(format!(
            "give the command that began the new one again, without --force, to finish it, or rename that folder to {}",
            target.display()
        )),
        TraceError::ResumeMismatch { part, begun, .. } => Some(resumed(part, begun)),
        TraceError::MissingField { field, .. } => Some(format!("record it with {}", recorded_with(field)?)),
        _ => None,
    }
}

/// The flag of `kvlab record` that keeps a field, where it takes one.
fn recorded_with(field: &str) -> Option<&'static str> {
    Some(match field {
        "facts/times.jsonl" => "`kvlab record --times`, or give the cost model `measurements` or a `file`",
        "hidden" => "`kvlab record --hidden`",
        "weights.w_o" => "`kvlab record --weights w-o`",
        "weights.final_norm" | "weights.unembedding" => "`kvlab record --weights head`",
        "branches.depth" => "`kvlab record --branches N`",
        _ => return None,
    })
}

/// How a recording that was begun otherwise goes on.
fn resumed(part: &str, begun: &str) -> String {
    let value = begun.trim_matches('"');
    let switch = |flag: &str| {
        let is_on = !matches!(begun, "null" | "false");
        if is_on { format!("give {flag} as well") } else { format!("leave out {flag}") }
    };
    let as_begun = match part {
        "model.name" | "model.source_file" => format!("give --model of {value}"),
        "model.weights_sha256" => "give --model with the weights that it was begun with".to_owned(),
        "branches" if begun == "null" => "leave out --branches".to_owned(),
        "branches" => "give --branches as well, with the number that it was begun with".to_owned(),
        "branches.steps" if begun == "true" => "leave out --no-steps".to_owned(),
        "branches.steps" => "give --no-steps as well".to_owned(),
        "workload.name" => workload(value),
        "workload.file_sha256" if begun == "null" => "leave out --problems".to_owned(),
        "workload.file_sha256" => {
            "give --problems with the file that it was begun with, unchanged".to_owned()
        }
        // One sequence a pass is not written down.
        "decoding.batch" if begun == "null" => "give --batch 1, which it was begun with".to_owned(),
        "decoding.batch" => format!("give --batch {value}, which it was begun with"),
        "decoding.max_new_tokens" => format!("give --max-new-tokens {value}"),
        "runtime.threads" => format!("give --threads {value}"),
        "runtime.requested_provider" => format!("give --ep {value}"),
        "seed" | "workload.seed" => format!("give --seed {value}"),
        "decoding.protocol" => switch("--as-published"),
        "fields.hidden" => switch("--hidden"),
        "times" => switch("--times"),
        "fields.lens" => format!("give --lens {value}"),
        "fields.attention" => format!("give --dtype {}", value.to_lowercase()),
        "weights.w_o" if begun == "null" => "leave out --weights w-o, or give --weights none".to_owned(),
        "weights.w_o" => "give --weights w-o".to_owned(),
        "weights.final_norm" | "weights.unembedding" => switch("--weights head"),
        _ => "give the command as it was begun".to_owned(),
    };
    format!("{as_begun}, to go on with it; --force throws it away and begins anew")
}

/// The flags of problems that bear this name.
fn workload(name: &str) -> String {
    let levels = LEVELS.iter().map(|level| level.id);
    let chain = |prefix: &str| levels.clone().find(|id| name.strip_prefix(prefix) == Some(id));
    match (chain("chain-"), chain("chain-verify-")) {
        (Some(level), _) => format!("give --workload chain --level {level}"),
        (_, Some(level)) => format!("give --workload chain-verify --level {level}"),
        (None, None) if name == "gsm8k-sample" => "give --workload gsm8k".to_owned(),
        (None, None) if BUILT_INS.iter().any(|known| known.id == name) => format!("give --workload {name}"),
        (None, None) => format!("give --problems with the file {name}"),
    }
}

/// Prints an error with its hint and turns the outcome into an exit code.
pub(crate) fn code(outcome: Result<Done, CliError>) -> ExitCode {
    match outcome {
        Ok(Done::All) => ExitCode::SUCCESS,
        Ok(Done::Partly) => ExitCode::from(4),
        Ok(Done::CheckFailed) => ExitCode::from(5),
        // A reader that has seen enough (`kvlab list | head`) is no error.
        Err(CliError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            news(&format!("error: {error}"));
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                if !error.to_string().contains(&cause.to_string()) {
                    news(&format!("  because: {cause}"));
                }
                source = cause.source();
            }
            if let Some(hint) = error.hint() {
                news(&format!("  to mend it: {hint}"));
            }
            ExitCode::from(error.code())
        }
    }
}
