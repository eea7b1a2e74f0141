//! Graphs that change what a layer has stored, or say what of it is seen, where it lies.

use super::{
    builder::{Attr, BuiltGraph, Dim, GraphBuilder},
    io,
};
use crate::family::DecoderConfig;

const SLOT: Dim = Dim::Named("slot");
const ADDED: Dim = Dim::Named("added");

/// Rows of each KV head by index, zero-padded where the index is the number of slots.
pub(crate) fn gather_graph(config: &DecoderConfig) -> BuiltGraph {
    let (kv, head) = (Dim::Fixed(config.kv_heads), Dim::Fixed(config.head_dim));
    let taken = Dim::Named("taken");
    let mut builder = GraphBuilder::new("gather");
    builder.input(io::STORED, &[kv, SLOT, head]);
    builder.integer_input(io::TAKEN, &[kv, taken, Dim::Fixed(1)]);
    let zeros = builder.zeros("zeros", &[config.kv_heads, 1, config.head_dim]);
    let padded = builder.node("Concat", &[io::STORED, &zeros], "padded", &[("axis", Attr::Int(1))]);
    builder.node("GatherND", &[&padded, io::TAKEN], io::RESULT, &[("batch_dims", Attr::Int(1))]);
    builder.output(io::RESULT, &[kv, taken, head]);
    builder.finish()
}

/// Rows behind rows, in every KV head.
pub(crate) fn join_graph(config: &DecoderConfig) -> BuiltGraph {
    let (kv, head) = (Dim::Fixed(config.kv_heads), Dim::Fixed(config.head_dim));
    let mut builder = GraphBuilder::new("join");
    builder.input(io::STORED, &[kv, SLOT, head]);
    builder.input(io::ADDED, &[kv, ADDED, head]);
    builder.node("Concat", &[io::STORED, io::ADDED], io::RESULT, &[("axis", Attr::Int(1))]);
    builder.output(io::RESULT, &[kv, Dim::Named("joined"), head]);
    builder.finish()
}

/// What is added to the scores of rows of several lanes, from whose the keys are: a row sees those that all have in common and those of its lane; of
/// the new ones what is given.
pub(crate) fn lanes_graph(config: &DecoderConfig) -> BuiltGraph {
    let (rows, present, one) = (Dim::Named("row"), Dim::Named("present"), Dim::Fixed(1));
    let mut builder = GraphBuilder::new("lanes");
    builder.input(io::PAST_MARKS, &[one, one, SLOT]);
    builder.input(io::NEW_MARKS, &[one, one, rows]);
    builder.input(io::QUERY_MARKS, &[one, rows, one]);
    builder.input(io::NEW_BIAS, &[one, rows, rows]);
    let (to_present, zero) = ([("axis", Attr::Int(2))], builder.scalar("zero", 0.0));
    let hidden = builder.scalar("hidden", f32::NEG_INFINITY);
    builder.node("Concat", &[io::PAST_MARKS, io::NEW_MARKS], io::PRESENT_MARKS, &to_present);
    let is_own = builder.node("Equal", &[io::PAST_MARKS, io::QUERY_MARKS], "is_own", &[]);
    let is_common = builder.node("Less", &[io::PAST_MARKS, &zero], "is_common", &[]);
    let is_seen = builder.node("Or", &[&is_own, &is_common], "is_seen", &[]);
    let past = builder.node("Where", &[&is_seen, &zero, &hidden], "past", &[]);
    let by_row = builder.node("Concat", &[&past, io::NEW_BIAS], "by_row", &to_present);
    tile(&mut builder, config, &by_row);
    builder.output(io::BIAS, &[one, Dim::Named("stacked"), present]);
    builder.output(io::PRESENT_MARKS, &[one, one, present]);
    builder.finish()
}

/// What is added to the scores, from positions: a query sees keys that are not behind it and not `reach` or more before it.
pub(crate) fn visible_graph(config: &DecoderConfig) -> BuiltGraph {
    let (heads, q_pos, present) = (Dim::Named("bias_head"), Dim::Named("q_pos"), Dim::Named("present"));
    let one = Dim::Fixed(1);
    let mut builder = GraphBuilder::new("visible");
    builder.input(io::PAST_MARKS, &[heads, one, SLOT]);
    builder.input(io::NEW_MARKS, &[heads, one, q_pos]);
    builder.input(io::QUERY_MARKS, &[one, q_pos, one]);
    builder.input(io::REACH, &[one, one, one]);
    let marks = [io::PAST_MARKS, io::NEW_MARKS];
    builder.node("Concat", &marks, io::PRESENT_MARKS, &[("axis", Attr::Int(2))]);
    // A hidden key is infinitely far back, which is beyond any reach.
    let age = builder.node("Sub", &[io::QUERY_MARKS, io::PRESENT_MARKS], "age", &[]);
    let zero = builder.scalar("zero", 0.0);
    let hidden = builder.scalar("hidden", f32::NEG_INFINITY);
    let is_past = builder.node("GreaterOrEqual", &[&age, &zero], "is_past", &[]);
    let is_near = builder.node("Less", &[&age, io::REACH], "is_near", &[]);
    let is_seen = builder.node("And", &[&is_past, &is_near], "is_seen", &[]);
    let bias = builder.node("Where", &[&is_seen, &zero, &hidden], "by_query", &[]);
    tile(&mut builder, config, &bias);
    builder.output(io::BIAS, &[heads, Dim::Named("stacked"), present]);
    builder.output(io::PRESENT_MARKS, &[heads, one, present]);
    builder.finish()
}

/// The bias of each row for every query head of a group.
fn tile(builder: &mut GraphBuilder, config: &DecoderConfig, by_row: &str) {
    let repeats = builder.integers("repeats", &[1, config.group() as i64, 1]);
    builder.node("Tile", &[by_row, &repeats], io::BIAS, &[]);
}
