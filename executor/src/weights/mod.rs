//! Weights under canonical names, whatever file they came from.
//!
//! Responsible for names, shapes, row order and finiteness. Weights are read layer by layer, so that a model never
//! stands in memory twice.

mod gguf;
mod names;
mod safetensors;
mod source;

pub(crate) use gguf::GgufTensors;
pub(crate) use names::Spelling;
pub(crate) use safetensors::SafetensorsTensors;
pub(crate) use source::{FileWeights, LayerWeights, TensorFile, WeightSource};
