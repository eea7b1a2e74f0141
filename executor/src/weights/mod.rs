//! Weights under canonical names, whatever file they came from.
//!
//! Responsible for names, shapes, row order and finiteness. Weights are read layer by layer, so that a model never
//! stands in memory twice.

mod agreement;
mod gguf;
mod names;
mod safetensors;
mod source;

pub(crate) use agreement::{ConfigKeys, check_folder, check_gguf, check_tokenizer};
pub(crate) use gguf::GgufTensors;
pub(crate) use names::Spelling;
pub(crate) use safetensors::SafetensorsTensors;
pub(crate) use source::{FileWeights, LayerWeights, TensorFile, WeightSource};
