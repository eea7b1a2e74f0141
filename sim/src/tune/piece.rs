//! A trace problem by problem: some of its sequences as a trace of their own.

use super::TuneError;
use crate::run::RunError;
use crate::trace::{LayerTensors, LensRow, RopeInfo, SequenceMeta, TraceError, TraceSource};
use crate::types::{LayerIdx, ModelShape, SeqIdx, TokenId};
use ndarray::{Array2, Array3};
use std::collections::BTreeMap;

/// Some sequences of a trace, under their own numbers.
pub(super) struct Piece<'a> {
    pub(super) source: &'a dyn TraceSource,
    pub(super) sequences: Vec<SequenceMeta>,
}

impl TraceSource for Piece<'_> {
    fn name(&self) -> &str {
        self.source.name()
    }
    fn digest(&self) -> String {
        self.source.digest()
    }
    fn is_synthetic(&self) -> bool {
        self.source.is_synthetic()
    }
    fn shape(&self) -> &ModelShape {
        self.source.shape()
    }
    fn sequences(&self) -> &[SequenceMeta] {
        &self.sequences
    }
    fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        self.source.layer(seq, layer)
    }
    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        self.source.lens(seq)
    }
    fn prompt_tokens(&self, seq: SeqIdx) -> Result<Vec<TokenId>, TraceError> {
        self.source.prompt_tokens(seq)
    }
    fn rope(&self) -> Option<&RopeInfo> {
        self.source.rope()
    }
    fn w_o(&self, layer: LayerIdx) -> Result<Array3<f32>, TraceError> {
        self.source.w_o(layer)
    }
    fn final_norm(&self) -> Result<Vec<f32>, TraceError> {
        self.source.final_norm()
    }
    fn final_norm_eps(&self) -> Option<f64> {
        self.source.final_norm_eps()
    }
    fn last_hidden(&self, seq: SeqIdx) -> Result<Array2<f32>, TraceError> {
        self.source.last_hidden(seq)
    }
    fn unembedding(&self) -> Result<Array2<f32>, TraceError> {
        self.source.unembedding()
    }
}

/// The sequences of each problem, and the problems' ids in order of appearance.
pub(super) fn items(
    source: &dyn TraceSource,
    read: &[SequenceMeta],
) -> Result<(Vec<String>, Vec<Vec<SequenceMeta>>), TuneError> {
    let (mut ids, mut of): (Vec<String>, Vec<Vec<SequenceMeta>>) = (Vec::new(), Vec::new());
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for meta in read {
        let place = *places.entry(meta.item.as_str()).or_insert_with(|| {
            ids.push(meta.item.clone());
            of.push(Vec::new());
            ids.len() - 1
        });
        of[place].push(meta.clone());
    }
    if ids.is_empty() {
        return Err(RunError::NoSequences { source_name: source.name().to_owned() }.into());
    }
    Ok((ids, of))
}
