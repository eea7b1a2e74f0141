//! Requests known by the blocks of their prompts: what prefix-cache studies need, and all that public traces tell.

use super::TraceError;
use super::facts::Facts;
use super::facts_schema::{REQUEST_BLOCKS, REQUESTS, Rows};
use crate::table::Table;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Arrival in milliseconds from the beginning of the trace.
    pub timestamp_ms: u64,
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Ids of the prompt's blocks: equal ids mean equal tokens in the block and in all blocks before it. The last block may
    /// be short.
    pub hashes: Vec<u64>,
}

/// What holds for all requests of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredRequests {
    /// Tokens of a block.
    pub block_tokens: u32,
}

/// Rows of requests `first..` as two tables, by path.
pub(super) fn encode(first: u64, requests: &[Request]) -> Result<Vec<(&'static str, Table)>, TraceError> {
    let (mut rows, mut blocks) = (Rows::new(REQUESTS), Rows::new(REQUEST_BLOCKS));
    for (at, request) in (first..).zip(requests) {
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        let count = i64::try_from(request.hashes.len()).unwrap_or(i64::MAX);
        rows.int(0, at);
        rows.int(1, i64::try_from(request.timestamp_ms).unwrap_or(i64::MAX));
        rows.int(2, request.input_tokens);
        rows.int(3, request.output_tokens);
        rows.int(4, count);
        for (block, hash) in (0_i64..).zip(&request.hashes) {
            blocks.int(0, at);
            blocks.int(1, block);
            blocks.int(2, hash.cast_signed());
        }
    }
    let take = |rows: &mut Rows| rows.take().map_err(TraceError::table);
    Ok(vec![(REQUEST_BLOCKS, take(&mut blocks)?), (REQUESTS, take(&mut rows)?)])
}

/// Refuses requests that no reader would accept; gives their blocks.
pub(super) fn check(
    first: u64,
    last_arrival: u64,
    requests: &[Request],
    stored: StoredRequests,
) -> Result<u64, TraceError> {
    let mut arrival = last_arrival;
    let mut blocks = 0;
    for (at, request) in (first..).zip(requests) {
        let what = |part: &str| format!("request {at}: {part}");
        if request.timestamp_ms < arrival || i64::try_from(request.timestamp_ms).is_err() {
            return Err(TraceError::chunk(
                what("timestamp_ms"),
                request.timestamp_ms,
                format!("at least {arrival}"),
            ));
        }
        arrival = request.timestamp_ms;
        let most = u64::from(request.input_tokens.div_ceil(stored.block_tokens.max(1)));
        if request.hashes.len() as u64 > most {
            let accepted = format!("at most {most}, one for each {} tokens", stored.block_tokens);
            return Err(TraceError::chunk(what("hashes"), request.hashes.len(), accepted));
        }
        if let Some(hash) = request.hashes.iter().find(|hash| i64::try_from(**hash).is_err()) {
            return Err(TraceError::chunk(what("hashes"), hash, "below 2^63"));
        }
        blocks += request.hashes.len() as u64;
    }
    Ok(blocks)
}

/// The blocks that rows of the request table announce.
pub(super) fn blocks(table: &Table, path: &Path) -> Result<u64, TraceError> {
    let facts = Facts::check(table, REQUESTS, path)?;
    (0..table.rows()).try_fold(0, |total, row| Ok(total + u64::from(facts.count("blocks", row)?)))
}

/// Requests `first..` from their rows.
pub(super) fn decode(
    first: u64,
    table: &Table,
    path: &Path,
    hashes: &Table,
    hashes_path: &Path,
) -> Result<Vec<Request>, TraceError> {
    let facts = Facts::check(table, REQUESTS, path)?;
    let blocks = Facts::check(hashes, REQUEST_BLOCKS, hashes_path)?;
    let mut block_row = 0..hashes.rows();
    let natural = |facts: &Facts<'_>, column: &str, row: usize| {
        let found = facts.int(column, row);
        u64::try_from(found).map_err(|_| facts.bad(column, row, found, "at least 0"))
    };
    let mut arrival = 0;
    (first..)
        .zip(0..table.rows())
        .map(|(at, row)| {
            let at = i64::try_from(at).unwrap_or(i64::MAX);
            facts.expect("request", row, at)?;
            let timestamp_ms = natural(&facts, "timestamp_ms", row)?;
            if timestamp_ms < arrival {
                return Err(facts.bad("timestamp_ms", row, timestamp_ms, format!("at least {arrival}")));
            }
            arrival = timestamp_ms;
            let count = facts.count("blocks", row)?;
            let hashes = (0..count)
                .zip(block_row.by_ref())
                .map(|(block, row)| {
                    blocks.expect("request", row, at)?;
                    blocks.expect("block", row, block)?;
                    natural(&blocks, "hash", row)
                })
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Request {
                timestamp_ms,
                input_tokens: facts.count("input_tokens", row)?,
                output_tokens: facts.count("output_tokens", row)?,
                hashes,
            })
        })
        .collect()
}
