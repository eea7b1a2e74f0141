//! The place of a trace: a finished recording takes it, and an old trace leaves it when the new one is whole.
//!
//! Until then the old trace stays where it is. The two change places by two renames, the old one to `<target>.replaced`, and what
//! bears that name is removed at the end. Whenever the process is killed, one of the two is whole and has a name that readers,
//! writers and `inspect` tell.

use super::Leftover;
use crate::table::sync_folder;
use crate::trace::TraceError;
use crate::trace::folder::{REPLACED, UNFINISHED, read_manifest_in, replaced, unfinished};
use crate::trace::manifest::MANIFEST;
use std::fs;
use std::path::Path;

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Whether `path` is a folder, reached through no link, that opens as a trace.
fn is_trace(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) && read_manifest_in(path).is_ok()
}

/// Refuses a place that a recording must not take.
pub(super) fn check(target: &Path, leftover: Leftover) -> Result<(), TraceError> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    for kept in [UNFINISHED, REPLACED] {
        if name.ends_with(kept) {
            let accepted = format!("a name that does not end in {kept}");
            return Err(TraceError::chunk("target", target.display(), accepted));
        }
    }
    let aside = replaced(target);
    if is_there(target) {
        let may_go = leftover == Leftover::Replace && is_trace(target);
        return if may_go {
            check_aside(&aside)
        } else {
            Err(TraceError::Exists { path: target.to_owned() })
        };
    }
    if !is_there(&aside) {
        return Ok(());
    }
    // Nothing between two renames is lost: the new recording goes on to its place, or the old trace stays.
    let goes_on = leftover == Leftover::Resume && is_there(&unfinished(target));
    if goes_on || leftover == Leftover::Replace {
        return check_aside(&aside);
    }
    Err(TraceError::Aside { path: aside, target: target.to_owned() })
}

/// Refuses to take for a replaced trace, which is removed, what is none.
fn check_aside(aside: &Path) -> Result<(), TraceError> {
    /// What a trace holds beside its manifest, which is removed first.
    const REST: [&str; 4] = ["facts", "manifest.sha256", "tensors", "weights"];
    let is_rest = || {
        let mut found = fs::read_dir(aside).into_iter().flatten();
        found.all(|entry| entry.is_ok_and(|entry| REST.iter().any(|name| entry.file_name() == *name)))
    };
    let is_folder = fs::symlink_metadata(aside).is_ok_and(|meta| meta.is_dir());
    if !is_there(aside) || is_trace(aside) || (is_folder && is_rest()) {
        return Ok(());
    }
    Err(TraceError::Exists { path: aside.to_owned() })
}

/// Removes a replaced trace, its manifest first: what is left of it is no trace.
fn remove_aside(aside: &Path) -> Result<(), TraceError> {
    if !is_there(aside) {
        return Ok(());
    }
    check_aside(aside)?;
    let manifest = aside.join(MANIFEST);
    if is_there(&manifest) {
        fs::remove_file(&manifest).map_err(|error| TraceError::io(&manifest, error))?;
    }
    fs::remove_dir_all(aside).map_err(|error| TraceError::io(aside, error))
}

/// Moves the finished recording at `root` to the place `target`, which was checked: an old trace there is replaced.
pub(super) fn take(root: &Path, target: &Path) -> Result<(), TraceError> {
    let aside = replaced(target);
    let move_to = |from: &Path, to: &Path| fs::rename(from, to).map_err(|error| TraceError::io(to, error));
    if is_there(target) {
        remove_aside(&aside)?;
        move_to(target, &aside)?;
    }
    if let Err(error) = move_to(root, target) {
        if is_there(&aside) {
            move_to(&aside, target)?;
        }
        return Err(error);
    }
    let parent = target.parent().unwrap_or(Path::new(""));
    sync_folder(parent).map_err(|error| TraceError::io(parent, error))?;
    remove_aside(&aside)
}
