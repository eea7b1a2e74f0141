//! Files that are either whole or not there: written under a temporary sibling name, synced, renamed.
//!
//! It knows nothing of what is inside them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path` so that a reader sees the old content or the new, never a part.
///
/// # Errors
/// When the system refuses; the temporary sibling is removed then.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = sibling(path);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        // The first error is the one to report; a leftover under the temporary name is harmless.
        drop(fs::remove_file(&temporary));
    })?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Makes the names in `folder` durable. An empty path is the current folder.
///
/// # Errors
/// When the system refuses.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // Only Unix lets a folder be opened and synced; elsewhere the rename alone has to do.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

fn sibling(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("taken");
        fs::create_dir_all(target.join("child")).unwrap();
        assert!(write_whole(&target, b"text").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_second_write_replaces_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        write_whole(&target, b"long text").unwrap();
        write_whole(&target, b"short").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"short");
    }
}
