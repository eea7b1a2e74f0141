//! The GGUF container: metadata, tensor table, tensors as `f32`.
//!
//! Responsible for versions 2 and 3 of the container and for undoing the block formats named in [`TensorType`]. Knows no
//! model family. Every length in a file is checked against the file before anything is allocated or read.

mod dequant;
mod error;
mod file;
mod k_quants;
mod reader;
mod tensor_type;
#[cfg(test)]
mod tests;
mod value;

pub use error::{GgufError, GgufErrorKind};
pub(crate) use file::{DenseTensor, GgufFile};
