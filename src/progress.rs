//! Progress bars on standard error; plain lines where it is no terminal.

use crate::output::news;
use indicatif::{ProgressBar, ProgressStyle};
use kvlab_executor::{Progress, Reached};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Draws the progress of one piece of work after another, and says how long each took.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    current: Mutex<Option<Piece>>,
}

#[derive(Debug)]
struct Piece {
    label: String,
    since: Instant,
    bar: Option<ProgressBar>,
    /// When it was last said how far it is.
    said: Instant,
}

/// Between two lines that say how far a piece is.
const PACE: Duration = Duration::from_secs(5);

impl Piece {
    /// The line that says how far it is, where none was said for a while and there is more to come.
    fn line(&mut self, reached: Reached, now: Instant) -> Option<String> {
        let Reached { what, before, done, total } = reached;
        if done >= total || now.saturating_duration_since(self.said) < PACE {
            return None;
        }
        self.said = now;
        let left = match (u32::try_from(done - before), u32::try_from(total - done)) {
            (Ok(made), Ok(left)) if made > 0 => {
                let spent = now.saturating_duration_since(self.since);
                format!(", about {:.0} s left", (spent / made * left).as_secs_f64())
            }
            _ => String::new(),
        };
        Some(format!("{}: {done} of {total} {what}{left}", self.label))
    }
}

impl Bars {
    /// Runs `work` as one piece; `work` reports (done, total) units.
    pub(crate) fn piece<T>(&self, label: &str, work: impl FnOnce(&(dyn Fn(u64, u64) + Sync)) -> T) -> T {
        self.start(label, None);
        let outcome = work(&|done, total| self.at(done, total));
        self.finish();
        outcome
    }

    fn at(&self, done: u64, total: u64) {
        self.with_bar(|bar| {
            if bar.length() != Some(total) {
                bar.set_length(total);
                bar.set_style(known());
            }
            if done > bar.position() {
                bar.set_position(done);
            }
        });
    }

    fn with_bar(&self, act: impl FnOnce(&ProgressBar)) {
        // A panic elsewhere must not silence the bars: the lock's content stays usable.
        let current = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(bar) = current.as_ref().and_then(|piece| piece.bar.as_ref()) {
            act(bar);
        }
    }

    fn replace(&self, piece: Option<Piece>) -> Option<Piece> {
        std::mem::replace(&mut *self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner), piece)
    }
}

fn known() -> ProgressStyle {
    ProgressStyle::with_template("{msg:32} [{bar:32}] {pos}/{len} {elapsed} (eta {eta})")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

fn unknown() -> ProgressStyle {
    ProgressStyle::with_template("{msg:32} {spinner} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

impl Progress for Bars {
    fn start(&self, label: &str, total: Option<u64>) {
        self.finish();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
            bar.set_style(if total.is_some() { known() } else { unknown() });
            bar.set_message(label.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if bar.is_none() {
            news(&format!("{label} ..."));
        }
        let since = Instant::now();
        self.replace(Some(Piece { label: label.to_owned(), since, bar, said: since }));
    }

    fn advance(&self, amount: u64) {
        self.with_bar(|bar| bar.inc(amount));
    }

    fn message(&self, text: &str) {
        let label = {
            let current = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match current.as_ref() {
                Some(Piece { bar: Some(bar), label, .. }) => {
                    bar.set_message(format!("{label}: {text}"));
                    return;
                }
                Some(piece) => piece.label.clone(),
                None => String::new(),
            }
        };
        news(&format!("{label}: {text}"));
    }

    fn reached(&self, reached: Reached) {
        let line = {
            let mut current = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let piece = current.as_mut().filter(|piece| piece.bar.is_none());
            piece.and_then(|piece| piece.line(reached, Instant::now()))
        };
        if let Some(line) = line {
            news(&line);
        }
    }

    fn finish(&self) {
        let Some(piece) = self.replace(None) else { return };
        if let Some(bar) = piece.bar {
            bar.finish_and_clear();
        }
        news(&format!("{} done in {:.1} s", piece.label, piece.since.elapsed().as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_a_piece_is_is_said_now_and_then() {
        let since = Instant::now();
        let mut piece = Piece { label: "executing s".to_owned(), since, bar: None, said: since };
        let mut said = |seconds, done| {
            let reached = Reached { what: "runs", before: 10, done, total: 40 };
            piece.line(reached, since + Duration::from_secs(seconds))
        };
        assert_eq!(said(4, 11), None, "a moment ago it began");
        // Ten runs took 20 s, and twenty are left.
        assert_eq!(said(20, 20).unwrap(), "executing s: 20 of 40 runs, about 40 s left");
        assert_eq!(said(24, 21), None);
        assert_eq!(said(25, 10).unwrap(), "executing s: 10 of 40 runs", "nothing was run yet");
        assert_eq!(said(60, 40), None, "the last one is told by the end");
    }
}
