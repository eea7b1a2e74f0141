//! Decoder graphs in ONNX form, written in memory.
//!
//! Responsible for the graph of one layer, that of the output head, and small ones over a cache that lies on a device. Only standard operators are used (opset 21), so any
//! ONNX tool can read them. Every layer of a model has the same graph; only the weights differ.

mod builder;
mod cache;
mod head;
mod layer;
pub(crate) mod proto;

pub(crate) use builder::BuiltGraph;
pub(crate) use cache::{gather_graph, join_graph, lanes_graph, visible_graph};
pub(crate) use head::{head_graph, probe};
pub(crate) use layer::{AttentionOutput, Residence, layer_graph};

/// The name under which the weights are handed to the runtime, beside the graph.
pub(crate) const WEIGHTS_LOCATION: &str = "weights";

/// Names of inputs and outputs.
pub(crate) mod io {
    /// Residual stream before the layer, `[q_pos, hidden]`.
    pub(crate) const HIDDEN_IN: &str = "hidden_in";
    /// Cosines, `[q_pos, head_dim]`.
    pub(crate) const COS: &str = "cos";
    /// Sines, `[q_pos, head_dim]`.
    pub(crate) const SIN: &str = "sin";
    /// Keys already stored, `[kv_head, slot, head_dim]`.
    pub(crate) const PAST_KEYS: &str = "past_keys";
    /// Values already stored, `[kv_head, slot, head_dim]`.
    pub(crate) const PAST_VALUES: &str = "past_values";
    /// Added to the scores, `[1 or kv_head, group * q_pos, slot + q_pos]`; minus infinity hides.
    pub(crate) const BIAS: &str = "bias";
    /// Residual stream after the layer, `[q_pos, hidden]`.
    pub(crate) const HIDDEN_OUT: &str = "hidden_out";
    /// Stored and new keys, after rotation, `[kv_head, slot + q_pos, head_dim]`.
    pub(crate) const PRESENT_KEYS: &str = "present_keys";
    /// Stored and new values, `[kv_head, slot + q_pos, head_dim]`.
    pub(crate) const PRESENT_VALUES: &str = "present_values";
    /// Queries after rotation, `[q_head, q_pos, head_dim]`.
    pub(crate) const QUERIES: &str = "queries";
    /// New keys, after rotation, `[kv_head, q_pos, head_dim]`.
    pub(crate) const NEW_KEYS: &str = "keys";
    /// New values, `[kv_head, q_pos, head_dim]`.
    pub(crate) const NEW_VALUES: &str = "values";
    /// Zero for each row after the layer whose numbers are all finite, else not a number, `[q_pos]`.
    pub(crate) const HIDDEN_PROBE: &str = "hidden_probe";
    /// Attention probabilities, `[kv_head, group * q_pos, slot + q_pos]`.
    pub(crate) const ATTENTION: &str = "attention";
    /// Rows for the head, `[row, hidden]`.
    pub(crate) const ROWS: &str = "rows";
    /// Logits, `[row, vocab]`.
    pub(crate) const LOGITS: &str = "logits";
    /// Rows that are stored, `[kv_head, slot, head_dim]`.
    pub(crate) const STORED: &str = "stored";
    /// Which of them are taken, `[kv_head, taken, 1]`; the number of slots is a row of zeros.
    pub(crate) const TAKEN: &str = "taken";
    /// Rows to follow those stored, `[kv_head, added, head_dim]`.
    pub(crate) const ADDED: &str = "added";
    /// What becomes of the stored rows, `[kv_head, slot, head_dim]`.
    pub(crate) const RESULT: &str = "result";
    /// Positions of stored keys, minus infinity where one is hidden, `[1 or kv_head, 1, slot]`; of lanes, whose they are, below 0 for all.
    pub(crate) const PAST_MARKS: &str = "past_marks";
    /// Positions of new keys, `[1 or kv_head, 1, q_pos]`.
    pub(crate) const NEW_MARKS: &str = "new_marks";
    /// Positions of both, `[1 or kv_head, 1, slot + q_pos]`.
    pub(crate) const PRESENT_MARKS: &str = "present_marks";
    /// Positions of queries, `[1, q_pos, 1]`.
    pub(crate) const QUERY_MARKS: &str = "query_marks";
    /// Added to the scores of new keys, `[1, q_pos, q_pos]`.
    pub(crate) const NEW_BIAS: &str = "new_bias";
    /// A key so many positions back is no longer seen, `[1, 1, 1]`.
    pub(crate) const REACH: &str = "reach";
}
