//! What is there and what is missing, for `kvlab setup` and `kvlab setup --check`.

use std::path::PathBuf;

use serde::Serialize;

use super::{
    cuda,
    error::SetupError,
    library::{LibrarySource, ensure_library, find_library},
    model::{ensure_model, find_model},
    pins,
    place::SetupOptions,
    wheel,
};
use crate::progress::Progress;

/// One thing that set-up cares about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// What it is.
    pub what: &'static str,
    /// Where it is; absent when missing.
    pub path: Option<PathBuf>,
    /// Its version or package.
    pub version: Option<String>,
    /// The place it was found in.
    pub source: Option<LibrarySource>,
    /// Why it is missing or not to be trusted, with what was looked at.
    pub problem: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Found {
    fn missing(what: &'static str, error: &SetupError) -> Self {
        let (problem, remedy) = (Some(error.to_string()), Some(error.remedy()));
        Self { what, path: None, version: None, source: None, problem, remedy }
    }
}

/// The state of everything that set-up cares about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetupReport {
    /// The cache folder, if one can be chosen.
    pub cache: Option<PathBuf>,
    /// The ONNX Runtime library.
    pub library: Found,
    /// The demonstration model.
    pub model: Found,
    /// The GPU runtime, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Found>,
}

impl SetupReport {
    /// Nothing is missing or damaged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let all = [&self.library, &self.model].into_iter().chain(&self.cuda);
        all.into_iter().all(|found| found.problem.is_none())
    }
}

/// Looks at everything, fetches nothing. Files in the cache are read in full and compared with their pinned digests.
#[must_use]
pub fn check(options: &SetupOptions) -> SetupReport {
    let library = match find_library(options) {
        Ok(found) => {
            let pinned = pins::runtime().filter(|wheel| {
                options.cache.as_ref().is_some_and(|cache| found.path.starts_with(cache.join(wheel.folder)))
            });
            let damage = pinned.and_then(|wheel| wheel::verify(&found.path, wheel.main.sha256).err());
            Found {
                what: "ONNX Runtime",
                path: Some(found.path),
                version: found.version,
                source: Some(found.source),
                problem: damage.as_ref().map(ToString::to_string),
                remedy: damage.map(|_| "remove its folder and run `kvlab setup`".to_owned()),
            }
        }
        Err(error) => Found::missing("ONNX Runtime", &error),
    };
    let model = match find_model(options) {
        Ok(found) => {
            let damage = wheel::verify(&found.path, pins::MODEL.main.sha256).err();
            Found {
                what: "demonstration model",
                path: Some(found.path),
                version: Some(found.package.to_owned()),
                source: Some(LibrarySource::Cache),
                problem: damage.as_ref().map(ToString::to_string),
                remedy: damage.map(|_| "remove its folder and run `kvlab setup`".to_owned()),
            }
        }
        Err(error) => Found::missing("demonstration model", &error),
    };
    SetupReport { cache: options.cache.clone(), library, model, cuda: None }
}

/// The state of the GPU runtime. Sizes are compared, not digests: they were when it was fetched.
#[must_use]
pub fn check_cuda(options: &SetupOptions) -> Found {
    let found = match &options.cache {
        Some(cache) => cuda::cached(cache),
        None => Err(SetupError::NoCacheFolder.to_string()),
    };
    let (library, problem) = match found {
        Ok(library) => (Some(library), None),
        Err(problem) => (None, Some(problem)),
    };
    Found {
        what: "GPU runtime",
        path: library.as_ref().map(|library| library.path.clone()),
        version: library.as_ref().and_then(|library| library.version.clone()),
        source: library.as_ref().map(|library| library.source),
        remedy: problem.as_ref().map(|_| "run `kvlab setup --cuda`".to_owned()),
        problem,
    }
}

/// Finds or fetches everything, then reports.
///
/// # Errors
/// The first thing that cannot be had.
pub fn setup(options: &SetupOptions, progress: &dyn Progress) -> Result<SetupReport, SetupError> {
    ensure_library(options, progress)?;
    ensure_model(options, progress)?;
    Ok(check(options))
}
