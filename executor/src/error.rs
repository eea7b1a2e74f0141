//! The error of the crate: one variant per room.

use kvlab_sim::{policy::PolicyError, table::TableError, trace::TraceError};

use crate::{
    closed_loop::ClosedLoopError, decode::DecodeError, embedded::EmbeddedError, family::ModelError,
    fidelity::FidelityError, journal::JournalError, problems::ProblemError, record::RecordError,
    runtime::RuntimeError, setup::SetupError, text::TextError,
};

/// Why the executor stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// Finding or fetching.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// ONNX Runtime.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The model's files.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model inside the program.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// Texts and chats.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Decoding.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A problem file.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A recording that cannot go on.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// An execution that cannot begin or go on.
    #[error(transparent)]
    ClosedLoop(#[from] ClosedLoopError),
    /// Finished runs that are kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A replay beside an execution.
    #[error(transparent)]
    Fidelity(#[from] FidelityError),
    /// A policy cannot decide.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A result row could not be stored.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The trace that is written.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl ExecutorError {
    /// The one thing to do about it, where there is one, for the command line to print.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Setup(error) => Some(error.remedy()),
            Self::Journal(error) => error.remedy(),
            Self::Runtime(RuntimeError::Load { .. } | RuntimeError::TooOld { .. }) => {
                Some("leave out --ort-lib and ORT_DYLIB_PATH, and run `kvlab setup`".to_owned())
            }
            Self::Text(TextError::NoTemplate { .. }) => Some(
                "problem files are asked as chats: take a model with a chat template (`--model smollm2`), or leave out --problems for the problems that a model was made for"
                    .to_owned(),
            ),
            Self::Runtime(RuntimeError::CudaUnavailable { .. }) => {
                Some(
                    "`kvlab setup --cuda` installs the GPU runtime with NVIDIA's libraries; without a GPU use --ep cpu, or --ep auto"
                        .to_owned(),
                )
            }
            _ => None,
        }
    }
}
