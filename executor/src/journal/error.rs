//! What can be wrong with a journal.

use std::{
    io,
    path::{Path, PathBuf},
};

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Another process is running the same.
    #[error("{}: another execution is writing there", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// What is kept was made with other settings.
    #[error("{}: begun with `{part}` {begun}, now {now}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The first setting that differs.
        part: String,
        /// What it was begun with, as JSON.
        begun: String,
        /// What is asked for now.
        now: String,
    },
    /// A line that is not the last one is not what was written.
    #[error("{}: line {line}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A run that was made again came out otherwise.
    #[error("{}: the full cache's run on the problem {item} gave other tokens than the run that is kept", path.display())]
    NotRepeated {
        /// The file.
        path: PathBuf,
        /// Id of the problem.
        item: String,
    },
}

impl JournalError {
    /// An error of the system at `path`.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path: path.clone(), source }
    }

    /// The first setting that differs, in the order of `now`.
    pub(super) fn mismatch(path: &Path, begun: &serde_json::Value, now: &serde_json::Value) -> Self {
        let nothing = serde_json::Value::Null;
        let (mut begun, mut now) = (begun, now);
        let mut part: Vec<&str> = Vec::new();
        while let (Some(before), Some(after)) = (begun.as_object(), now.as_object()) {
            let mut keys = after.keys().chain(before.keys());
            let Some(key) = keys.find(|key| before.get(*key) != after.get(*key)) else { break };
            part.push(key);
            (begun, now) = (before.get(key).unwrap_or(&nothing), after.get(key).unwrap_or(&nothing));
        }
        let (path, part) = (path.to_owned(), part.join("."));
        Self::Mismatch { path, part, begun: begun.to_string(), now: now.to_string() }
    }

    /// What to do about it.
    pub(crate) fn remedy(&self) -> Option<String> {
        let anew = "--fresh throws away what is kept and begins anew";
        match self {
            Self::Io { .. } | Self::Busy { .. } => None,
            Self::Mismatch { part, begun, .. } => {
                let value = begun.trim_matches('"');
                let as_begun = match part.as_str() {
                    "scenario" => format!("give the scenario `{value}`, or another --out"),
                    "mode" if value == "with answers" => "leave out --forced-only".to_owned(),
                    "mode" if value == "forced only" => "give --forced-only".to_owned(),
                    "mode" => format!("give --mode {value}"),
                    "max_new_tokens" => format!("give --max-new-tokens {value}"),
                    "runtime.threads" => format!("give --threads {value}"),
                    "runtime.provider" => format!("give --ep {value}"),
                    _ if part.starts_with("model") => "give the model that it was begun with".to_owned(),
                    _ => "give the command as it was begun".to_owned(),
                };
                Some(format!("{as_begun}, to go on with it; {anew}"))
            }
            Self::Damaged { .. } => {
                Some(format!("remove what follows the line before, or begin anew: {anew}"))
            }
            Self::NotRepeated { .. } => {
                Some(format!("runs do not repeat on this device, so that it cannot go on: {anew}"))
            }
        }
    }
}
