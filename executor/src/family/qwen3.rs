//! `qwen3`: like `llama`, with an RMS norm per head on queries and keys; the query width may differ from the hidden width.

use super::{Family, RowOrder};

/// The family `qwen3`.
#[derive(Debug)]
pub(super) struct Qwen3;

impl Family for Qwen3 {
    fn id(&self) -> &'static str {
        "qwen3"
    }

    fn summary(&self) -> &'static str {
        "Qwen 3, dense"
    }

    fn gguf_architecture(&self) -> Option<&'static str> {
        Some("qwen3")
    }

    fn hf_model_type(&self) -> &'static str {
        "qwen3"
    }

    fn has_qkv_bias(&self) -> bool {
        false
    }

    fn has_qk_norm(&self) -> bool {
        true
    }

    fn window_needs_flag(&self) -> bool {
        true
    }

    fn gguf_row_order(&self) -> RowOrder {
        RowOrder::HalfSplit
    }
}
