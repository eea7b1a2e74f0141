//! Finding the ONNX Runtime library.
//!
//! A library that was named by hand is taken or refused; it is never silently replaced by another. The library is not
//! loaded here: only its kind, its size and the version in its name are looked at.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    error::{Refused, SetupError},
    pins::{self, RUNTIME_MINOR_NEEDED},
    place::SetupOptions,
    python::Python,
    wheel,
};
use crate::progress::Progress;

/// Which place a library was found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LibrarySource {
    /// Named on the command line.
    Flag,
    /// Named by `ORT_DYLIB_PATH`.
    Variable,
    /// kvlab's cache folder.
    Cache,
    /// The active Python's packages.
    SitePackages,
}

/// A library that looks usable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LibraryFile {
    /// Where it is.
    pub path: PathBuf,
    /// The place it was found in.
    pub source: LibrarySource,
    /// The version in its name, such as `1.31.1`, when the name carries one.
    pub version: Option<String>,
}

/// Finds a library without fetching anything.
///
/// # Errors
/// A library named by hand that cannot be used, or no library in any place.
pub fn find_library(options: &SetupOptions) -> Result<LibraryFile, SetupError> {
    let mut looked_in = Vec::new();
    let by_hand = [
        ("--ort-lib", LibrarySource::Flag, &options.ort_lib),
        ("ORT_DYLIB_PATH", LibrarySource::Variable, &options.ort_dylib_path),
    ];
    for (named_by, source, path) in by_hand {
        match path {
            Some(path) => return named(named_by, source, path),
            None => looked_in.push(Refused { place: named_by.to_owned(), why: "not given".to_owned() }),
        }
    }
    match in_cache(options) {
        Ok(path) => {
            return Ok(LibraryFile { version: version_in_name(&path), path, source: LibrarySource::Cache });
        }
        Err(why) => looked_in.push(Refused { place: "kvlab's cache".to_owned(), why }),
    }
    match in_site_packages(options) {
        Ok(found) => return Ok(found),
        Err(mut refused) => looked_in.append(&mut refused),
    }
    Err(SetupError::LibraryMissing { looked_in })
}

/// Finds a library, or fetches the pinned one into the cache.
///
/// # Errors
/// A library named by hand that cannot be used, or a fetch that failed: see [`SetupError`].
pub fn ensure_library(options: &SetupOptions, progress: &dyn Progress) -> Result<LibraryFile, SetupError> {
    match find_library(options) {
        Err(SetupError::LibraryMissing { .. }) => {}
        other => return other,
    }
    let wheel = pins::runtime()
        .ok_or(SetupError::UnsupportedPlatform { os: std::env::consts::OS, arch: std::env::consts::ARCH })?;
    let path = wheel::ensure(options.cache_folder()?, &wheel, &Python::new(&options.python), progress)?;
    Ok(LibraryFile { version: version_in_name(&path), path, source: LibrarySource::Cache })
}

fn named(named_by: &'static str, source: LibrarySource, path: &Path) -> Result<LibraryFile, SetupError> {
    // The loader looks for a relative path beside the program; people mean the folder they are in.
    let absolute = std::path::absolute(path).map_err(SetupError::io("resolve", path))?;
    match refusal(&absolute) {
        None => Ok(LibraryFile { version: version_in_name(&absolute), path: absolute, source }),
        Some(why) => Err(SetupError::BadLibrary { named_by, path: path.to_owned(), why }),
    }
}

fn in_cache(options: &SetupOptions) -> Result<PathBuf, String> {
    let cache =
        options.cache.as_deref().ok_or("no cache folder: KVLAB_CACHE, XDG_CACHE_HOME and HOME are unset")?;
    let wheel = pins::runtime().ok_or("no library is pinned for this platform")?;
    wheel::cached(cache, &wheel)
}

/// The newest usable library among the folders of the active Python.
fn in_site_packages(options: &SetupOptions) -> Result<LibraryFile, Vec<Refused>> {
    let python = format!("packages of {}", options.python.display());
    let folders = match Python::new(&options.python).site_packages() {
        Ok(folders) => folders,
        Err(error) => return Err(vec![Refused { place: python, why: error.to_string() }]),
    };
    let mut refused = Vec::new();
    for folder in folders {
        let capi = folder.join("onnxruntime").join("capi");
        let mut libraries: Vec<PathBuf> = match capi.read_dir() {
            Ok(entries) => {
                entries.filter_map(Result::ok).map(|e| e.path()).filter(|p| is_runtime_name(p)).collect()
            }
            Err(_) => Vec::new(),
        };
        libraries.sort();
        if libraries.is_empty() {
            refused.push(Refused {
                place: python.clone(),
                why: format!("no onnxruntime in {}", folder.display()),
            });
        }
        for path in libraries {
            let version = version_in_name(&path);
            let why = refusal(&path).or_else(|| too_old(version.as_deref()));
            match why {
                None => return Ok(LibraryFile { path, source: LibrarySource::SitePackages, version }),
                Some(why) => refused.push(Refused { place: path.display().to_string(), why }),
            }
        }
    }
    Err(refused)
}

fn is_runtime_name(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.starts_with("libonnxruntime.") && !name.contains("providers")
}

/// `1.31.1` from `libonnxruntime.so.1.31.1` or `libonnxruntime.1.31.1.dylib`.
fn version_in_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let parts: Vec<&str> = name.split('.').filter(|part| part.parse::<u32>().is_ok()).collect();
    (parts.len() >= 2).then(|| parts.join("."))
}

fn too_old(version: Option<&str>) -> Option<String> {
    let minor: u32 = version?.split('.').nth(1)?.parse().ok()?;
    (minor < RUNTIME_MINOR_NEEDED)
        .then(|| format!("version {} is older than 1.{RUNTIME_MINOR_NEEDED}", version.unwrap_or_default()))
}

/// Why a path cannot be a shared library of this system, if so. Handing something else to the system's loader is how
/// programs hang.
fn refusal(path: &Path) -> Option<String> {
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(error) => return Some(error.to_string()),
    };
    if !meta.is_file() {
        return Some("not a regular file".to_owned());
    }
    let mut magic = [0_u8; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    if let Err(error) = read {
        return Some(format!("cannot be read as a library: {error}"));
    }
    if is_library_magic(magic) {
        return None;
    }
    let shown: Vec<String> = magic.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("not a shared library: begins with bytes {}", shown.join(" ")))
}

fn is_library_magic(magic: [u8; 4]) -> bool {
    match std::env::consts::OS {
        // Mach-O, 64 bits, little endian; and the fat form.
        "macos" => magic == [0xcf, 0xfa, 0xed, 0xfe] || magic == [0xca, 0xfe, 0xba, 0xbe],
        "windows" => magic.starts_with(b"MZ"),
        _ => magic == *b"\x7fELF",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> SetupOptions {
        SetupOptions {
            ort_lib: None,
            ort_dylib_path: None,
            cache: None,
            python: PathBuf::from("/nonexistent/python"),
        }
    }

    #[test]
    fn a_wrong_path_is_refused_with_flag_path_and_reason() {
        let error =
            find_library(&SetupOptions { ort_lib: Some("/nonexistent.so".into()), ..options() }).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("--ort-lib") && text.contains("/nonexistent.so") && text.contains("No such file"),
            "{text}"
        );
        let error =
            find_library(&SetupOptions { ort_dylib_path: Some("/".into()), ..options() }).unwrap_err();
        assert!(
            error.to_string().contains("ORT_DYLIB_PATH") && error.to_string().contains("not a regular file")
        );
    }

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"hello").unwrap();
        let error =
            find_library(&SetupOptions { ort_lib: Some(file.path().into()), ..options() }).unwrap_err();
        assert!(error.to_string().contains("begins with bytes 68 65 6c 6c"), "{error}");
        std::fs::write(file.path(), b"").unwrap();
        assert!(find_library(&SetupOptions { ort_lib: Some(file.path().into()), ..options() }).is_err());
    }

    #[test]
    fn all_places_are_listed_when_nothing_is_found() {
        let Err(SetupError::LibraryMissing { looked_in }) = find_library(&options()) else {
            panic!("found one")
        };
        let places: Vec<&str> = looked_in.iter().map(|refused| refused.place.as_str()).collect();
        assert_eq!(
            places,
            ["--ort-lib", "ORT_DYLIB_PATH", "kvlab's cache", "packages of /nonexistent/python"]
        );
    }

    #[test]
    fn versions_come_from_names() {
        let version = |name: &str| version_in_name(Path::new(name));
        assert_eq!(version("libonnxruntime.so.1.31.1").as_deref(), Some("1.31.1"));
        assert_eq!(version("libonnxruntime.1.31.1.dylib").as_deref(), Some("1.31.1"));
        assert_eq!(version("libonnxruntime.so"), None);
        assert!(too_old(Some("1.22.0")).is_some());
        assert!(too_old(Some("1.24.0")).is_none());
        assert!(!is_runtime_name(Path::new("libonnxruntime_providers_shared.so")));
    }
}
