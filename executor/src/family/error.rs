//! What can be wrong with a model.

use std::{io, path::PathBuf};

use crate::gguf::GgufError;

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The GGUF container.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A kind of input that is not loaded.
    #[error("failed to load {}: it is {found}; supported are {supported}", path.display())]
    UnsupportedInput {
        /// The path given.
        path: PathBuf,
        /// What it seems to be.
        found: String,
        /// What can be loaded.
        supported: &'static str,
    },
    /// A family that is not known.
    #[error("failed to load {}: its family is {found:?}; supported are {}", path.display(), supported.join(", "))]
    UnsupportedFamily {
        /// The file that names the family.
        path: PathBuf,
        /// The family found.
        found: String,
        /// The known families.
        supported: Vec<&'static str>,
    },
    /// A feature of a known family that is not done.
    #[error("failed to load a {family} model: {feature} is {found}; supported is {supported}")]
    UnsupportedFeature {
        /// The family.
        family: &'static str,
        /// The feature.
        feature: &'static str,
        /// The value found.
        found: String,
        /// The values that work.
        supported: &'static str,
    },
    /// A shape that cannot be.
    #[error("failed to accept the model's {what}: it is {found}, accepted is {accepted}")]
    Shape {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: String,
        /// The values accepted.
        accepted: &'static str,
    },
    /// A configuration says otherwise than what lies beside it.
    #[error("failed to load {}: {key} is {found}, but {others}", path.display())]
    Contradiction {
        /// The file of the configuration.
        path: PathBuf,
        /// Its key.
        key: String,
        /// The value found.
        found: String,
        /// What tensors or the tokenizer say.
        others: String,
    },
    /// A weight that is not there.
    #[error("failed to load {}: tensor {tensor:?} is missing", path.display())]
    MissingTensor {
        /// The model.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A weight of another shape than the configuration says.
    #[error("failed to load {}: tensor {tensor:?} has shape {found:?}, the configuration needs {expected:?}", path.display())]
    TensorShape {
        /// The model.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape, outermost first.
        found: Vec<usize>,
        /// The shape needed.
        expected: Vec<usize>,
    },
    /// A weight that is not a number.
    #[error("failed to load {}: tensor {tensor:?} has {value} at element {element}", path.display())]
    NonFiniteWeight {
        /// The model.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Index in row-major order.
        element: usize,
        /// The value.
        value: f32,
    },
    /// A JSON file that does not say what it should.
    #[error("failed to read {}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A safetensors file that is damaged.
    #[error("failed to read {}: {what} is {found}, accepted is {accepted}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: String,
        /// Its value.
        found: String,
        /// The values accepted.
        accepted: String,
    },
    /// An exported graph that is damaged, or built in a way that is not understood.
    #[error("failed to read {}: {what} is {found}, accepted is {accepted}", path.display())]
    Onnx {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: String,
        /// What it is.
        found: String,
        /// What would do.
        accepted: String,
    },
    /// A file operation failed.
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl ModelError {
    pub(crate) fn shape(what: &'static str, found: impl ToString, accepted: &'static str) -> Self {
        Self::Shape { what, found: found.to_string(), accepted }
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
