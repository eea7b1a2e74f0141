//! Reads everything in a trace and refuses what the format does not allow, or what cannot be true.
//!
//! Structure is checked by the reader on the way; this adds digests of all files, finite values in all tensors, and
//! facts against each other.

use super::facts_schema::{LENS, LENS_TOP, REQUESTS};
use super::manifest::{Manifest, SequenceInfo};
use super::reader::Trace;
use super::source::{LensRow, TraceSource};
use super::{TraceError, TraceVersion, Weight, branches, folder, lens_check, times, weights};
use crate::num;
use crate::types::{SeqIdx, TokenId};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What a trace that passed holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Version of the format it is written in.
    pub format: TraceVersion,
    /// SHA-256 (hex) of its manifest.
    pub digest: String,
    /// Whether it was generated and not recorded.
    pub synthetic: bool,
    /// Sequences.
    pub sequences: u32,
    /// Tokens over all sequences, prompts included.
    pub tokens: u64,
    /// Tokens that were not given, over all sequences.
    pub generated_tokens: u64,
    /// Tensor files.
    pub shards: u64,
    /// Bytes of all files that the manifest names.
    pub bytes: u64,
    /// Scalars in tensors; all are finite.
    pub tensor_values: u64,
    /// Lens facts: positions times layers.
    pub lens_facts: u64,
    /// Lens facts that were computed again from hidden states and the head.
    pub lens_recomputed: u64,
    /// Problems with branch trees.
    pub problems: u32,
    /// Outcomes of their branches.
    pub branch_outcomes: u64,
    /// Requests.
    pub requests: u64,
    /// Generated tokens whose last-layer lens fact was recorded, when decoding was greedy.
    pub next_tokens_checked: u64,
    /// Those that equal the lens argmax. A model's batched and single passes may round differently at a tie.
    pub next_tokens_equal: u64,
    /// Files in the folder that the manifest does not name. They are not read.
    pub unlisted: Vec<String>,
}

/// Verifies the trace in the folder `root`.
///
/// # Errors
/// At the first thing that is not as it must be, with its place, what was found, and what is accepted.
pub fn verify(root: &Path) -> Result<VerifyReport, TraceError> {
    verify_to(root, Depth::Sample)
}

/// How many lens facts are computed again from hidden states and the head, in a trace that holds all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// A few, evenly spread.
    Sample,
    /// All of them.
    All,
}

/// As [`verify`], with a choice.
///
/// # Errors
/// At the first thing that is not as it must be, with its place, what was found, and what is accepted.
pub fn verify_to(root: &Path, depth: Depth) -> Result<VerifyReport, TraceError> {
    let trace = Trace::open(root)?;
    let manifest = trace.manifest();
    let mut tensor_values = 0;
    for shard in 0..manifest.shards.len() {
        tensor_values += trace.check_shard(shard)?;
    }
    manifest.tables.iter().try_for_each(|table| check_digest(root, &table.path, &table.sha256))?;
    for weight in Weight::of(manifest) {
        tensor_values += weights::check(&trace, weight)?;
    }
    let (mut lens_facts, mut next_tokens) = (0, NextTokens::default());
    for info in &manifest.sequences {
        let tokens = trace.tokens(SeqIdx::new(info.seq))?;
        if manifest.holds("lens.top1_token") {
            lens_facts += check_lens(&trace, info)?;
            if manifest.decoding.mode == "greedy" {
                next_tokens.count(&trace.lens(SeqIdx::new(info.seq))?, &tokens, info.prompt_len);
            }
        }
    }
    let lens_recomputed = lens_check::check(&trace, depth == Depth::All)?;
    let branch_outcomes = branches::check(&trace)?;
    let requests = check_requests(&trace)?;
    if manifest.times.is_some() {
        times::read(&trace)?;
    }
    Ok(VerifyReport {
        format: manifest.format,
        digest: trace.digest(),
        synthetic: trace.is_synthetic(),
        sequences: u32::try_from(manifest.sequences.len()).unwrap_or(u32::MAX),
        tokens: manifest.sequences.iter().map(|info| u64::from(info.len)).sum(),
        generated_tokens: manifest.sequences.iter().map(|info| u64::from(info.len - info.prompt_len)).sum(),
        shards: manifest.shards.len() as u64,
        bytes: manifest.shards.iter().map(|shard| shard.bytes).sum::<u64>()
            + manifest.tables.iter().map(|table| table.bytes).sum::<u64>()
            + manifest.weights.iter().map(|weight| weight.bytes).sum::<u64>()
            + manifest.times.as_ref().map_or(0, |times| times.bytes),
        tensor_values,
        lens_facts,
        lens_recomputed,
        problems: trace.problems(),
        branch_outcomes,
        requests,
        next_tokens_checked: next_tokens.checked,
        next_tokens_equal: next_tokens.equal,
        unlisted: unlisted(root, manifest)?,
    })
}

/// Checks the digest of every file that the manifest names.
pub(super) fn check_digests(trace: &Trace) -> Result<(), TraceError> {
    let manifest = trace.manifest();
    let shards = manifest.shards.iter().map(|shard| (&shard.path, &shard.sha256));
    let tables = manifest.tables.iter().map(|table| (&table.path, &table.sha256));
    let weights = manifest.weights.iter().map(|weight| (&weight.path, &weight.sha256));
    let times = manifest.times.iter().map(|times| (&times.path, &times.sha256));
    let mut files = shards.chain(tables).chain(weights).chain(times);
    files.try_for_each(|(path, expected)| check_digest(trace.path(), path, expected))
}

fn check_digest(root: &Path, inside: &str, expected: &str) -> Result<(), TraceError> {
    let (mut file, path) = folder::open_inside(root, inside)?;
    let (_, found) = folder::sha256_of_file(&mut file, &path)?;
    if found == expected {
        return Ok(());
    }
    Err(TraceError::Checksum { path, expected: expected.to_owned(), found })
}

/// Reads all requests; gives how many there are.
fn check_requests(trace: &Trace) -> Result<u64, TraceError> {
    let Some(info) = &trace.manifest().requests else { return Ok(0) };
    let path = trace.path().join(REQUESTS);
    let mut last = 0;
    let mut blocks = 0;
    trace.for_each_request(|at, request| {
        let most = u64::from(request.input_tokens.div_ceil(info.block_tokens));
        if request.hashes.len() as u64 > most {
            let accepted = format!("at most {most}, one for each {} tokens", info.block_tokens);
            return Err(TraceError::malformed(
                &path,
                format!("blocks, request {at}"),
                request.hashes.len(),
                accepted,
            ));
        }
        if request.timestamp_ms < last {
            let accepted = format!("at least {last}");
            return Err(TraceError::malformed(
                &path,
                format!("timestamp_ms, request {at}"),
                request.timestamp_ms,
                accepted,
            ));
        }
        last = request.timestamp_ms;
        blocks += request.hashes.len() as u64;
        Ok(())
    })?;
    if blocks == info.blocks {
        Ok(info.count)
    } else {
        Err(TraceError::malformed(&path, "blocks over all requests", blocks, info.blocks.to_string()))
    }
}

#[derive(Default)]
struct NextTokens {
    checked: u64,
    equal: u64,
}

impl NextTokens {
    /// Compares the last layer's argmax with the token that came next, from the prompt's last position on.
    fn count(&mut self, lens: &[LensRow], tokens: &[TokenId], prompt_len: u32) {
        for pair in lens.chunk_by(|a, b| a.pos == b.pos).filter_map(<[LensRow]>::last) {
            if let Some(next) = tokens.get(pair.pos.idx() + 1).filter(|_| pair.pos.get() + 1 >= prompt_len) {
                self.checked += 1;
                self.equal += u64::from(*next == pair.top1);
            }
        }
    }
}

/// Checks that the lens facts of a sequence can be true together; gives how many there are.
fn check_lens(trace: &Trace, info: &SequenceInfo) -> Result<u64, TraceError> {
    let seq = SeqIdx::new(info.seq);
    let lens = trace.lens_table(seq)?;
    let top = if trace.manifest().lens_top > 0 { trace.lens_top(seq)? } else { Vec::new() };
    let path = trace.path().join(LENS);
    let most = num::ln(f64::from(trace.shape().vocab));
    for (at, row) in lens.rows.iter().enumerate() {
        let check = |column: &str, found: f32, low: f64, high: f64, slack: f64| {
            if (low - slack..=high + slack).contains(&f64::from(found)) {
                return Ok(());
            }
            let place = format!("{column}, sequence {}, position {}, layer {}", info.seq, row.pos, row.layer);
            Err(TraceError::malformed(
                &path,
                place,
                found,
                format!("{low} to {high}, with a slack of {slack}"),
            ))
        };
        let (logsumexp, logit) = (lens.logsumexp[at], lens.top1_logit[at]);
        // Binary32 logits of a vocabulary: the error of a sum grows with their size.
        let slack = 2e-3 + 1e-5 * f64::from(logsumexp.abs().max(logit.abs()));
        check("entropy_nats", row.entropy_nats, 0.0, most, 2e-3)?;
        if let Some(raw) = row.raw_entropy_nats {
            check("raw_entropy_nats", raw, 0.0, most, 2e-3)?;
        }
        check("top1_logit", logit, f64::MIN, f64::from(logsumexp), slack)?;
        let probability = f64::from(num::exp((logit - logsumexp).min(0.0)));
        check("top1_prob", row.top1_prob, probability, probability, slack)?;
        if let Some((rank, token)) = top.get(at).and_then(|top| repeated(top)) {
            let place = format!(
                "lens_top.token, sequence {}, position {}, layer {}, rank {rank}",
                info.seq, row.pos, row.layer
            );
            let path = trace.path().join(LENS_TOP);
            return Err(TraceError::malformed(&path, place, token, "a token that no earlier rank has"));
        }
        let logits: Vec<f32> = match top.get(at) {
            Some(top) => top.iter().map(|&(_, logit)| logit).collect(),
            None => vec![logit],
        };
        let (low, high) = entropy_bounds(&logits, logsumexp, trace.shape().vocab);
        check("entropy_nats", row.entropy_nats, low, high, slack)?;
    }
    Ok(lens.rows.len() as u64)
}

/// The first rank whose token an earlier one has.
fn repeated(top: &[(TokenId, f32)]) -> Option<(usize, TokenId)> {
    let mut seen = BTreeSet::new();
    top.iter()
        .enumerate()
        .find(|(_, (token, _))| !seen.insert(*token))
        .map(|(rank, (token, _))| (rank, *token))
}

/// The entropies that a distribution over `vocab` tokens can have, given its largest logits and its log-sum-exp.
///
/// The tokens not listed share what is left: none of them has more than the last one listed, and their entropy is
/// largest when they share evenly.
fn entropy_bounds(logits: &[f32], logsumexp: f32, vocab: u32) -> (f64, f64) {
    let surprise = |logit: f32| f64::from(logsumexp - logit).max(0.0);
    let listed: Vec<(f64, f64)> = logits
        .iter()
        .map(|&logit| (f64::from(num::exp((logit - logsumexp).min(0.0))), surprise(logit)))
        .collect();
    let known: f64 = listed.iter().map(|(p, surprise)| p * surprise).sum();
    let rest = (1.0 - listed.iter().map(|(p, _)| p).sum::<f64>()).max(0.0);
    let others = f64::from(vocab) - f64::from(u32::try_from(listed.len()).unwrap_or(u32::MAX));
    if rest == 0.0 || others <= 0.0 {
        return (known, known);
    }
    let least = listed.last().map_or(0.0, |&(_, surprise)| surprise);
    (known + rest * least, known + rest * (num::ln(others) - num::ln(rest)).max(0.0))
}

/// Names in the folder that the manifest does not account for.
fn unlisted(root: &Path, manifest: &Manifest) -> Result<Vec<String>, TraceError> {
    let mut known: BTreeSet<String> =
        ["manifest.json", "manifest.sha256", "facts", "tensors", "weights"].map(str::to_owned).into();
    known.extend(manifest.shards.iter().map(|shard| shard.path.clone()));
    known.extend(manifest.tables.iter().map(|table| table.path.clone()));
    known.extend(manifest.weights.iter().map(|weight| weight.path.clone()));
    known.extend(manifest.times.iter().map(|times| times.path.clone()));
    let mut found = Vec::new();
    for folder in ["", "facts/", "tensors/", "weights/"] {
        let path = root.join(folder);
        let Ok(entries) = fs::read_dir(&path) else {
            continue;
        };
        for entry in entries {
            let entry = entry.map_err(|error| TraceError::io(&path, error))?;
            let inside = format!("{folder}{}", entry.file_name().to_string_lossy());
            if !known.contains(&inside) {
                found.push(inside);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_bounds_close_on_the_truth_when_all_logits_are_listed() {
        // Probabilities 1/2, 1/4, 1/4: entropy 1.5 ln 2.
        let logits = [0.0_f32, -std::f32::consts::LN_2, -std::f32::consts::LN_2];
        let logsumexp = std::f32::consts::LN_2;
        let truth = 1.5 * std::f64::consts::LN_2;
        let (low, high) = entropy_bounds(&logits, logsumexp, 3);
        assert!((low - truth).abs() < 1e-6 && (high - truth).abs() < 1e-6, "{low} {high}");
        // Only the first is known: the rest is one token of 1/2 or spread over 999.
        let (low, high) = entropy_bounds(&logits[..1], logsumexp, 1000);
        assert!((low - std::f64::consts::LN_2).abs() < 1e-6, "{low}");
        assert!((high - (std::f64::consts::LN_2 + 0.5 * 999_f64.ln())).abs() < 1e-6, "{high}");
    }
}
