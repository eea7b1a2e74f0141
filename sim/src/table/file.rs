//! Files that are either whole or not there: written under a temporary sibling name, synced, renamed.
//!
//! It knows nothing of what is inside them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes `bytes` to `path` so that a reader sees the old content or the new, never a part; also when several processes write there.
///
/// # Errors
/// When the system refuses; the temporary sibling is removed then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    staged(path, bytes)?.persist(path).map_err(|error| error.error)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Writes all of `files` (name and content) into `folder`, which is made when it is not there, and removes the files `obsolete`: all
/// of it, or nothing when something cannot be written.
///
/// The last file is the one that vouches for the others: an old one is removed before the first new file takes its place, and the new
/// one comes last. Of several processes that write there at once each leaves all of its files, the last one's on top.
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
    let stage = |(name, content): &(String, Vec<u8>)| {
        let path = folder.join(name);
        let file = staged(&path, content);
        file.map(|file| (file, path.clone())).map_err(|error| (path, error))
    };
    // Those that were made go when one cannot be.
    let whole: Vec<(NamedTempFile, PathBuf)> =
        files.iter().map(stage).collect::<Result<_, _>>().inspect_err(|_| {
            if is_new {
                // The first error is the one to report.
                drop(fs::remove_dir(folder));
            }
        })?;
    let last = files.last().map(|(name, _)| name);
    for name in obsolete.iter().chain(last) {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((path, error)),
            _ => {}
        }
    }
    for (file, path) in whole {
        file.persist(&path).map_err(|error| (path.clone(), error.error))?;
    }
    sync_folder(folder).map_err(|error| (folder.to_owned(), error))
}

/// `bytes` beside `path` under a name that no other process has, synced; removed when it is dropped.
fn staged(path: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".writing-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What others may read is decided by the umask, as for every other file.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
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

    /// Twelve writers at once, twenty times: none fails, and what is left is one writer's files and nothing else.
    #[test]
    fn writers_at_once_leave_whole_files() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            std::thread::scope(|scope| {
                for writer in 0..12 {
                    let target = folder.path();
                    scope.spawn(move || {
                        let text = vec![b'a' + writer; 5000];
                        let files = [("a".to_owned(), text.clone()), ("b".to_owned(), text)];
                        write_together(target, &files, &["old".to_owned()]).unwrap();
                    });
                }
            });
            for name in ["a", "b"] {
                let text = fs::read(folder.path().join(name)).unwrap();
                assert!(text.len() == 5000 && text.iter().all(|byte| *byte == text[0]));
            }
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        }
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
