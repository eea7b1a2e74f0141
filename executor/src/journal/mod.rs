//! The journal of an execution: what finished runs gave, a line each, written and synced as they end.
//!
//! The file lies beside the tables that the execution will write. Its first line says what all runs have in common; an execution with other
//! settings does not go on from it. Every other line is one run under a key that covers what else its result depends on. A line begins
//! with digits of the SHA-256 of the rest. The last line may have been cut off and is dropped then; any other damage is an error.
//!
//! Not responsible for what a run is: whoever keeps it says so.

mod error;
pub(crate) mod hex;
mod line;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use kvlab_sim::results::sha256_hex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

pub use error::JournalError;

/// Name of the file in the folder of the results.
pub const JOURNAL: &str = "runs.journal";

/// What finished runs gave.
///
/// The default keeps nothing and finds nothing.
#[derive(Debug, Default)]
pub struct Journal {
    /// The file; nothing for a journal that keeps nothing.
    path: Option<PathBuf>,
    /// What all runs have in common, as it is in the file; nothing when there is no file yet.
    begun: Option<Value>,
    /// The same of the execution that runs.
    settings: Value,
    /// The file, locked; opened when the first run is kept.
    file: Option<File>,
    /// Line and content of each run, by key.
    runs: BTreeMap<String, (usize, Value)>,
    /// Runs that the execution has in all.
    planned: u64,
    was_cut: bool,
    is_complete: bool,
    /// Runs that are kept and belong to another execution; known when this one is complete.
    others: usize,
}

/// Which run a line is of, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunName {
    /// Id of the problem.
    pub item: String,
    /// The cell, or what else was run on the problem.
    pub run: String,
}

/// How far an unfinished execution is.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalStanding {
    /// The verb that began it.
    pub verb: String,
    /// Id of its scenario.
    pub scenario: String,
    /// Runs that are kept, in the order in which they ended.
    pub kept: Vec<RunName>,
    /// Runs that there were to be in all when the last of them was kept.
    pub planned: u64,
}

/// A line that is a run.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<T> {
    key: String,
    name: RunName,
    planned: u64,
    kept: T,
}

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    settings: Value,
}

impl Journal {
    /// The journal in the folder of results `folder`; what is there is read, and nothing is written before a run is kept.
    ///
    /// # Errors
    /// The file is damaged elsewhere than in its last line, cannot be read, or another process writes it.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        let path = folder.join(JOURNAL);
        let io = JournalError::io(&path);
        let mut file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { path: Some(path), ..Self::default() });
            }
            opened => opened.map_err(&io)?,
        };
        lock(&file, &path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(&io)?;
        let read = line::read(&path, &bytes)?;
        if read.whole < bytes.len() {
            file.set_len(read.whole as u64).map_err(&io)?;
        }
        file.seek(SeekFrom::End(0)).map_err(&io)?;
        let mut journal = Self {
            file: Some(file),
            was_cut: read.whole < bytes.len(),
            path: Some(path.clone()),
            ..Self::default()
        };
        for (at, text) in read.lines.into_iter().enumerate() {
            if at == 0 {
                journal.begun = Some(line::parsed::<Header>(&path, 1, text)?.settings);
                continue;
            }
            let entry: Entry<Value> = line::parsed(&path, at + 1, text)?;
            journal.runs.insert(entry.key, (at + 1, entry.kept));
        }
        Ok(journal)
    }

    /// Removes the journal in the folder of results `folder`, whatever it holds.
    ///
    /// # Errors
    /// The system refuses, or another process writes it.
    pub fn discard(folder: &Path) -> Result<(), JournalError> {
        let path = folder.join(JOURNAL);
        match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            opened => lock(&opened.map_err(JournalError::io(&path))?, &path)?,
        }
        fs::remove_file(&path).map_err(JournalError::io(&path))
    }

    /// How far the execution is whose journal is in `folder`; nothing when there is none.
    ///
    /// # Errors
    /// As [`Journal::open`], but another process may write it.
    pub fn standing(folder: &Path) -> Result<Option<JournalStanding>, JournalError> {
        let path = folder.join(JOURNAL);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(JournalError::io(&path))?,
        };
        let mut lines = line::read(&path, &bytes)?.lines.into_iter().enumerate();
        let Some((_, first)) = lines.next() else { return Ok(None) };
        let settings = line::parsed::<Header>(&path, 1, first)?.settings;
        let word = |name: &str| settings[name].as_str().unwrap_or_default().to_owned();
        let mut standing =
            JournalStanding { verb: word("verb"), scenario: word("scenario"), kept: Vec::new(), planned: 0 };
        for (at, text) in lines {
            let entry: Entry<Value> = line::parsed(&path, at + 1, text)?;
            standing.planned = entry.planned;
            standing.kept.push(entry.name);
        }
        Ok(Some(standing))
    }

    /// Whether the last line was cut off when it was opened: the run is made again.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.was_cut
    }

    /// Runs that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether it has a file at all.
    pub(crate) fn keeps(&self) -> bool {
        self.path.is_some()
    }

    /// Says what all runs have in common, and how many there are in all.
    ///
    /// # Errors
    /// Those that are kept have something else in common.
    pub(crate) fn begin(&mut self, settings: Value, planned: u64) -> Result<(), JournalError> {
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(begun) = self.begun.as_ref().filter(|begun| **begun != settings) {
            return Err(JournalError::mismatch(path, begun, &settings));
        }
        (self.settings, self.planned) = (settings, planned);
        Ok(())
    }

    /// What is kept under `key`.
    ///
    /// # Errors
    /// It is of another form.
    pub(crate) fn find<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, JournalError> {
        let (Some(path), Some((number, kept))) = (&self.path, self.runs.get(key)) else { return Ok(None) };
        let (path, line) = (path.clone(), *number);
        let damaged = |error: serde_json::Error| JournalError::Damaged { path, line, why: error.to_string() };
        T::deserialize(kept).map(Some).map_err(damaged)
    }

    /// Whether there is something under `key`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.runs.contains_key(key)
    }

    /// Keeps what a run gave: it is on the disk when this returns.
    ///
    /// # Errors
    /// The system refuses, or another process began the same journal meanwhile.
    pub(crate) fn keep(
        &mut self,
        key: &str,
        name: RunName,
        run: &impl Serialize,
    ) -> Result<(), JournalError> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        let io = JournalError::io(&path);
        let made = |error: serde_json::Error| JournalError::io(&path)(error.into());
        if self.file.is_none() {
            let folder = path.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(folder).map_err(JournalError::io(folder))?;
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            let file = file.map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => JournalError::Busy { path: path.clone() },
                _ => JournalError::io(&path)(error),
            })?;
            lock(&file, &path)?;
            self.file = Some(file);
        }
        let entry = Entry { key: key.to_owned(), name, planned: self.planned, kept: run };
        let mut bytes = Vec::new();
        if self.begun.is_none() {
            let header = Header { settings: self.settings.clone() };
            bytes.extend(line::of(&serde_json::to_string(&header).map_err(made)?));
            self.begun = Some(self.settings.clone());
        }
        bytes.extend(line::of(&serde_json::to_string(&entry).map_err(made)?));
        if let Some(file) = &mut self.file {
            file.write_all(&bytes).and_then(|()| file.sync_data()).map_err(io)?;
        }
        // Whoever keeps a run holds it: it is not looked for again.
        self.runs.insert(key.to_owned(), (0, Value::Null));
        Ok(())
    }

    /// A run of the full cache that is kept was made again, with the same tokens or not.
    ///
    /// # Errors
    /// With others: what was run against it before cannot stand beside what is run now.
    pub(crate) fn check_repeats(&self, item: &str, is_same: bool) -> Result<(), JournalError> {
        match &self.path {
            Some(path) if !is_same => {
                Err(JournalError::NotRepeated { path: path.clone(), item: item.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Every run of the execution was made, those under the keys `wanted`.
    pub(crate) fn complete(&mut self, wanted: &[String]) {
        let wanted: BTreeSet<&String> = wanted.iter().collect();
        self.others = self.runs.keys().filter(|key| !wanted.contains(key)).count();
        self.is_complete = true;
    }

    /// Ends the execution once its tables are written: the file goes when every run was made, and stays otherwise. It stays too with runs of
    /// other problems or cells, such as those of a longer execution that was interrupted: gives how many these are.
    ///
    /// # Errors
    /// The system refuses.
    pub fn close(self) -> Result<usize, JournalError> {
        match &self.path {
            Some(path) if self.is_complete && self.others == 0 && self.file.is_some() => {
                fs::remove_file(path).map(|()| 0).map_err(JournalError::io(path))
            }
            _ => Ok(self.others),
        }
    }
}

/// The key of what `parts` decide.
pub(crate) fn key(parts: &Value) -> String {
    sha256_hex(parts.to_string().as_bytes())[..24].to_owned()
}

fn lock(file: &File, path: &Path) -> Result<(), JournalError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(JournalError::Busy { path: path.to_owned() }),
        // A file system without locks: two executions at once are the user's to avoid.
        Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(error)) => Err(JournalError::io(path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(run: &str) -> RunName {
        RunName { item: "a".to_owned(), run: run.to_owned() }
    }

    fn settings() -> Value {
        serde_json::json!({ "verb": "exec", "scenario": "s", "model": { "name": "m" } })
    }

    /// A journal with two runs, 7 and 8.
    fn begun(folder: &Path) -> PathBuf {
        let mut journal = Journal::open(folder).unwrap();
        journal.begin(settings(), 5).unwrap();
        assert!(!folder.join(JOURNAL).exists(), "nothing is written before a run is kept");
        journal.keep("one", name("first"), &7).unwrap();
        journal.keep("two", name("second"), &8).unwrap();
        folder.join(JOURNAL)
    }

    #[test]
    fn what_is_kept_is_found_again_and_goes_when_all_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = begun(folder.path());
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.begin(settings(), 5).unwrap();
        assert_eq!((journal.len(), journal.was_cut()), (2, false));
        assert_eq!(journal.find::<u32>("one").unwrap(), Some(7));
        assert_eq!(journal.find::<u32>("three").unwrap(), None);
        journal.keep("three", name("third"), &9).unwrap();
        let standing = Journal::standing(folder.path()).unwrap().unwrap();
        assert_eq!((standing.verb.as_str(), standing.scenario.as_str()), ("exec", "s"));
        assert_eq!((standing.kept.len(), standing.planned), (3, 5));
        assert!(
            matches!(Journal::open(folder.path()), Err(JournalError::Busy { .. })),
            "it is being written"
        );
        journal.close().unwrap();
        assert!(path.exists(), "not all was done");
        let all = ["one", "two", "three"].map(str::to_owned);
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.complete(&all[1..]);
        assert_eq!(journal.close().unwrap(), 1);
        assert!(path.exists(), "a run of a longer execution is in it");
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.complete(&all);
        assert_eq!(journal.close().unwrap(), 0);
        assert!(!path.exists());
    }

    #[test]
    fn a_last_line_that_was_cut_off_anywhere_is_dropped_and_written_again() {
        let whole = {
            let folder = tempfile::tempdir().unwrap();
            fs::read(begun(folder.path())).unwrap()
        };
        let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
        for cut in 0..whole.len() {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(JOURNAL), &whole[..cut]).unwrap();
            let mut journal = Journal::open(folder.path()).unwrap();
            let lines = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(journal.len(), lines.saturating_sub(1), "cut at {cut}");
            assert_eq!(journal.was_cut(), cut > 0 && !ends.contains(&cut), "cut at {cut}");
            journal.begin(settings(), 5).unwrap();
            for (key, run) in [("one", 7), ("two", 8)] {
                if !journal.has(key) {
                    let which = if run == 7 { "first" } else { "second" };
                    journal.keep(key, name(which), &run).unwrap();
                }
            }
            drop(journal);
            assert!(fs::read(folder.path().join(JOURNAL)).unwrap() == whole, "cut at {cut}");
        }
    }

    #[test]
    fn damage_before_the_last_line_names_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = begun(folder.path());
        let whole = fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
        for at in 0..ends[1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            let line = if at <= ends[0] { 1 } else { 2 };
            let error = Journal::open(folder.path()).unwrap_err();
            let JournalError::Damaged { line: found, .. } = &error else { panic!("byte {at}: {error}") };
            assert_eq!(*found, line, "byte {at}");
            assert!(error.to_string().contains(&format!("runs.journal: line {line}: ")), "{error}");
        }
        // In the last line it is what a kill leaves.
        let mut damaged = whole.clone();
        damaged[ends[1] + 30] ^= 1;
        fs::write(&path, damaged).unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        assert!(journal.was_cut() && journal.len() == 1);
    }

    #[test]
    fn other_settings_do_not_go_on() {
        let folder = tempfile::tempdir().unwrap();
        begun(folder.path());
        let mut journal = Journal::open(folder.path()).unwrap();
        let mut other = settings();
        other["model"]["name"] = "n".into();
        let error = journal.begin(other, 5).unwrap_err().to_string();
        assert!(error.contains("runs.journal: begun with `model.name` \"m\", now \"n\""), "{error}");
        drop(journal);
        Journal::discard(folder.path()).unwrap();
        assert_eq!(Journal::standing(folder.path()).unwrap(), None);
    }

    #[test]
    fn a_journal_without_a_file_keeps_nothing() {
        let mut journal = Journal::default();
        journal.begin(settings(), 5).unwrap();
        journal.keep("one", name("first"), &7).unwrap();
        assert_eq!(journal.find::<u32>("one").unwrap(), None);
        assert!(!journal.has("one") && journal.is_empty());
    }
}
