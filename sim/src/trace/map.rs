//! Memory-mapped files: the one place in this crate that needs `unsafe`.

use super::TraceError;
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;

/// Maps `file` for reading. An empty file maps to nothing.
///
/// Bytes are copied out and checked, never handed on as references, so a file that changes under the map can give
/// wrong numbers (which the digests are there to find) but no dangling view. A file that is cut short while it is
/// mapped ends the process, as with every memory map: traces are not to be edited in place while they are read.
///
/// # Errors
/// When the system refuses.
pub(crate) fn map(file: &File, path: &Path) -> Result<Mmap, TraceError> {
    // SAFETY: the map is private to the caller and read-only; every access goes through bounds-checked slices of
    // bytes, for which any content is valid. That no one cuts the file meanwhile is stated above.
    let mapped = unsafe { Mmap::map(file) };
    mapped.map_err(|error| TraceError::io(path, error))
}
