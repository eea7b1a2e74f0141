//! One installer at a time.
//!
//! The lock is the operating system's file lock, so it cannot become stale: it goes when its holder ends, however it
//! ends. On a file system without locks the installer goes on alone; the final rename is atomic, and whoever comes
//! second accepts what is already there.

use std::{
    fs::{File, OpenOptions, TryLockError},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::error::SetupError;
use crate::progress::Progress;

const PATIENCE: Duration = Duration::from_secs(900);
const PAUSE: Duration = Duration::from_millis(100);

/// Held while a folder of the cache is made; dropped to release.
#[derive(Debug)]
pub(crate) struct SetupLock {
    _file: File,
}

impl SetupLock {
    pub(crate) fn take(cache: &Path, progress: &dyn Progress) -> Result<Self, SetupError> {
        let path = cache.join("setup.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(SetupError::io("open", &path))?;
        let begin = Instant::now();
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) if begin.elapsed() < PATIENCE => {
                    if !told {
                        progress.message("waiting for another kvlab that is installing");
                        told = true;
                    }
                    thread::sleep(PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(SetupError::LockHeld { path, seconds: PATIENCE.as_secs() });
                }
            }
        }
    }
}
