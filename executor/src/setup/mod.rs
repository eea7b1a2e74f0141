//! Set-up: finding, and when needed fetching, the ONNX Runtime library and the demonstration model.
//!
//! Responsible for places, checks and the cache folder. Not responsible for loading what was found: that is
//! [`crate::Model`]. Nothing here opens a session, and a command that needs no model never comes here.

mod cuda;
mod digest;
mod error;
mod library;
mod lock;
mod model;
mod pins;
mod place;
mod python;
mod report;
mod wheel;

pub use cuda::{cuda_download_bytes, cuda_library, ensure_cuda};
pub(crate) use digest::{sha256_of_bytes, sha256_of_file};
pub use error::{Refused, SetupError};
pub use library::{LibraryFile, LibrarySource, ensure_library, find_library};
pub use model::{ModelFile, ensure_model, find_model};
pub(crate) use pins::CUDA_NEEDS;
pub use pins::{MODEL_PACKAGE, RUNTIME_MINOR_NEEDED, RUNTIME_PACKAGE};
pub use place::SetupOptions;
pub use report::{Found, SetupReport, check, check_cuda, setup};
