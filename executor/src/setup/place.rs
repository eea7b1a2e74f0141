//! Where to look: options, and the cache folder.

use std::{
    env,
    path::{Path, PathBuf},
};

use super::error::SetupError;

/// Where set-up looks. [`SetupOptions::from_env`] reads the environment once; everything after depends on this
/// value only.
#[derive(Debug, Clone)]
pub struct SetupOptions {
    /// A library named on the command line (`--ort-lib`).
    pub ort_lib: Option<PathBuf>,
    /// A library named by the variable `ORT_DYLIB_PATH`.
    pub ort_dylib_path: Option<PathBuf>,
    /// kvlab's cache folder, if one could be chosen.
    pub cache: Option<PathBuf>,
    /// The Python program that is asked for its packages and runs pip.
    pub python: PathBuf,
}

impl SetupOptions {
    /// Reads `ORT_DYLIB_PATH`, and chooses the cache folder: `$KVLAB_CACHE`, else `$XDG_CACHE_HOME/kvlab`, else
    /// `$HOME/.cache/kvlab`. Empty variables count as unset.
    #[must_use]
    pub fn from_env() -> Self {
        let path = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = path("KVLAB_CACHE")
            .or_else(|| path("XDG_CACHE_HOME").map(|base| base.join("kvlab")))
            .or_else(|| path("HOME").map(|home| home.join(".cache").join("kvlab")));
        Self {
            ort_lib: None,
            ort_dylib_path: path("ORT_DYLIB_PATH"),
            cache,
            python: PathBuf::from("python3"),
        }
    }

    pub(crate) fn cache_folder(&self) -> Result<&Path, SetupError> {
        self.cache.as_deref().ok_or(SetupError::NoCacheFolder)
    }
}
