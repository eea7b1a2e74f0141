//! KV occupancy: peaks, byte-steps, keep ratios and the occupancy curve.
//!
//! A *step* is the end of the prompt or one decode step; it is named by the tokens seen by then. Occupancy at a step is
//! measured after its token was stored and before an eviction at that length: it is what attention needed. The peak of
//! a saw-tooth is therefore at the length of the eviction, and the drop shows at the next length. Where a prompt was
//! cut into chunks, nothing here depends on it. A sequence is a branch; blocks shared between branches count for each.

use crate::engine::{Observer, PassKind, Record, Stamp, Workload};
use crate::ledger::BranchKey;
use crate::types::{Bytes, ReqId};
use std::collections::BTreeMap;

/// Measures the KV occupancy of all sequences of a run.
#[derive(Clone, Debug)]
pub struct Memory {
    streams: u64,
    block_tokens: u64,
    entry_bytes: u64,
    prompts: BTreeMap<ReqId, u32>,
    sequences: BTreeMap<BranchKey, Tally>,
    curve: BTreeMap<u32, CurveSum>,
    refused: Vec<ReqId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    evictions: u64,
    entry_steps: u64,
    peak_entries: u64,
    peak_blocks: u64,
    decode_steps: u32,
    keep_ratio_sum: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct CurveSum {
    sequences: u32,
    entries: u64,
    blocks: u64,
}

/// What one sequence took up.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceMemory {
    /// The sequence.
    pub branch: BranchKey,
    /// Eviction events; each acts on every layer and KV head.
    pub evictions: u64,
    /// Live KV bytes summed over its steps.
    pub kv_byte_steps: Bytes,
    /// Largest live KV size, layers and KV heads summed.
    pub peak_kv_bytes: Bytes,
    /// Largest size of the blocks held, layers and KV heads summed.
    pub peak_allocated_kv_bytes: Bytes,
    /// Decode steps.
    pub decode_steps: u32,
    /// Resident tokens over tokens seen, mean over layers, KV heads and decode steps; `None` without decode steps.
    pub mean_keep_ratio: Option<f64>,
}

/// One point of the occupancy curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OccupancyPoint {
    /// Tokens seen.
    pub seen: u32,
    /// Sequences with a step at that length: past their prompt and not yet over.
    pub sequences: u32,
    /// Resident tokens, mean over layers, KV heads and those sequences.
    pub live_kv_tokens: f64,
    /// Token slots in the blocks held, mean over layers, KV heads and those sequences.
    pub allocated_kv_tokens: f64,
}

/// What a run took up.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryReport {
    /// Eviction events over all sequences.
    pub evictions: u64,
    /// Live KV bytes summed over all steps of all sequences: the area under their occupancy curves.
    pub kv_byte_steps: Bytes,
    /// Largest live KV size of any one sequence.
    pub peak_kv_bytes: Bytes,
    /// Largest size of the blocks held by any one sequence.
    pub peak_allocated_kv_bytes: Bytes,
    /// Each sequence that ran, by request and branch.
    pub sequences: Vec<SequenceMemory>,
    /// The occupancy curve, by tokens seen; lengths without a step have no point.
    pub curve: Vec<OccupancyPoint>,
    /// Requests that were refused.
    pub refused: Vec<ReqId>,
}

impl Memory {
    /// An observer for runs of `workload`.
    #[must_use]
    pub fn new(workload: &Workload) -> Self {
        Self {
            streams: workload.streams() as u64,
            block_tokens: u64::from(workload.block_tokens),
            entry_bytes: workload.shape.kv_bytes_per_entry(workload.bytes_per_scalar).get(),
            prompts: BTreeMap::new(),
            sequences: BTreeMap::new(),
            curve: BTreeMap::new(),
            refused: Vec::new(),
        }
    }

    fn stored(&mut self, key: BranchKey, kind: PassKind, seen: u32, entries: u64, blocks: u64) {
        let tally = self.sequences.entry(key).or_default();
        tally.peak_entries = tally.peak_entries.max(entries);
        tally.peak_blocks = tally.peak_blocks.max(blocks);
        if kind == PassKind::Prefill && self.prompts.get(&key.req) != Some(&seen) {
            return;
        }
        tally.entry_steps += entries;
        if kind == PassKind::Decode {
            tally.decode_steps += 1;
            tally.keep_ratio_sum += ratio(entries, self.streams * u64::from(seen));
        }
        let sum = self.curve.entry(seen).or_default();
        sum.sequences += 1;
        sum.entries += entries;
        sum.blocks += blocks;
    }

    /// What the run took up.
    #[must_use]
    pub fn report(&self) -> MemoryReport {
        let sequences: Vec<SequenceMemory> =
            self.sequences.iter().map(|(&key, tally)| self.sequence(key, tally)).collect();
        let largest = |of: fn(&SequenceMemory) -> Bytes| sequences.iter().map(of).max().unwrap_or_default();
        MemoryReport {
            evictions: sequences.iter().map(|sequence| sequence.evictions).sum(),
            kv_byte_steps: sequences.iter().map(|sequence| sequence.kv_byte_steps).sum(),
            peak_kv_bytes: largest(|sequence| sequence.peak_kv_bytes),
            peak_allocated_kv_bytes: largest(|sequence| sequence.peak_allocated_kv_bytes),
            curve: self.curve.iter().map(|(&seen, sum)| self.point(seen, sum)).collect(),
            refused: self.refused.clone(),
            sequences,
        }
    }

    fn sequence(&self, branch: BranchKey, tally: &Tally) -> SequenceMemory {
        let bytes = |entries: u64| Bytes::new(entries * self.entry_bytes);
        SequenceMemory {
            branch,
            evictions: tally.evictions,
            kv_byte_steps: bytes(tally.entry_steps),
            peak_kv_bytes: bytes(tally.peak_entries),
            peak_allocated_kv_bytes: bytes(tally.peak_blocks * self.block_tokens),
            decode_steps: tally.decode_steps,
            mean_keep_ratio: (tally.decode_steps > 0)
                .then(|| tally.keep_ratio_sum / f64::from(tally.decode_steps)),
        }
    }

    fn point(&self, seen: u32, sum: &CurveSum) -> OccupancyPoint {
        let streams = self.streams * u64::from(sum.sequences);
        OccupancyPoint {
            seen,
            sequences: sum.sequences,
            live_kv_tokens: ratio(sum.entries, streams),
            allocated_kv_tokens: ratio(sum.blocks * self.block_tokens, streams),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "entry counts stay below 2^53")]
fn ratio(numerator: u64, denominator: u64) -> f64 {
    numerator as f64 / denominator as f64
}

impl Observer for Memory {
    fn note(&mut self, _stamp: Stamp, record: &Record<'_>) {
        match *record {
            Record::Arrived { req, prompt_len, .. } => {
                self.prompts.insert(req, prompt_len);
            }
            Record::Refused { req, .. } => self.refused.push(req),
            Record::Stored { req, branch, kind, seen, live_entries, blocks } => {
                self.stored(BranchKey { req, branch }, kind, seen.get(), live_entries, blocks);
            }
            Record::Evicted { req, branch, .. } => {
                self.sequences.entry(BranchKey { req, branch }).or_default().evictions += 1;
            }
            _ => {}
        }
    }
}
