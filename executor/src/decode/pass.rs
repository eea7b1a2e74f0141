//! What a pass gives.

use ndarray::{Array2, Array3, Array4, ArrayView2, s};

/// Which arrays a pass keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taps {
    /// The residual stream after each layer.
    pub hidden: bool,
    /// Queries after rotation.
    pub queries: bool,
    /// Keys after rotation.
    pub keys: bool,
    /// Values.
    pub values: bool,
    /// Attention probabilities; the model must be loaded with them.
    pub attention: bool,
}

impl Taps {
    /// Nothing but the last layer's residual stream.
    pub const NONE: Self =
        Self { hidden: false, queries: false, keys: false, values: false, attention: false };
    /// Hidden states, queries, keys and values.
    pub const STATES: Self = Self { hidden: true, queries: true, keys: true, values: true, attention: false };
}

/// What a pass over some tokens gave. Arrays have as many layers as ran.
#[derive(Debug, Clone)]
pub struct Pass {
    /// The tokens fed.
    pub tokens: Vec<u32>,
    /// Their positions in the sequence.
    pub positions: Vec<u32>,
    /// How many layers ran.
    pub layers_run: usize,
    /// The residual stream after the last layer that ran, before the final norm, `[q_pos, hidden]`.
    pub last_hidden: Array2<f32>,
    /// The residual stream after each layer, before the final norm, `[layer, q_pos, hidden]`.
    pub hidden: Option<Array3<f32>>,
    /// Queries after rotation, `[layer, q_head, q_pos, head_dim]`.
    pub queries: Option<Array4<f32>>,
    /// New keys after rotation, `[layer, kv_head, q_pos, head_dim]`.
    pub keys: Option<Array4<f32>>,
    /// New values, `[layer, kv_head, q_pos, head_dim]`.
    pub values: Option<Array4<f32>>,
    /// Attention probabilities, per layer `[q_head, q_pos, slot]`; slots are those of the layer's cache after the pass.
    pub attention: Option<Vec<Array3<f32>>>,
}

impl Pass {
    /// The residual stream of the last token, `[1, hidden]`.
    #[must_use]
    pub fn last_row(&self) -> ArrayView2<'_, f32> {
        self.last_hidden.slice(s![-1.., ..])
    }
}
