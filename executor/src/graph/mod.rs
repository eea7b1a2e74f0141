//! Decoder graphs in ONNX form, written in memory.
//!
//! Responsible for the graph of one layer and that of the output head. Only standard operators are used (opset 21), so any
//! ONNX tool can read them. Every layer of a model has the same graph; only the weights differ.

mod builder;
mod head;
mod layer;
pub(crate) mod proto;

pub(crate) use builder::BuiltGraph;
pub(crate) use head::{head_graph, probe};
pub(crate) use layer::{AttentionOutput, layer_graph};

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
    /// Attention probabilities, `[kv_head, group * q_pos, slot + q_pos]`.
    pub(crate) const ATTENTION: &str = "attention";
    /// Rows for the head, `[row, hidden]`.
    pub(crate) const ROWS: &str = "rows";
    /// Logits, `[row, vocab]`.
    pub(crate) const LOGITS: &str = "logits";
}
