//! What a replay asks of a trace, whether it was recorded, generated or built in a test.

use super::times::TIMES;
use super::{Problem, Request, RopeInfo, TraceError};
use crate::cost::Measurement;
use crate::types::{LayerIdx, ModelShape, Pos, SeqIdx, TokenId};
use ndarray::{Array2, Array3};

/// One recorded sequence: a prompt and what the model wrote after it.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceMeta {
    /// Its index in the trace.
    pub seq: SeqIdx,
    /// The id of the problem it came from; the unit that bootstrap intervals resample.
    pub item: String,
    /// Prompt tokens, at positions `0..prompt_len`.
    pub prompt_len: u32,
    /// All tokens with recorded keys and values, prompt included. The token at `len - 1` was fed to the model too.
    pub len: u32,
}

/// Post-RoPE queries and keys, and values, of one layer of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerTensors {
    /// Queries, `[q_head, q_pos, head_dim]`, rotated at their original positions.
    pub q: Array3<f32>,
    /// Keys, `[kv_head, kv_pos, head_dim]`, rotated at their original positions.
    pub k: Array3<f32>,
    /// Values, `[kv_head, kv_pos, head_dim]`.
    pub v: Array3<f32>,
}

/// Logit-lens facts of one layer at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LensRow {
    /// Position whose next token is predicted.
    pub pos: Pos,
    /// Zero-based layer: the state after it is read.
    pub layer: LayerIdx,
    /// Entropy in nats of softmax(unembed(final_norm(hidden))).
    pub entropy_nats: f32,
    /// Entropy in nats of softmax(unembed(hidden)), without the final norm; nothing where the lens did not look at it.
    pub raw_entropy_nats: Option<f32>,
    /// Token with the largest logit, with the final norm; ties go to the lower id.
    pub top1: TokenId,
    /// Its probability.
    pub top1_prob: f32,
    /// Whether `top1` equals the last layer's at the same position.
    pub agrees_with_last: bool,
}

/// A source of sequences, tensors and facts. Reading twice gives the same values.
pub trait TraceSource: Sync {
    /// Name in result tables.
    fn name(&self) -> &str;

    /// SHA-256 (hex) that identifies the content.
    fn digest(&self) -> String;

    /// Whether the content was generated and not recorded.
    fn is_synthetic(&self) -> bool;

    /// Shape of the model.
    fn shape(&self) -> &ModelShape;

    /// The sequences, in index order.
    fn sequences(&self) -> &[SequenceMeta];

    /// Queries, keys and values of one layer of one sequence.
    ///
    /// # Errors
    /// When the source has no such tensors or they cannot be read.
    fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError>;

    /// Lens facts of one sequence, by position, then by layer; every position listed has every layer.
    ///
    /// # Errors
    /// When the source has no lens facts or they cannot be read.
    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError>;

    /// Problems with branch trees.
    fn problems(&self) -> u32 {
        0
    }

    /// One problem with its tree of branches.
    ///
    /// # Errors
    /// When the source has no such problem, or it cannot be read.
    fn problem(&self, _index: u32) -> Result<Problem, TraceError> {
        Err(TraceError::MissingField { field: "branches.depth", held: Vec::new() })
    }

    /// Id of the problem of one problem with branches.
    ///
    /// # Errors
    /// When the source has no such problem, or it cannot be read.
    fn problem_item(&self, index: u32) -> Result<String, TraceError> {
        self.problem(index).map(|problem| problem.item)
    }

    /// Tokens of a block of its requests; absent when it has none.
    fn request_block_tokens(&self) -> Option<u32> {
        None
    }

    /// Hands every request to `each`, in order, with its index.
    ///
    /// # Errors
    /// When the source has no requests, they cannot be read, or `each` gives an error.
    fn visit_requests(
        &self,
        _each: &mut dyn FnMut(u64, &Request) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        Err(TraceError::MissingField { field: "requests.timestamp_ms", held: Vec::new() })
    }

    /// The prompt of a sequence, `[kv_pos]`.
    ///
    /// # Errors
    /// When there is no such sequence, or its tokens are not known or cannot be read.
    fn prompt_tokens(&self, _seq: SeqIdx) -> Result<Vec<TokenId>, TraceError> {
        Err(TraceError::MissingField { field: "tokens.token", held: Vec::new() })
    }

    /// Measured times of the parts of a pass, for cost models.
    ///
    /// # Errors
    /// When the source has none, or they cannot be read.
    fn times(&self) -> Result<Vec<Measurement>, TraceError> {
        Err(TraceError::MissingField { field: TIMES, held: Vec::new() })
    }

    /// How queries and keys were rotated; `None` when they were not. [`crate::rope::Rope`] undoes it.
    fn rope(&self) -> Option<&RopeInfo> {
        None
    }

    /// The attention's output matrix of a layer, `[hidden, q_head, head_dim]`: what query head `h` reads from the cache,
    /// `o` of `head_dim` channels, adds `w_o[.., h, ..] · o` to the residual stream.
    ///
    /// # Errors
    /// When there is no such layer, or the source has no such matrix.
    fn w_o(&self, _layer: LayerIdx) -> Result<Array3<f32>, TraceError> {
        Err(TraceError::MissingField { field: "weights.w_o", held: Vec::new() })
    }

    /// Gain of the norm in front of the unembedding, `[hidden]`.
    ///
    /// # Errors
    /// When the source has none.
    fn final_norm(&self) -> Result<Vec<f32>, TraceError> {
        Err(TraceError::MissingField { field: "weights.final_norm", held: Vec::new() })
    }

    /// What the norm in front of the unembedding adds to the mean square; `None` when the source does not say.
    fn final_norm_eps(&self) -> Option<f64> {
        None
    }

    /// The residual stream after the last layer, before the final norm, `[q_pos, hidden]`.
    ///
    /// # Errors
    /// When there is no such sequence, or the source has no hidden states.
    fn last_hidden(&self, _seq: SeqIdx) -> Result<Array2<f32>, TraceError> {
        Err(TraceError::MissingField { field: "hidden", held: Vec::new() })
    }

    /// The unembedding, `[vocab, hidden]`.
    ///
    /// # Errors
    /// When the source has none.
    fn unembedding(&self) -> Result<Array2<f32>, TraceError> {
        Err(TraceError::MissingField { field: "weights.unembedding", held: Vec::new() })
    }
}
