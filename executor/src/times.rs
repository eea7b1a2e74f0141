//! How long the parts of a pass take on this machine: measured here, kept in a trace as data, fitted by the simulator.
//!
//! Every piece of work is run once to warm up and then in rounds, all pieces in turn, so that what disturbs the machine for a moment
//! falls on all of them. The least time of the rounds is what the work takes; the median beside it says how disturbed the rounds were.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use kvlab_sim::cost::Measurement;
use ndarray::{Array2, s};

use crate::{
    decode::{KvCache, Lanes, Taps},
    error::ExecutorError,
    family::DecoderConfig,
    model::Model,
    progress::Progress,
};

/// Timed rounds, after one to warm up.
const ROUNDS: u32 = 5;
/// Longer prompts and caches are left to the fit.
const LONGEST: usize = 1024;
/// The shortest prompt and cache.
const SHORTEST: usize = 8;
/// Tokens of a suffix behind a cache, as a branch or a gate runs them.
const SUFFIX: usize = 8;
/// Sequences that are decoded in one pass.
const TOGETHER: [usize; 3] = [2, 4, 8];
/// Rows that go through the head at once.
const HEAD_ROWS: [usize; 3] = [1, 4, 16];
/// Prompt tokens per pass, to fill caches.
const CHUNK: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not 0");

/// A piece of work.
struct Case {
    part: &'static str,
    work: Work,
    nanos: Vec<u64>,
}

enum Work {
    /// A pass of `new` tokens behind `context` through the first `layers` layers; with the logits of the last token through all of them.
    Pass { new: usize, context: usize, layers: usize },
    /// A token of each of `rows` sequences behind caches of `context` tokens of their own, with their logits.
    Together { rows: usize, context: usize },
    /// Logits of so many rows.
    Head { rows: usize },
    /// Every layer keeps every other of `context` tokens.
    Evict { context: usize },
}

/// Measures prefill by length, decoding by length of the cache and number of sequences, suffixes behind a cache, passes through a part of the layers (what a cheap gate costs), the head, and
/// the copies of an eviction, for prompts and caches of up to `longest` tokens.
///
/// # Errors
/// The model cannot run.
pub fn measure_times(
    model: &mut Model,
    longest: usize,
    progress: &dyn Progress,
) -> Result<Vec<Measurement>, ExecutorError> {
    let config = model.config().clone();
    let lengths = lengths(longest.min(config.context.saturating_sub(SUFFIX)).clamp(1, LONGEST));
    let tokens = tokens(&config, lengths[lengths.len() - 1] + SUFFIX);
    let mut caches = Vec::with_capacity(lengths.len());
    let mut rows = Array2::zeros((0, config.hidden));
    for &length in &lengths {
        let mut decoder = model.decoder()?;
        rows = decoder.feed(&tokens[..length], CHUNK, Taps::NONE)?.last_hidden;
        caches.push((length, decoder.cache().clone()));
    }
    let mut bench = Bench { model, tokens, caches, rows };
    let mut cases = cases(&config, &lengths, bench.rows.nrows());
    progress.start("measuring times", Some(u64::from(ROUNDS) + 1));
    for round in 0..=ROUNDS {
        for case in &mut cases {
            let time = bench.time(&case.work)?;
            if round > 0 {
                case.nanos.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
            }
        }
        progress.advance(1);
    }
    progress.finish();
    Ok(cases.into_iter().map(|case| measurement(case, &config)).collect())
}

/// Powers of four from the shortest to `longest`, and that one.
fn lengths(longest: usize) -> Vec<usize> {
    let mut lengths: Vec<usize> = std::iter::successors(Some(SHORTEST), |length| length.checked_mul(4))
        .take_while(|length| *length < longest)
        .collect();
    lengths.push(longest);
    lengths
}

/// Tokens of all kinds: none of them ends anything, since nothing is decoded.
fn tokens(config: &DecoderConfig, count: usize) -> Vec<u32> {
    let vocab = u32::try_from(config.vocab).unwrap_or(u32::MAX).max(1);
    (0..u32::try_from(count).unwrap_or(u32::MAX)).map(|at| at.wrapping_mul(7919) % vocab).collect()
}

fn cases(config: &DecoderConfig, lengths: &[usize], rows: usize) -> Vec<Case> {
    let all = config.layers;
    let mut cases = Vec::new();
    let mut add = |part, work| cases.push(Case { part, work, nanos: Vec::new() });
    // One layer, and what gates run: a quarter and a half. Small models have fewer kinds.
    let mut depths = vec![1, all.div_ceil(4), all.div_ceil(2)];
    depths.retain(|depth| *depth < all);
    depths.dedup();
    for &length in lengths {
        add("prefill", Work::Pass { new: length, context: 0, layers: all });
        add("decode", Work::Pass { new: 1, context: length, layers: all });
        add("suffix", Work::Pass { new: SUFFIX, context: length, layers: all });
        for &layers in &depths {
            let part = if layers == 1 { "layer" } else { "gate" };
            add(part, Work::Pass { new: length, context: 0, layers });
            add(part, Work::Pass { new: SUFFIX, context: length, layers });
        }
        for rows in TOGETHER {
            add("decode", Work::Together { rows, context: length });
        }
        add("evict", Work::Evict { context: length });
    }
    for count in HEAD_ROWS.into_iter().filter(|count| *count <= rows) {
        add("head", Work::Head { rows: count });
    }
    cases
}

/// What the cases run on.
struct Bench<'m> {
    model: &'m mut Model,
    tokens: Vec<u32>,
    caches: Vec<(usize, KvCache)>,
    /// States for the head, `[row, hidden]`.
    rows: Array2<f32>,
}

impl Bench<'_> {
    fn time(&mut self, work: &Work) -> Result<Duration, ExecutorError> {
        let cache = |length: usize, model: &Model| match self.caches.iter().find(|(held, _)| *held == length)
        {
            Some((_, cache)) => Ok(cache.clone()),
            None => model.new_cache(),
        };
        match *work {
            Work::Pass { new, context, layers } => {
                let cache = cache(context, self.model)?;
                let all = self.model.config().layers;
                let mut decoder = self.model.decoder_with(cache);
                let begin = Instant::now();
                let pass =
                    decoder.forward_until(&self.tokens[context..context + new], layers - 1, Taps::NONE)?;
                if layers == all {
                    decoder.last_logits(&pass)?;
                }
                Ok(begin.elapsed())
            }
            Work::Together { rows, context } => {
                let mut lanes = Lanes::joined(&vec![cache(context, self.model)?; rows])?;
                let fed: Vec<(usize, u32)> =
                    (0..rows).map(|lane| (lane, self.tokens[context + lane])).collect();
                let mut decoder = self.model.decoder()?;
                let begin = Instant::now();
                let pass = decoder.forward_lanes(&mut lanes, &fed, Taps::NONE)?;
                decoder.logits(&pass)?;
                Ok(begin.elapsed())
            }
            Work::Head { rows } => {
                let mut decoder = self.model.decoder()?;
                let begin = Instant::now();
                decoder.head().logits(self.rows.slice(s![..rows, ..]))?;
                Ok(begin.elapsed())
            }
            Work::Evict { context } => {
                let cache = cache(context, self.model)?;
                let (layers, heads) = (self.model.config().layers, self.model.config().kv_heads);
                let kept = vec![kept(context); heads];
                let mut decoder = self.model.decoder_with(cache);
                let begin = Instant::now();
                for layer in 0..layers {
                    decoder.retain(layer, &kept)?;
                }
                Ok(begin.elapsed())
            }
        }
    }
}

/// Every other position.
fn kept(context: usize) -> Vec<u32> {
    (0..u32::try_from(context).unwrap_or(u32::MAX)).step_by(2).collect()
}

fn measurement(case: Case, config: &DecoderConfig) -> Measurement {
    let Case { part, work, mut nanos } = case;
    nanos.sort_unstable();
    // Lengths are at most a few thousand.
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let base = Measurement {
        part: Some(part.to_owned()),
        rows: 1,
        nanos: nanos.first().copied().unwrap_or(1),
        median_nanos: nanos.get(nanos.len() / 2).copied(),
        rounds: Some(ROUNDS),
        ..Measurement::default()
    };
    match work {
        Work::Pass { new, context, layers } => {
            let is_whole = layers == config.layers;
            Measurement {
                new_tokens: count(new),
                context_tokens: count(context),
                layers: if is_whole { None } else { u16::try_from(layers).ok() },
                heads: u32::from(is_whole),
                head_products: u32::from(is_whole),
                ..base
            }
        }
        Work::Together { rows, context } => Measurement {
            rows: count(rows),
            new_tokens: 1,
            context_tokens: count(context),
            heads: count(rows),
            head_products: 1,
            ..base
        },
        Work::Head { rows } => Measurement { heads: count(rows), head_products: 1, ..base },
        Work::Evict { context } => Measurement { copied_tokens: kept(context).len() as u64, ..base },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_rise_to_the_longest() {
        assert_eq!(lengths(300), [8, 32, 128, 300]);
        assert_eq!(lengths(8), [8]);
        assert_eq!(lengths(5), [5]);
        assert_eq!(kept(5), [0, 2, 4]);
    }
}
