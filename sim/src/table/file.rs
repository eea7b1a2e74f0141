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

/// Writes all of `files` (name and content) into `folder`, which is made when it is not there, and removes the files `obsolete`: all
/// of it, or nothing when something cannot be written.
///
/// The last file is the one that vouches for the others: an old one is removed before the first new file takes its place, and the new
/// one comes last.
///
/// # Errors
/// When the system refuses, with the path. Nothing of this call is left then, and what was there is as it was unless renaming itself
/// failed.
pub fn write_together(
    folder: &Path,
    files: &[(String, Vec<u8>)],
    obsolete: &[String],
) -> Result<(), (PathBuf, io::Error)> {
    let is_new = !folder.exists();
    fs::create_dir_all(folder).map_err(|error| (folder.to_owned(), error))?;
    let staged = stage(folder, files);
    if let Err(error) = staged {
        for (name, _) in files {
            // The first error is the one to report.
            drop(fs::remove_file(sibling(&folder.join(name))));
        }
        if is_new {
            drop(fs::remove_dir(folder));
        }
        return Err(error);
    }
    let last = files.last().map(|(name, _)| name);
    for name in obsolete.iter().chain(last) {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((path, error)),
            _ => {}
        }
    }
    for (name, _) in files {
        let path = folder.join(name);
        fs::rename(sibling(&path), &path).map_err(|error| (path.clone(), error))?;
    }
    sync_folder(folder).map_err(|error| (folder.to_owned(), error))
}

/// Writes and syncs all files under their temporary names.
fn stage(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<(), (PathBuf, io::Error)> {
    for (name, content) in files {
        let path = folder.join(name);
        let temporary = sibling(&path);
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
        written.map_err(|error| (path, error))?;
    }
    Ok(())
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
    fn files_are_written_together_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let files = |a: &str, b: &str| vec![("a".to_owned(), a.into()), ("b".to_owned(), b.into())];
        let target = folder.path().join("new");
        write_together(&target, &files("1", "2"), &[]).unwrap();
        fs::write(target.join("old"), "x").unwrap();
        // A name that cannot be written: what was there stays, and no temporary file does.
        let bad = [files("3", "4"), vec![("no/such".to_owned(), Vec::new())]].concat();
        let (path, _) = write_together(&target, &bad, &["old".to_owned()]).unwrap_err();
        assert_eq!(path, target.join("no/such"));
        assert_eq!(
            (fs::read(target.join("a")).unwrap(), fs::read_dir(&target).unwrap().count()),
            (b"1".to_vec(), 3)
        );
        write_together(&target, &files("3", "4"), &["old".to_owned()]).unwrap();
        assert_eq!(
            (fs::read(target.join("b")).unwrap(), fs::read_dir(&target).unwrap().count()),
            (b"4".to_vec(), 2)
        );
        let other = folder.path().join("other");
        assert!(write_together(&other, &bad, &[]).is_err() && !other.exists());
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
