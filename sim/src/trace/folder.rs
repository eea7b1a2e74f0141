//! Files inside a trace folder: opened without leaving it, hashed, and the manifest read and written.

use super::manifest::{MANIFEST, MANIFEST_DIGEST, Manifest};
use super::{PathFault, TRACE_VERSION, TraceError, TraceVersion, check};
use crate::table::write_whole;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Larger manifests are refused unread: a million sequences need less.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// Suffix of the folder that an unfinished recording lives in.
pub(crate) const UNFINISHED: &str = ".partial";

/// Suffix of the folder that an old trace is moved to while a new one takes its place.
pub(crate) const REPLACED: &str = ".replaced";

/// The folder that a recording to `target` writes into until it is finished.
pub(crate) fn unfinished(target: &Path) -> PathBuf {
    beside(target, UNFINISHED)
}

/// The folder that the trace at `target` is moved to while a new one takes its place.
pub(crate) fn replaced(target: &Path) -> PathBuf {
    beside(target, REPLACED)
}

fn beside(target: &Path, suffix: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    target.with_file_name(name)
}

/// What interrupted recordings left beside the place `target` of a trace: folders that are there, each with what it is.
#[must_use]
pub fn leftovers(target: &Path) -> Vec<(PathBuf, &'static str)> {
    let known = [
        (unfinished(target), "an unfinished recording"),
        (replaced(target), "a trace that was replaced, or was about to be"),
    ];
    known.into_iter().filter(|(path, _)| fs::symlink_metadata(path).is_ok()).collect()
}

/// Removes what a writer that was dropped left: for work that is begun anew rather than resumed.
pub(crate) fn discard_unfinished(target: &Path) {
    // The error that stopped the work is the one to report.
    drop(fs::remove_dir_all(unfinished(target)));
}

/// Lower-case hex of a digest.
pub(crate) fn hex(digest: impl AsRef<[u8]>) -> String {
    use std::fmt::Write as _;
    digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// SHA-256 (hex) of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

/// Size and SHA-256 (hex) of a file, read in pieces.
pub(crate) fn sha256_of_file(file: &mut File, path: &Path) -> Result<(u64, String), TraceError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0;
    loop {
        match file.read(&mut buffer).map_err(|error| TraceError::io(path, error))? {
            0 => return Ok((size, hex(hash.finalize()))),
            read => {
                hash.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
}

/// Opens the regular file `inside`, a checked path, of the trace at `root`. Links are refused, not followed.
pub(crate) fn open_inside(root: &Path, inside: &str) -> Result<(File, PathBuf), TraceError> {
    let refuse = |fault| TraceError::Path {
        manifest: root.join(MANIFEST),
        place: "a file of the trace".to_owned(),
        found: inside.to_owned(),
        fault,
    };
    let mut path = root.to_owned();
    for name in inside.split('/') {
        path.push(name);
        let found = fs::symlink_metadata(&path).map_err(|error| TraceError::io(&path, error))?;
        if found.file_type().is_symlink() {
            return Err(refuse(PathFault::Link));
        }
    }
    // Asked before opening: opening a pipe would wait for a writer.
    if !fs::symlink_metadata(&path).map_err(|error| TraceError::io(&path, error))?.is_file() {
        return Err(refuse(PathFault::NotAFile));
    }
    let file = File::open(&path).map_err(|error| TraceError::io(&path, error))?;
    Ok((file, path))
}

fn read_small(root: &Path, inside: &str, most: u64) -> Result<(Vec<u8>, PathBuf), TraceError> {
    let (file, path) = open_inside(root, inside)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| TraceError::io(&path, error))?;
    if bytes.len() as u64 > most {
        return Err(TraceError::malformed(&path, "file", "a longer file", format!("at most {most} bytes")));
    }
    Ok((bytes, path))
}

/// Reads and checks the manifest of the trace at `root`; also gives its digest.
///
/// # Errors
/// When it is not there, damaged, unfinished, of another version, or not accepted.
pub(crate) fn read_manifest(root: &Path) -> Result<(Manifest, String), TraceError> {
    let is_unfinished = root.file_name().is_some_and(|name| name.to_string_lossy().ends_with(UNFINISHED));
    if is_unfinished {
        return Err(TraceError::Incomplete { path: root.to_owned() });
    }
    // Who asks for a trace that was never finished is told where what there is of it lies.
    if fs::symlink_metadata(root).is_err() {
        if replaced(root).is_dir() {
            return Err(TraceError::Aside { path: replaced(root), target: root.to_owned() });
        }
        if unfinished(root).is_dir() {
            return Err(TraceError::Incomplete { path: unfinished(root) });
        }
    }
    match instead(root) {
        Some(found) => Err(TraceError::NotATrace { path: root.to_owned(), found }),
        None => read_manifest_in(root),
    }
}

/// What is at `root`, where it can be told from a trace at sight.
fn instead(root: &Path) -> Option<&'static str> {
    let holds = |name: &str| root.join(name).is_file();
    match () {
        () if root.is_file() => Some("a file; `kvlab trace import` reads traces of others"),
        () if holds(MANIFEST) => None,
        () if holds("results.json") => Some("results of a study, which say what they were made of"),
        () if holds("plan.json") => Some("a sweep that is not finished"),
        () => None,
    }
}

/// As [`read_manifest`], in a folder of any name.
pub(crate) fn read_manifest_in(root: &Path) -> Result<(Manifest, String), TraceError> {
    let (bytes, path) = read_small(root, MANIFEST, MAX_MANIFEST_BYTES)?;
    check_version(&bytes, &path)?;
    let found = sha256(&bytes);
    let (record, digest_path) = read_small(root, MANIFEST_DIGEST, 256)?;
    if record != digest_line(&found).as_bytes() {
        let expected = String::from_utf8_lossy(&record).split(' ').next().unwrap_or_default().to_owned();
        if expected == found {
            return Err(TraceError::malformed(
                &digest_path,
                "file",
                "another text",
                "`<sha256>  manifest.json` and a line feed",
            ));
        }
        return Err(TraceError::Checksum { path, expected, found });
    }
    let manifest = parse_manifest(&bytes, &path)?;
    check::check(&manifest, &path)?;
    Ok((manifest, found))
}

/// Writes the manifest and its digest; gives the digest.
///
/// # Errors
/// When the manifest would not be accepted by a reader, or the files cannot be written.
pub(crate) fn write_manifest(root: &Path, manifest: &Manifest) -> Result<String, TraceError> {
    let path = root.join(MANIFEST);
    check::check(manifest, &path)?;
    let bytes = to_json(manifest, &path)?;
    let digest = sha256(&bytes);
    write_whole(&path, &bytes).map_err(|error| TraceError::io(&path, error))?;
    let digest_path = root.join(MANIFEST_DIGEST);
    write_whole(&digest_path, digest_line(&digest).as_bytes())
        .map_err(|error| TraceError::io(&digest_path, error))?;
    Ok(digest)
}

/// A value as indented JSON with a final line feed.
pub(crate) fn to_json(value: &impl serde::Serialize, path: &Path) -> Result<Vec<u8>, TraceError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|source| json_error(path, source))?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn digest_line(digest: &str) -> String {
    format!("{digest}  {MANIFEST}\n")
}

fn json_error(path: &Path, source: serde_json::Error) -> TraceError {
    TraceError::Manifest { path: path.to_owned(), place: ".".to_owned(), source }
}

/// The version comes first: what another major version calls a manifest is not ours to judge.
fn check_version(bytes: &[u8], path: &Path) -> Result<(), TraceError> {
    #[derive(Deserialize)]
    struct Versioned {
        format: TraceVersion,
    }
    let versioned: Versioned = serde_json::from_slice(bytes).map_err(|source| json_error(path, source))?;
    versioned.format.check_readable_by(TRACE_VERSION)
}

/// Parses a value with the JSON path of a mistake in the error.
pub(crate) fn parse_json<'de, T: Deserialize<'de>>(bytes: &'de [u8], path: &Path) -> Result<T, TraceError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| TraceError::Manifest {
        path: path.to_owned(),
        place: error.path().to_string(),
        source: error.into_inner(),
    })?;
    json.end().map_err(|source| json_error(path, source))?;
    Ok(value)
}

fn parse_manifest(bytes: &[u8], path: &Path) -> Result<Manifest, TraceError> {
    let manifest: Manifest = parse_json(bytes, path)?;
    if !manifest.format.is_newer_than(TRACE_VERSION) {
        // A newer minor version may bring keys that we do not know; in a version that we know they are mistakes.
        let given: Value = parse_json(bytes, path)?;
        let known = serde_json::to_value(&manifest).map_err(|source| json_error(path, source))?;
        if let Some(place) = unknown_key(&given, &known, String::new()) {
            return Err(TraceError::malformed(
                path,
                place,
                "an unknown key",
                format!("the keys of format {TRACE_VERSION}"),
            ));
        }
    }
    Ok(manifest)
}

/// The path of the first key in `given` that `known` does not have.
fn unknown_key(given: &Value, known: &Value, place: String) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(key, value)| {
            let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
            known
                .get(key)
                .map_or_else(|| Some(place.clone()), |known| unknown_key(value, known, place.clone()))
        }),
        (Value::Array(given), Value::Array(known)) => given
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(at, (given, known))| unknown_key(given, known, format!("{place}[{at}]"))),
        _ => None,
    }
}
