//! `qwen2`: like `llama`, with a bias on queries, keys and values.

use super::{Family, RowOrder};

/// The family `qwen2`.
#[derive(Debug)]
pub(super) struct Qwen2;

impl Family for Qwen2 {
    fn id(&self) -> &'static str {
        "qwen2"
    }

    fn summary(&self) -> &'static str {
        "Qwen 2 and 2.5, and distillations into them"
    }

    fn gguf_architecture(&self) -> Option<&'static str> {
        Some("qwen2")
    }

    fn hf_model_type(&self) -> &'static str {
        "qwen2"
    }

    fn has_qkv_bias(&self) -> bool {
        true
    }

    fn has_qk_norm(&self) -> bool {
        false
    }

    fn window_needs_flag(&self) -> bool {
        true
    }

    fn gguf_row_order(&self) -> RowOrder {
        RowOrder::HalfSplit
    }
}
