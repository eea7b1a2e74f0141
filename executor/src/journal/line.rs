//! Lines of a journal: a digest, a blank, JSON, an end of line.

use std::path::Path;

use kvlab_sim::results::sha256_hex;
use serde::Deserialize;

use super::JournalError;

/// Hex digits of the digest before the text.
const DIGITS: usize = 16;

/// What the file holds.
pub(super) struct Lines<'a> {
    /// Texts of the whole lines.
    pub(super) lines: Vec<&'a str>,
    /// Bytes of them, ends of lines included.
    pub(super) whole: usize,
}

/// The line with this text.
pub(super) fn of(text: &str) -> Vec<u8> {
    format!("{} {text}\n", &sha256_hex(text.as_bytes())[..DIGITS]).into_bytes()
}

/// The whole lines in `bytes`: all but a last one that was cut off or damaged.
///
/// # Errors
/// Another one is damaged.
pub(super) fn read<'a>(path: &Path, bytes: &'a [u8]) -> Result<Lines<'a>, JournalError> {
    let mut read = Lines { lines: Vec::new(), whole: 0 };
    for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let is_last = read.whole + line.len() == bytes.len();
        match text(line) {
            Ok(text) => {
                read.lines.push(text);
                read.whole += line.len();
            }
            Err(_) if is_last => break,
            Err(why) => return Err(JournalError::Damaged { path: path.to_owned(), line: at + 1, why }),
        }
    }
    Ok(read)
}

/// The text of a line whose digest is right.
fn text(line: &[u8]) -> Result<&str, String> {
    let line = line.strip_suffix(b"\n").ok_or("it has no end")?;
    let line = str::from_utf8(line).map_err(|_| "it is no UTF-8 text")?;
    let (digest, text) = line.split_once(' ').ok_or("expected a digest, a blank and JSON")?;
    let expected = &sha256_hex(text.as_bytes())[..DIGITS];
    if digest == expected {
        Ok(text)
    } else {
        Err(format!("its text has the digest {expected}, and the line begins with {digest:?}"))
    }
}

/// The content of the line `number` (from 1).
pub(super) fn parsed<'a, T: Deserialize<'a>>(
    path: &Path,
    number: usize,
    text: &'a str,
) -> Result<T, JournalError> {
    serde_json::from_str(text).map_err(|error| JournalError::Damaged {
        path: path.to_owned(),
        line: number,
        why: error.to_string(),
    })
}
