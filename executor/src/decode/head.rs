//! The output head: logits of rows, and the logit lens.

use std::{num::NonZeroUsize, thread};

use ndarray::ArrayView2;

use super::{error::DecodeError, facts::Distribution};
use crate::{
    graph::io,
    runtime::{Feed, Session, Tensor},
};

/// Rows that go through the head at once: enough for the product to be fast, and 25 MB for a vocabulary of 50,000.
const BATCH_ROWS: usize = 128;
/// Fewer logits than this are not worth a second thread: starting one takes as long as looking at so many.
const LOGITS_PER_THREAD: usize = 1 << 17;

/// Whether the lens also looks at rows without the final norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawLens {
    /// With the final norm only.
    Skipped,
    /// With and without: twice the work.
    Included,
}

/// How the lens looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LensOptions {
    /// Top tokens per row.
    pub top: usize,
    /// Rows without the final norm.
    pub raw: RawLens,
}

impl Default for LensOptions {
    fn default() -> Self {
        Self { top: 8, raw: RawLens::Included }
    }
}

/// What the lens sees in one row.
#[derive(Debug, Clone, PartialEq)]
pub struct LensFacts {
    /// Of the logits of the row after the final norm. Each row is normed by its own scale.
    pub normed: Distribution,
    /// Of the logits of the row as it is, without top tokens.
    pub raw: Option<Distribution>,
}

/// What a head is made of.
pub(crate) struct NewHead {
    pub(crate) session: Session,
    /// `[hidden]`
    pub(crate) final_norm: Vec<f32>,
    pub(crate) rms_eps: f64,
    pub(crate) vocab: usize,
    pub(crate) threads: NonZeroUsize,
}

/// Final norm and output matrix.
#[derive(Debug)]
pub struct Head {
    session: Session,
    final_norm: Vec<f32>,
    rms_eps: f64,
    vocab: usize,
    threads: NonZeroUsize,
}

impl Head {
    pub(crate) fn new(parts: NewHead) -> Self {
        let NewHead { session, final_norm, rms_eps, vocab, threads } = parts;
        Self { session, final_norm, rms_eps, vocab, threads }
    }

    /// The model's own logits of rows of the residual stream, `[row, hidden]` → `[row * vocab]`.
    ///
    /// # Errors
    /// Rows of another width, or the runtime.
    pub fn logits(&mut self, rows: ArrayView2<'_, f32>) -> Result<Vec<f32>, DecodeError> {
        self.check_width(rows)?;
        let mut all = Vec::with_capacity(rows.nrows() * self.vocab);
        for batch in rows.axis_chunks_iter(ndarray::Axis(0), BATCH_ROWS) {
            let normed = self.normed(batch);
            all.extend_from_slice(self.project(&normed)?.data());
        }
        Ok(all)
    }

    /// Logits of rows of the residual stream without the final norm, `[row, hidden]` → `[row * vocab]`.
    ///
    /// # Errors
    /// Rows of another width, or the runtime.
    pub fn raw_logits(&mut self, rows: ArrayView2<'_, f32>) -> Result<Vec<f32>, DecodeError> {
        self.check_width(rows)?;
        let mut all = Vec::with_capacity(rows.nrows() * self.vocab);
        for batch in rows.axis_chunks_iter(ndarray::Axis(0), BATCH_ROWS) {
            let plain: Vec<f32> = batch.iter().copied().collect();
            all.extend_from_slice(self.project(&plain)?.data());
        }
        Ok(all)
    }

    /// Looks at rows of the residual stream, `[row, hidden]`, as if each were the last layer's.
    ///
    /// # Errors
    /// Rows of another width, logits that are no distribution, or the runtime.
    pub fn lens(
        &mut self,
        rows: ArrayView2<'_, f32>,
        options: LensOptions,
    ) -> Result<Vec<LensFacts>, DecodeError> {
        self.check_width(rows)?;
        let mut facts = Vec::with_capacity(rows.nrows());
        for batch in rows.axis_chunks_iter(ndarray::Axis(0), BATCH_ROWS) {
            let begin = facts.len();
            let mut stacked = self.normed(batch);
            if options.raw == RawLens::Included {
                stacked.extend(batch.iter());
            }
            let logits = self.project(&stacked)?;
            let tops = |row: usize| if row < batch.nrows() { options.top } else { 0 };
            let mut seen = self.distributions(logits.data(), &tops, begin)?;
            let mut raw = seen.split_off(batch.nrows()).into_iter();
            facts.extend(seen.into_iter().map(|normed| LensFacts { normed, raw: raw.next() }));
        }
        Ok(facts)
    }

    fn check_width(&self, rows: ArrayView2<'_, f32>) -> Result<(), DecodeError> {
        let (found, expected) = (rows.ncols(), self.final_norm.len());
        if found == expected { Ok(()) } else { Err(DecodeError::RowWidth { found, expected }) }
    }

    /// The final norm of each row by its own scale, row-major.
    fn normed(&self, rows: ArrayView2<'_, f32>) -> Vec<f32> {
        let mut out = Vec::with_capacity(rows.len());
        for row in rows.rows() {
            let squares: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                reason = "the scale is an f32 in the model"
            )]
            let scale = (1.0 / (squares / row.len() as f64 + self.rms_eps).sqrt()) as f32;
            out.extend(row.iter().zip(&self.final_norm).map(|(value, gain)| gain * (value * scale)));
        }
        out
    }

    fn project(&mut self, rows: &[f32]) -> Result<Tensor, DecodeError> {
        let hidden = self.final_norm.len();
        if rows.is_empty() {
            return Ok(Tensor::new(&[0, self.vocab], Vec::new())?);
        }
        let shape = [rows.len() / hidden, hidden];
        let inputs = [(io::ROWS, Feed::View { shape: &shape, data: rows })];
        Ok(self.session.run(&inputs, &[io::LOGITS])?.take(io::LOGITS)?)
    }

    /// The distributions of rows of logits. Rows are shared out among threads; each row is computed by one, so the
    /// number of threads does not change a bit.
    fn distributions(
        &self,
        logits: &[f32],
        top: &(dyn Fn(usize) -> usize + Sync),
        begin: usize,
    ) -> Result<Vec<Distribution>, DecodeError> {
        let rows: Vec<(usize, &[f32])> = logits.chunks_exact(self.vocab).enumerate().collect();
        let look = |part: &[(usize, &[f32])]| -> Result<Vec<Distribution>, DecodeError> {
            let one = |(row, logits): &(usize, &[f32])| {
                let seen = Distribution::of_logits(logits, top(*row));
                seen.map_err(|why| DecodeError::Logits { row: begin + row, why })
            };
            part.iter().map(one).collect()
        };
        let threads = self.threads.get().min(logits.len() / LOGITS_PER_THREAD).min(rows.len()).max(1);
        if threads == 1 {
            return look(&rows);
        }
        let parts = thread::scope(|scope| {
            let look = &look;
            let workers: Vec<_> = rows
                .chunks(rows.len().div_ceil(threads))
                .map(|part| scope.spawn(move || look(part)))
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("looking at a row does not panic"))
                .collect::<Vec<_>>()
        });
        let parts: Vec<Vec<Distribution>> = parts.into_iter().collect::<Result<_, _>>()?;
        Ok(parts.concat())
    }
}
