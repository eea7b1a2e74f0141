//! The Mooncake dialect: one request a line, its prompt known by the ids of its blocks.
//!
//! ```json
//! {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3]}
//! ```
//!
//! `timestamp` is in milliseconds. Equal ids mean equal tokens in the block and in all blocks before it; the last block may
//! be short and has an id too. Lines do not say how many tokens a block has, and mismatched sizes are the usual mistake, so
//! a file `<name>.meta.json` beside the lines says it; without one, the importer must be told.

use super::folder;
use super::{
    DecodingInfo, DerivedFrom, FinishedTrace, Leftover, ModelInfo, Prefix, Request, StoredFields,
    StoredRequests, StoredWeights, SyntheticInfo, ToolInfo, Trace, TraceError, TraceHeader, TraceSource,
    TraceWriter, WorkloadInfo,
};
use crate::table::write_whole;
use crate::types::{ModelShape, SeqIdx, TokenId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Tokens of a block in the published Mooncake traces.
pub const MOONCAKE_BLOCK_TOKENS: u32 = 512;

/// Requests in memory at a time.
const BATCH: usize = 4096;
/// Longer lines are refused: a million ids need less.
const MAX_LINE_BYTES: u64 = 1 << 26;

/// A line as it is written.
#[derive(Serialize)]
struct Line<'a> {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: &'a [u64],
}

/// A line as it is read: other keys are left alone, and the names that other tools use are known.
#[derive(Deserialize)]
struct ReadLine {
    #[serde(default, alias = "created_time")]
    timestamp: f64,
    #[serde(alias = "input_tokens")]
    input_length: u32,
    #[serde(alias = "output_tokens")]
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// What the lines do not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MooncakeMeta {
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Lines in the file.
    pub lines: u64,
    /// SHA-256 (hex) of the trace that the lines were made from.
    pub source: String,
    /// How ids are made.
    pub hash: String,
    /// What generated the requests; absent when they were recorded or nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<SyntheticInfo>,
}

/// Where the file beside `lines` is.
#[must_use]
pub fn meta_path(lines: &Path) -> PathBuf {
    let mut name = lines.file_name().unwrap_or_default().to_owned();
    name.push(".meta.json");
    lines.with_file_name(name)
}

/// Ids of chained blocks, in the order of their first appearance.
#[derive(Debug, Default)]
pub struct BlockIds {
    ids: BTreeMap<[u8; 32], u64>,
}

impl BlockIds {
    /// The ids of the blocks of a prompt: SHA-256 over the digest of the block before and the tokens of this one.
    pub fn of(&mut self, tokens: &[TokenId], block_tokens: u32) -> Vec<u64> {
        let mut previous = [0_u8; 32];
        let chunks = tokens.chunks(block_tokens.max(1) as usize);
        chunks
            .map(|block| {
                let mut hash = Sha256::new();
                hash.update(previous);
                block.iter().for_each(|token| hash.update(token.get().to_le_bytes()));
                previous = hash.finalize().into();
                let next = self.ids.len() as u64;
                *self.ids.entry(previous).or_insert(next)
            })
            .collect()
    }
}

/// Writes the requests of a trace as lines: those it was imported from, else its branches (all branches of problem `i` arrive
/// at `i · gap_ms`, the root is not a request), else its sequences. A branch's output is that behind its own prefix.
///
/// # Errors
/// When the trace is damaged, `block_tokens` (by default those of imported requests, else [`MOONCAKE_BLOCK_TOKENS`]) differs from that of imported requests, or the system refuses.
pub fn export(
    trace: &Trace,
    block_tokens: Option<u32>,
    gap_ms: u64,
    target: &Path,
) -> Result<MooncakeMeta, TraceError> {
    let imported = trace.manifest().requests.as_ref().map(|info| info.block_tokens);
    let block_tokens = block_tokens.or(imported).unwrap_or(MOONCAKE_BLOCK_TOKENS);
    if block_tokens == 0 {
        return Err(TraceError::chunk("block_tokens", 0, "at least 1"));
    }
    let (mut text, mut lines, mut ids) = (String::new(), 0, BlockIds::default());
    let mut put = |timestamp, input, output, hash_ids: &[u64]| {
        let line = Line { timestamp, input_length: input, output_length: output, hash_ids };
        text.push_str(&serde_json::to_string(&line).unwrap_or_default());
        text.push('\n');
        lines += 1;
    };
    if let Some(info) = &trace.manifest().requests {
        if info.block_tokens != block_tokens {
            let accepted = format!("{}, as imported", info.block_tokens);
            return Err(TraceError::chunk("block_tokens", block_tokens, accepted));
        }
        trace.for_each_request(|_, request| {
            put(
                request.timestamp_ms,
                request.input_tokens.into(),
                request.output_tokens.into(),
                &request.hashes,
            );
            Ok(())
        })?;
    } else if trace.problems() > 0 {
        for index in 0..trace.problems() {
            for branch in trace.problem(index)?.branches.iter().skip(1) {
                let output =
                    branch.outcome(Prefix::Own).or(branch.root.as_ref()).map_or(0, |own| own.generated);
                let hashes = ids.of(&branch.tokens, block_tokens);
                put(
                    u64::from(index).saturating_mul(gap_ms),
                    branch.tokens.len() as u64,
                    output.into(),
                    &hashes,
                );
            }
        }
    } else {
        for (at, info) in (0_u64..).zip(&trace.manifest().sequences) {
            let tokens = trace.tokens(SeqIdx::new(info.seq))?;
            let hashes = ids.of(&tokens[..info.prompt_len as usize], block_tokens);
            let output = u64::from(info.len - info.prompt_len);
            put(at.saturating_mul(gap_ms), info.prompt_len.into(), output, &hashes);
        }
    }
    let meta = MooncakeMeta {
        block_tokens,
        lines,
        source: trace.digest(),
        hash: "ids in order of first appearance of SHA-256(digest of the block before, 32 zero bytes at first; token ids \
               as little-endian u32)"
            .to_owned(),
        synthetic: trace.manifest().synthetic.clone(),
    };
    let meta_file = meta_path(target);
    let json = serde_json::to_vec_pretty(&meta).unwrap_or_default();
    write_whole(target, text.as_bytes()).map_err(|error| TraceError::io(target, error))?;
    write_whole(&meta_file, &json).map_err(|error| TraceError::io(&meta_file, error))?;
    Ok(meta)
}

/// How a file of lines is imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Tokens of a block; absent to take it from the file beside the lines.
    pub block_tokens: Option<u32>,
    /// Whether a last line that was cut off is left out instead of refused.
    pub complete_part: bool,
}

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The trace.
    pub trace: FinishedTrace,
    /// Requests.
    pub requests: u64,
    /// Lines left out because the file ends within one: 0 or 1.
    pub dropped: u64,
}

/// Writes the requests of a file of lines as a trace without sequences and tensors. Requests arrive in order of time; lines
/// that are out of order are refused.
///
/// # Errors
/// When a line is not what it should be, with its number and the byte at which it begins; when the size of a block is not
/// known or contradicts the lines; or as [`TraceWriter`].
pub fn import(lines: &Path, options: ImportOptions, target: &Path) -> Result<Imported, TraceError> {
    let io = |error| TraceError::io(lines, error);
    let meta = meta(lines)?;
    let block_tokens = block_tokens(lines, meta.as_ref(), options)?;
    let synthetic = meta.and_then(|meta| meta.synthetic);
    let mut file = File::open(lines).map_err(io)?;
    let (_, digest) = folder::sha256_of_file(&mut file, lines)?;
    let mut writer =
        TraceWriter::create(target, header(lines, &digest, block_tokens, synthetic), Leftover::Refuse)?;
    let outcome = match fill(lines, options.complete_part, block_tokens, &mut writer) {
        Ok(dropped) => {
            let requests = writer.finished_requests();
            writer.finish().map(|trace| Imported { trace, requests, dropped })
        }
        Err(error) => {
            drop(writer);
            Err(error)
        }
    };
    if outcome.is_err() {
        folder::discard_unfinished(target);
    }
    outcome
}

/// Reads the lines into the writer; gives the number of lines left out.
fn fill(
    lines: &Path,
    complete_part: bool,
    block_tokens: u32,
    writer: &mut TraceWriter,
) -> Result<u64, TraceError> {
    let io = |error| TraceError::io(lines, error);
    let mut reader = BufReader::new(File::open(lines).map_err(io)?);
    let (mut batch, mut bytes, mut number, mut at, mut dropped) = (Vec::new(), Vec::new(), 0_u64, 0_u64, 0);
    let mut place = String::new();
    let mut before = 0;
    loop {
        bytes.clear();
        let mut line = std::io::Read::take(&mut reader, MAX_LINE_BYTES);
        let read = line.read_until(b'\n', &mut bytes).map_err(io)?;
        if read == 0 {
            break;
        }
        number += 1;
        let is_whole = bytes.ends_with(b"\n");
        place = format!("line {number}, from byte {at}");
        at += read as u64;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match parse(&bytes, block_tokens) {
            Ok(request) if request.timestamp_ms < before => {
                let accepted =
                    format!("at least {before}, that of the line before: requests arrive in order of time");
                return Err(TraceError::malformed(
                    lines,
                    format!("{place}: timestamp_ms"),
                    request.timestamp_ms,
                    accepted,
                ));
            }
            Ok(request) => {
                before = request.timestamp_ms;
                batch.push(request);
            }
            // A last line without its end was cut off by whatever wrote it.
            Err(_) if !is_whole && complete_part => dropped = 1,
            Err((found, accepted)) => {
                let found = if is_whole { found } else { format!("{found}; the file ends within this line") };
                return Err(TraceError::malformed(lines, place, found, accepted));
            }
        }
        if batch.len() == BATCH {
            writer.push_requests(&batch).map_err(|error| located(lines, &place, error))?;
            batch.clear();
        }
    }
    if !batch.is_empty() {
        writer.push_requests(&batch).map_err(|error| located(lines, &format!("up to {place}"), error))?;
    }
    if writer.finished_requests() == 0 {
        return Err(TraceError::malformed(lines, "file", "no request", "at least one line"));
    }
    Ok(dropped)
}

fn located(lines: &Path, place: &str, error: TraceError) -> TraceError {
    match error {
        TraceError::Chunk { what, found, accepted } => {
            TraceError::malformed(lines, format!("{place}: {what}"), found, accepted)
        }
        other => other,
    }
}

/// What the file beside the lines says, if there is one.
fn meta(lines: &Path) -> Result<Option<MooncakeMeta>, TraceError> {
    let path = meta_path(lines);
    match std::fs::read(&path) {
        Ok(bytes) => folder::parse_json(&bytes, &path).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TraceError::io(&path, error)),
    }
}

fn block_tokens(
    lines: &Path,
    meta: Option<&MooncakeMeta>,
    options: ImportOptions,
) -> Result<u32, TraceError> {
    let path = meta_path(lines);
    let stated = meta.map(|meta| meta.block_tokens);
    if options.block_tokens == Some(0) {
        return Err(TraceError::chunk("block size", 0, "at least 1"));
    }
    match (stated, options.block_tokens) {
        (Some(stated), Some(given)) if stated != given => {
            Err(TraceError::malformed(&path, "block_tokens", stated, format!("{given}, as asked for")))
        }
        (stated, given) => given.or(stated).filter(|&tokens| tokens > 0).ok_or_else(|| {
            let accepted =
                "a block size: the lines do not state it, and there is no file beside them that does";
            TraceError::malformed(lines, "block size", "none", accepted)
        }),
    }
}

type Refused = (String, String);

fn parse(bytes: &[u8], block_tokens: u32) -> Result<Request, Refused> {
    let line: ReadLine =
        serde_json::from_slice(bytes).map_err(|error| (error.to_string(), "a request as JSON".to_owned()))?;
    let most = line.input_length.div_ceil(block_tokens);
    if line.hash_ids.len() as u64 > u64::from(most) {
        let accepted =
            format!("at most {most} ids for {} tokens in blocks of {block_tokens}", line.input_length);
        return Err((format!("{} hash_ids", line.hash_ids.len()), accepted));
    }
    if !(0.0..9e15).contains(&line.timestamp) {
        return Err((format!("timestamp {}", line.timestamp), "milliseconds from 0 on".to_owned()));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    let timestamp_ms = line.timestamp as u64;
    Ok(Request {
        timestamp_ms,
        input_tokens: line.input_length,
        output_tokens: line.output_length,
        hashes: line.hash_ids,
    })
}

fn header(lines: &Path, digest: &str, block_tokens: u32, synthetic: Option<SyntheticInfo>) -> TraceHeader {
    let name = lines.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    TraceHeader {
        synthetic,
        tool: ToolInfo {
            name: "kvlab".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: None,
        },
        model: ModelInfo {
            name: "unknown".to_owned(),
            family: "unknown".to_owned(),
            source_file: None,
            weights_sha256: None,
            tokenizer_sha256: None,
            graph_sha256: None,
            precision: "unknown".to_owned(),
            config: serde_json::Value::Null,
        },
        // Requests say nothing about the model that served them.
        shape: ModelShape { layers: 1, q_heads: 1, kv_heads: 1, head_dim: 1, hidden: 1, vocab: 1 },
        rope: None,
        runtime: None,
        decoding: DecodingInfo {
            mode: "given".to_owned(),
            max_new_tokens: 0,
            chat_template: false,
            batch: None,
            protocol: None,
        },
        workload: WorkloadInfo { name, seed: 0, file_sha256: Some(digest.to_owned()) },
        seed: 0,
        shard_tokens: TraceHeader::SHARD_TOKENS,
        fields: StoredFields { hidden: false, attention: None, lens: None, lens_top: 0 },
        weights: StoredWeights::default(),
        branches: None,
        requests: Some(StoredRequests { block_tokens }),
        times: false,
        derived_from: vec![DerivedFrom {
            digest: digest.to_owned(),
            how: "import of Mooncake lines".to_owned(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ids_mean_equal_tokens_up_to_there() {
        let mut ids = BlockIds::default();
        let tokens = |list: &[u32]| list.iter().copied().map(TokenId::new).collect::<Vec<_>>();
        assert_eq!(ids.of(&tokens(&[1, 2, 3, 4, 5]), 2), [0, 1, 2]);
        assert_eq!(ids.of(&tokens(&[1, 2, 3, 4, 6]), 2), [0, 1, 3]);
        // The same second block behind another first one is another id.
        assert_eq!(ids.of(&tokens(&[9, 2, 3, 4]), 2), [4, 5]);
        // A short last block is not the full one.
        assert_eq!(ids.of(&tokens(&[1, 2, 3]), 2), [0, 6]);
    }
}
