//! One sequence of one cell on the model: feed a token, attend, evict if it is due.

use kvlab_sim::{
    policy::{
        PolicyError,
        compose::{Places, Stack},
        schedule::Moment,
    },
    types::{ModelShape, SeqIdx},
};

use super::{
    ClosedLoopError,
    driver::{Driver, KeptTokens},
    live::QueryRing,
    outcome::Footprint,
    prefix::Prefix,
};
use crate::{
    decode::{Ask, Decoder, Pass, Taps},
    error::ExecutorError,
    model::Model,
    text::TextCodec,
};

/// A stack under a seed.
#[derive(Debug, Clone, Copy)]
pub struct LiveCell<'a> {
    /// The stack.
    pub stack: &'a Stack,
    /// Seed of its draws.
    pub seed: u64,
    /// Bytes of one channel that is stored as the model made it, for counting.
    pub bytes_per_scalar: u32,
}

impl<'a> LiveCell<'a> {
    /// A stack under a seed, channels as the model made them counted as two bytes.
    #[must_use]
    pub fn new(stack: &'a Stack, seed: u64) -> Self {
        Self { stack, seed, bytes_per_scalar: 2 }
    }
}

/// A sequence that goes on from a prefix under one cell.
#[derive(Debug)]
pub struct LiveRun<'m, 'a> {
    decoder: Decoder<'m>,
    codec: Option<&'m TextCodec>,
    queries: QueryRing,
    driver: Driver<'a>,
    shape: ModelShape,
    peak_entries: u64,
    peak_stored_bits: u64,
    /// Whether queries attend to a part, and where a token is rotated.
    selects: bool,
    keep_ratios: f64,
    steps: u32,
    seen: u32,
    /// What the passes gave; nothing unless the run is [recorded](LiveRun::recording).
    record: Option<Vec<LivePass>>,
}

/// What a [recorded](LiveRun::recording) run did.
#[derive(Debug, Clone)]
pub struct RecordedRun {
    /// What it held and evicted.
    pub footprint: Footprint,
    /// Its steps.
    pub steps: Vec<LivePass>,
    /// Which tokens each eviction kept.
    pub kept: KeptTokens,
}

/// A decode step, as the model ran it.
#[derive(Debug, Clone)]
pub struct LivePass {
    /// States of every layer at the token.
    pub pass: Pass,
    /// Where the token was rotated, if that is not its position.
    pub place: Option<u32>,
}

impl<'m, 'a> LiveRun<'m, 'a> {
    /// Forks from `prefix` as sequence number `seq`, which keys the draws. A stack that evicts after the prompt does so now.
    ///
    /// # Errors
    /// The model's shape cannot be said in our types, the stack, or the runtime.
    pub fn fork(
        model: &'m mut Model,
        prefix: &Prefix,
        cell: LiveCell<'a>,
        seq: SeqIdx,
    ) -> Result<Self, ExecutorError> {
        let shape = model.shape()?;
        if cell.stack.accumulates() && prefix.mass.is_empty() {
            return Err(ClosedLoopError::NothingAccumulated { policy: cell.stack.label().to_owned() }.into());
        }
        let has_window = (0..model.config().layers).any(|layer| model.config().window(layer).is_some());
        if cell.stack.places() == Places::Cache && has_window {
            let reason = "layers of this model see a window of positions, which re-rotation would change";
            return Err(PolicyError::Refused { policy: "rerotate", reason: reason.to_owned() }.into());
        }
        let (mut decoder, codec) = model.decoder_and_codec()?;
        decoder.swap_cache(prefix.cache.clone());
        let mut driver = Driver::new(cell, &shape, seq, prefix);
        let queries = prefix.queries.clone();
        driver.hold(&mut decoder, &queries)?;
        let (peak_entries, peak_stored_bits) = (driver.entries(), driver.held_bits());
        driver.evict_if_due(&mut decoder, &queries, Moment::PrefillDone)?;
        let (keep_ratios, steps, seen) = (0.0, 0, prefix.len);
        let selects = cell.stack.attends_to_part();
        Ok(Self {
            decoder,
            codec,
            queries,
            driver,
            shape,
            peak_entries,
            peak_stored_bits,
            selects,
            keep_ratios,
            steps,
            seen,
            record: None,
        })
    }

    /// Keeps the states of every step from here on, for [`LiveRun::finish_recorded`], and which tokens each eviction kept.
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.driver.list_kept();
        Self { record: Some(Vec::new()), ..self }
    }

    /// Feeds a token: it is stored, attends to everything resident, and then an eviction may follow. Gives the logits of the
    /// token after it, `[vocab]`.
    ///
    /// # Errors
    /// As [`Decoder::forward`], and the stack.
    pub fn step(&mut self, token: u32) -> Result<Vec<f32>, ExecutorError> {
        let taps = match &self.record {
            Some(_) => Taps::STATES,
            None => Taps { queries: self.queries.window() > 0, ..Taps::NONE },
        };
        let (pos, place) = (self.decoder.next_position(), self.driver.place());
        self.driver.store(pos);
        let pass: Pass = if self.selects {
            let driver = &mut self.driver;
            let mut select = |ask: Ask<'_>| driver.select(&ask);
            self.decoder.forward_selecting(token, place, taps, Some(&mut select))?
        } else {
            self.driver.count_all();
            self.decoder.forward_selecting::<ExecutorError>(token, place, taps, None)?
        };
        self.queries.take(&pass);
        self.seen = pos + 1;
        self.driver.hold(&mut self.decoder, &self.queries)?;
        self.measure();
        self.driver.attend(&self.decoder, &self.queries)?;
        self.driver.evict_if_due(&mut self.decoder, &self.queries, Moment::DecodeStep)?;
        let logits = self.decoder.last_logits(&pass)?;
        if let Some(record) = &mut self.record {
            record.push(LivePass { pass, place });
        }
        Ok(logits)
    }

    /// The tokenizer, if the model has one.
    #[must_use]
    pub fn codec(&self) -> Option<&'m TextCodec> {
        self.codec
    }

    /// The decoder with its cache.
    #[must_use]
    pub fn decoder(&self) -> &Decoder<'m> {
        &self.decoder
    }

    /// Ends a [recorded](LiveRun::recording) run.
    #[must_use]
    pub fn finish_recorded(mut self) -> RecordedRun {
        let steps = self.record.take().unwrap_or_default();
        let kept = self.driver.take_kept();
        RecordedRun { footprint: self.finish(), steps, kept }
    }

    /// Ends the run.
    #[must_use]
    pub fn finish(self) -> Footprint {
        let mean_keep_ratio = (self.steps > 0).then(|| self.keep_ratios / f64::from(self.steps));
        let (peak_entries, seen) = (self.peak_entries, self.seen);
        let (peak_stored_bits, steps, (attended, read_bits)) =
            (self.peak_stored_bits, self.steps, self.driver.reads());
        let evictions = self.driver.into_evictions();
        Footprint {
            evictions,
            peak_entries,
            mean_keep_ratio,
            peak_stored_bits,
            attended,
            read_bits,
            steps,
            seen,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    fn measure(&mut self) {
        let entries = self.driver.entries();
        let all = u64::from(self.seen) * u64::from(self.shape.layers) * u64::from(self.shape.kv_heads);
        self.peak_entries = self.peak_entries.max(entries);
        self.peak_stored_bits = self.peak_stored_bits.max(self.driver.held_bits());
        self.keep_ratios += entries as f64 / all as f64;
        self.steps += 1;
    }
}
