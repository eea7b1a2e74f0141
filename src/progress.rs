//! Progress bars on standard error; plain lines where it is no terminal.

use crate::output::news;
use indicatif::{ProgressBar, ProgressStyle};
use kvlab_executor::Progress;
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
        self.replace(Some(Piece { label: label.to_owned(), since: Instant::now(), bar }));
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

    fn finish(&self) {
        let Some(piece) = self.replace(None) else { return };
        if let Some(bar) = piece.bar {
            bar.finish_and_clear();
        }
        news(&format!("{} done in {:.1} s", piece.label, piece.since.elapsed().as_secs_f64()));
    }
}
