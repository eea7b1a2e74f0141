//! The graph of the output head: rows to logits.
//!
//! It has no norm. Rows are normed before they come here, or not, so one session serves the model's own logits and both
//! forms of the logit lens.

use super::{
    builder::{Attr, BuiltGraph, Dim, GraphBuilder, with_revision},
    io,
};
use crate::family::DecoderConfig;

/// The head's graph with its matrix, `[vocab, hidden]`.
pub(crate) fn head_graph(config: &DecoderConfig, matrix: &[f32]) -> BuiltGraph {
    let mut builder = GraphBuilder::new("head");
    builder.input(io::ROWS, &[Dim::Named("row"), Dim::Fixed(config.hidden)]);
    let weight = builder.weight("head", &[config.vocab, config.hidden], &[matrix]);
    builder.node("Gemm", &[io::ROWS, &weight], io::LOGITS, &[("transB", Attr::Int(1))]);
    builder.output(io::LOGITS, &[Dim::Named("row"), Dim::Fixed(config.vocab)]);
    builder.finish()
}

/// A graph that does next to nothing, to see whether a provider works, or reads this revision of the file format.
pub(crate) fn probe(revision: Option<i64>) -> Vec<u8> {
    let mut builder = GraphBuilder::new("probe");
    builder.input(io::ROWS, &[Dim::Named("row"), Dim::Fixed(1)]);
    builder.node("Add", &[io::ROWS, io::ROWS], io::LOGITS, &[]);
    builder.output(io::LOGITS, &[Dim::Named("row"), Dim::Fixed(1)]);
    let plain = builder.finish().model;
    match revision {
        Some(revision) => with_revision(plain, revision),
        None => plain,
    }
}
