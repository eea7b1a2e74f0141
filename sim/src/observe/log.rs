//! The log as text: one JSON object a line, one line a record.

use crate::engine::{Observer, Record, Stamp};
use serde::Serialize;
use std::io::{self, Write};

/// Writes records as JSON lines. Equal runs write equal bytes.
#[derive(Debug)]
pub struct EventLog<W> {
    out: W,
    failure: Option<io::Error>,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    stamp: Stamp,
    #[serde(flatten)]
    record: &'a Record<'a>,
}

impl<W: Write> EventLog<W> {
    /// A log that is written to `out`; give it a buffered writer.
    pub fn new(out: W) -> Self {
        Self { out, failure: None }
    }

    /// Flushes, and gives the writer back.
    ///
    /// # Errors
    /// The first failure of any write; nothing was written after it.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn write(&mut self, line: &Line<'_>) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, line)?;
        self.out.write_all(b"\n")
    }
}

impl<W: Write> Observer for EventLog<W> {
    fn note(&mut self, stamp: Stamp, record: &Record<'_>) {
        if self.failure.is_none()
            && let Err(failure) = self.write(&Line { stamp, record })
        {
            self.failure = Some(failure);
        }
    }
}
