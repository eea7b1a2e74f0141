//! All contact with ONNX Runtime. No other module names `ort`.
//!
//! [`environment`](self) starts the library, once per process, and chooses the provider; a [`Session`] runs a graph. What it gives comes to
//! the host as a [`Tensor`] or stays where it was made as a [`DeviceTensor`], and [`Traffic`] counts what crosses. [`Foreign`] runs graphs that
//! somebody else made.

mod cuda;
mod environment;
mod error;
mod foreign;
mod session;
mod tensor;
mod traffic;

pub use environment::{Provider, ProviderChoice, RuntimeReport};
pub use error::RuntimeError;
pub use traffic::Crossed;

pub(crate) use environment::Runtime;
pub(crate) use foreign::{Foreign, ForeignInput};
pub(crate) use session::{Feed, Named, Session};
pub(crate) use tensor::{DeviceMemory, DeviceTensor, Tensor};
pub(crate) use traffic::Traffic;
