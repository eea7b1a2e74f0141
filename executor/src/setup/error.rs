//! What can go wrong while finding and fetching.

use std::{fmt, io, path::PathBuf};

use super::pins::RUNTIME_MINOR_NEEDED;

/// A place that was looked at, and why what is there was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What the place is: a flag, a variable, a folder.
    pub place: String,
    /// Why nothing was taken from it.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}

fn lines<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(|item| format!("\n  {item}")).collect()
}

/// Why set-up stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A library was named by hand and cannot be used. Other places are not tried, so that a typing error is seen.
    #[error("failed to use the ONNX Runtime library named by {named_by}: {}: {why}", path.display())]
    BadLibrary {
        /// The flag or variable that named it.
        named_by: &'static str,
        /// The path given.
        path: PathBuf,
        /// Why it was refused.
        why: String,
    },
    /// No place has a usable library.
    #[error(
        "failed to find the ONNX Runtime library (1.{RUNTIME_MINOR_NEEDED} or newer); looked at:{}",
        lines(looked_in)
    )]
    LibraryMissing {
        /// Each place and why it was refused.
        looked_in: Vec<Refused>,
    },
    /// The demonstration model is in no place.
    #[error("failed to find the demonstration model; looked at:{}", lines(looked_in))]
    ModelMissing {
        /// Each place and why it was refused.
        looked_in: Vec<Refused>,
    },
    /// Neither variable that could name the cache folder is set.
    #[error("failed to choose a cache folder: none of KVLAB_CACHE, XDG_CACHE_HOME and HOME is set")]
    NoCacheFolder,
    /// No wheel is pinned for this machine.
    #[error("failed to fetch ONNX Runtime: no library is pinned for {os} on {arch}")]
    UnsupportedPlatform {
        /// Operating system.
        os: &'static str,
        /// Processor architecture.
        arch: &'static str,
    },
    /// The Python program cannot be started.
    #[error("failed to start {program}, which is needed to fetch {wanted}: {source}")]
    NoPython {
        /// The program tried.
        program: String,
        /// What it was needed for.
        wanted: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Python has no pip.
    #[error("failed to fetch {wanted}: {program} has no module pip")]
    NoPip {
        /// The Python program.
        program: String,
        /// What pip was needed for.
        wanted: String,
    },
    /// pip ran and did not bring the wheel.
    #[error("failed to fetch {wanted}: pip ended with {status}{}", lines(output))]
    PipFailed {
        /// The requirement.
        wanted: String,
        /// Exit status.
        status: String,
        /// The last lines pip wrote.
        output: Vec<String>,
    },
    /// A child process did not end in time and was stopped.
    #[error("failed to finish {what} within {seconds} s")]
    TimedOut {
        /// What was running.
        what: String,
        /// The limit.
        seconds: u64,
    },
    /// A fetched file is not the pinned one.
    #[error("failed to accept {what}: its SHA-256 is {found}, the pinned one is {expected}")]
    DigestMismatch {
        /// The file.
        what: String,
        /// The pinned digest.
        expected: String,
        /// The digest of what came.
        found: String,
    },
    /// The wheel could not be unpacked.
    #[error("failed to unpack {}: {}", wheel.display(), output.join(" / "))]
    UnpackFailed {
        /// The wheel.
        wheel: PathBuf,
        /// What Python said.
        output: Vec<String>,
    },
    /// Another process holds the set-up lock for too long.
    #[error("failed to get the set-up lock {} within {seconds} s: another kvlab is installing", path.display())]
    LockHeld {
        /// The lock file. It is released by the system when its holder ends, however it ends.
        path: PathBuf,
        /// How long was waited.
        seconds: u64,
    },
    /// A file operation failed.
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl SetupError {
    /// The one thing to do about it, as a sentence fragment for the command line to print.
    pub fn remedy(&self) -> String {
        match self {
            Self::BadLibrary { named_by, .. } => {
                format!("correct or leave out {named_by}; `kvlab setup` then finds or fetches a library")
            }
            Self::LibraryMissing { .. } | Self::ModelMissing { .. } => "run `kvlab setup`".to_owned(),
            Self::NoCacheFolder => "set KVLAB_CACHE to a folder that may be written".to_owned(),
            Self::UnsupportedPlatform { .. } => {
                "install ONNX Runtime by hand and give its library with --ort-lib".to_owned()
            }
            Self::NoPython { .. } => "install Python 3 with pip, then run `kvlab setup`".to_owned(),
            Self::NoPip { program, .. } => {
                format!("run `{program} -m ensurepip --upgrade`, then `kvlab setup`")
            }
            Self::PipFailed { wanted, .. } => {
                format!("see that `python3 -m pip download --no-deps {wanted}` works, then run `kvlab setup`")
            }
            Self::DigestMismatch { .. } | Self::UnpackFailed { .. } | Self::TimedOut { .. } => {
                "run `kvlab setup` again".to_owned()
            }
            Self::LockHeld { .. } => "wait for the other kvlab to end, then run `kvlab setup`".to_owned(),
            Self::Io { .. } => "set KVLAB_CACHE to a folder that may be written and has space".to_owned(),
        }
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
