//! What ONNX Runtime refused.

use std::path::PathBuf;

use crate::setup::RUNTIME_MINOR_NEEDED;

/// What ONNX Runtime refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The library cannot be loaded.
    #[error("failed to load the ONNX Runtime library {}: {why}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// The loader's reason.
        why: String,
    },
    /// The library is too old.
    #[error("failed to use the ONNX Runtime library {}: its version is {found}, needed is 1.{RUNTIME_MINOR_NEEDED} or newer", path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// The process already runs with another library.
    #[error("failed to load the ONNX Runtime library {}: this process already runs with {}", asked.display(), running.display())]
    OtherLibrary {
        /// The library asked for now.
        asked: PathBuf,
        /// The one that runs.
        running: PathBuf,
    },
    /// The process already runs with another number of threads.
    #[error("failed to use {asked} threads: this process already runs with {running}")]
    OtherThreads {
        /// Threads asked for now.
        asked: usize,
        /// Threads that run.
        running: usize,
    },
    /// CUDA was asked for and does not work.
    #[error("failed to use CUDA: {why}")]
    CudaUnavailable {
        /// The runtime's reason.
        why: String,
    },
    /// A call failed.
    #[error("failed to {action}: {why}")]
    Call {
        /// What was tried.
        action: &'static str,
        /// The runtime's message.
        why: String,
    },
    /// An output has another shape or type than its graph says.
    #[error("failed to read output {output:?} of a session: {why}")]
    Output {
        /// The output.
        output: String,
        /// What is wrong with it.
        why: String,
    },
}

impl RuntimeError {
    pub(super) fn call<R>(action: &'static str) -> impl FnOnce(ort::Error<R>) -> Self {
        move |error| Self::Call { action, why: error.message().to_owned() }
    }
}
