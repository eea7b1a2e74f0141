//! Sequences, problems, requests and weights from traces into a writer, a piece at a time.

use super::{EditReport, Loss, Selection, layers};
use crate::trace::{
    Chunk, LayerChunk, LensFact, LensPosition, RawLensFact, Request, SequenceEnd, SequenceInfo,
    SequenceStart, Trace, TraceError, TraceSource, TraceWriter, Weight,
};
use crate::types::SeqIdx;
use ndarray::{Array2, Array3};
use std::ops::Range;

/// Requests handed to the writer in one go.
const REQUESTS: usize = 4096;

pub(super) struct Copy {
    writer: TraceWriter,
    loss: Option<Loss>,
    sequences: u32,
    tokens: u64,
    problems: u32,
}

/// Tensors of one layer over a window of positions.
#[derive(Default)]
struct Tensors {
    hidden: Option<Array2<f32>>,
    attention: Option<[Array3<f32>; 3]>,
}

impl Copy {
    pub(super) fn new(writer: TraceWriter, is_half: bool) -> Self {
        Self { writer, loss: is_half.then(Loss::default), sequences: 0, tokens: 0, problems: 0 }
    }

    pub(super) fn weights(&mut self, trace: &Trace, selection: &Selection) -> Result<(), TraceError> {
        let layers = layers(trace, selection);
        for weight in self.writer.missing_weights() {
            let values = match weight {
                Weight::WO(layer) => trace.w_o(layers[layer.idx()])?.into_raw_vec_and_offset().0,
                Weight::FinalNorm => trace.final_norm()?,
                Weight::Unembedding => trace.unembedding()?.into_raw_vec_and_offset().0,
            };
            if weight != Weight::FinalNorm {
                self.count_loss(&values);
            }
            self.writer.put_weight(weight, &values)?;
        }
        Ok(())
    }

    /// Copies measured times, where they are taken.
    pub(super) fn times(&mut self, trace: &Trace) -> Result<(), TraceError> {
        if self.writer.misses_times() { self.writer.put_times(&trace.times()?) } else { Ok(()) }
    }

    /// Copies the selected part of one trace.
    pub(super) fn part(
        &mut self,
        trace: &Trace,
        selection: &Selection,
        left_out: &mut Vec<String>,
    ) -> Result<(), TraceError> {
        let offset = self.sequences;
        let all: Vec<u32> = (0..).take(trace.manifest().sequences.len()).collect();
        let wanted = selection.sequences.clone().unwrap_or(all);
        for &seq in &wanted {
            self.sequence(trace, SeqIdx::new(seq), selection)?;
        }
        if trace.manifest().branches.is_some() && selection.layers.is_none() {
            let problems = selection.problems.clone().unwrap_or_else(|| (0..trace.problems()).collect());
            let mut unlinked = 0;
            for index in problems {
                let mut problem = trace.problem(index)?;
                for branch in &mut problem.branches {
                    let Some(seq) = branch.seq else { continue };
                    let place = wanted.iter().position(|&taken| taken == seq.get());
                    // A cut prompt is no longer the branch's.
                    let is_whole = selection
                        .first
                        .is_none_or(|first| trace.sequence(seq).is_ok_and(|info| info.prompt_len <= first));
                    let place = place.filter(|_| is_whole).and_then(|place| u32::try_from(place).ok());
                    branch.seq = place.map(|place| SeqIdx::new(offset + place));
                    unlinked += u32::from(branch.seq.is_none());
                }
                self.writer.push_problem(&problem)?;
                self.problems += 1;
            }
            if unlinked > 0 {
                left_out.push(format!("the recorded sequence of {unlinked} branches: it is not taken whole"));
            }
        }
        if trace.manifest().requests.is_some() {
            self.requests(trace)?;
        }
        Ok(())
    }

    fn requests(&mut self, trace: &Trace) -> Result<(), TraceError> {
        let mut batch: Vec<Request> = Vec::new();
        let writer = &mut self.writer;
        trace.for_each_request(|_, request| {
            batch.push(request.clone());
            if batch.len() == REQUESTS {
                writer.push_requests(&batch)?;
                batch.clear();
            }
            Ok(())
        })?;
        if batch.is_empty() { Ok(()) } else { writer.push_requests(&batch) }
    }

    fn sequence(&mut self, trace: &Trace, seq: SeqIdx, selection: &Selection) -> Result<(), TraceError> {
        let info = trace.sequence(seq)?.clone();
        let len = info.len.min(selection.first.unwrap_or(u32::MAX));
        let is_cut = len < info.len;
        self.writer.begin_sequence(SequenceStart {
            item: info.item.clone(),
            prompt_len: info.prompt_len.min(len),
            bos_len: info.bos_len.min(len),
            prompt_text: info.prompt_text.clone().filter(|_| info.prompt_len <= len),
        })?;
        let tokens = trace.tokens(seq)?;
        let lens =
            if self.writer.stores_lens() { lens_positions(trace, &info, selection)? } else { Vec::new() };
        let step = trace.manifest().shard_tokens;
        let mut start = 0;
        while start < len {
            let end = start.saturating_add(step).min(len);
            let window = start..end;
            let tensors = self.tensors(trace, seq, selection, window.clone())?;
            let lens_window = lens.partition_point(|at| at.pos.get() < start)
                ..lens.partition_point(|at| at.pos.get() < end);
            let chunk_layers = tensors.iter().map(|layer| LayerChunk {
                hidden: layer.hidden.as_ref().map(|hidden| hidden.view()),
                q: layer.attention.as_ref().map(|[q, _, _]| q.view()),
                k: layer.attention.as_ref().map(|[_, k, _]| k.view()),
                v: layer.attention.as_ref().map(|[_, _, v]| v.view()),
            });
            let chunk = Chunk {
                tokens: &tokens[start as usize..end as usize],
                layers: chunk_layers.collect(),
                lens: &lens[lens_window],
            };
            self.writer.push(&chunk)?;
            start = end;
        }
        let end = if is_cut {
            let expected_answer = info.expected_answer;
            SequenceEnd { finish_reason: "length".to_owned(), expected_answer, ..SequenceEnd::default() }
        } else {
            SequenceEnd {
                finish_reason: info.finish_reason,
                generated_text: info.generated_text,
                expected_answer: info.expected_answer,
                answer: info.answer,
                correct: info.correct,
            }
        };
        self.writer.end_sequence(end)?;
        self.sequences += 1;
        self.tokens += u64::from(len);
        Ok(())
    }

    /// Tensors of a window, `[layer]`; empty when there are none.
    fn tensors(
        &mut self,
        trace: &Trace,
        seq: SeqIdx,
        selection: &Selection,
        window: Range<u32>,
    ) -> Result<Vec<Tensors>, TraceError> {
        let manifest = trace.manifest();
        let (hidden, attention) = (manifest.holds("hidden"), manifest.holds("q"));
        if !hidden && !attention {
            return Ok(Vec::new());
        }
        layers(trace, selection)
            .into_iter()
            .map(|layer| {
                let mut tensors = Tensors::default();
                if hidden {
                    tensors.hidden = Some(trace.hidden_window(seq, layer, window.clone())?);
                }
                if attention {
                    let layer = trace.layer_window(seq, layer, window.clone())?;
                    let parts = [layer.q, layer.k, layer.v];
                    for part in &parts {
                        self.count_loss(part.as_slice().unwrap_or_default());
                    }
                    tensors.attention = Some(parts);
                }
                Ok(tensors)
            })
            .collect()
    }

    fn count_loss(&mut self, values: &[f32]) {
        if let Some(loss) = &mut self.loss {
            values.iter().for_each(|&value| loss.add(value));
        }
    }

    pub(super) fn finish(self, left_out: Vec<String>) -> Result<EditReport, TraceError> {
        let finished = self.writer.finish()?;
        Ok(EditReport {
            digest: finished.digest,
            sequences: self.sequences,
            tokens: self.tokens,
            problems: self.problems,
            left_out,
            loss: self.loss.filter(|loss| loss.values > 0),
        })
    }
}

/// Lens facts of the selected layers, by position.
fn lens_positions(
    trace: &Trace,
    info: &SequenceInfo,
    selection: &Selection,
) -> Result<Vec<LensPosition>, TraceError> {
    let seq = SeqIdx::new(info.seq);
    let table = trace.lens_table(seq)?;
    let top = if trace.manifest().lens_top > 0 { trace.lens_top(seq)? } else { Vec::new() };
    let count = usize::from(trace.shape().layers);
    let wanted = layers(trace, selection);
    let positions = table.rows.chunks(count).enumerate().map(|(at, rows)| {
        let facts = wanted.iter().map(|layer| {
            let (row, place) = (&rows[layer.idx()], at * count + layer.idx());
            LensFact {
                entropy_nats: row.entropy_nats,
                logsumexp: table.logsumexp[place],
                raw: row
                    .raw_entropy_nats
                    .zip(table.raw_logsumexp[place])
                    .map(|(entropy_nats, logsumexp)| RawLensFact { entropy_nats, logsumexp }),
                top: top.get(place).cloned().unwrap_or_else(|| vec![(row.top1, table.top1_logit[place])]),
            }
        });
        LensPosition { pos: rows[0].pos, layers: facts.collect() }
    });
    Ok(positions.collect())
}
