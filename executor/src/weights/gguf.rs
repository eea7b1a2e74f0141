//! Tensors of a GGUF file.

use std::path::Path;

use super::{agreement::Shapes, names::Spelling, source::TensorFile};
use crate::{
    family::ModelError,
    gguf::{DenseTensor, GgufFile},
};

/// The tensors of one GGUF file.
#[derive(Debug)]
pub(crate) struct GgufTensors<'a>(pub(crate) &'a GgufFile);

impl GgufTensors<'_> {
    /// The shapes of all tensors.
    pub(crate) fn shapes(&self) -> Shapes {
        self.0.tensors().iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect()
    }
}

impl TensorFile for GgufTensors<'_> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn spelling(&self) -> Spelling {
        Spelling::Gguf
    }

    fn read(&self, name: &str) -> Result<Option<DenseTensor>, ModelError> {
        Ok(self.0.read(name)?)
    }
}
