//! `phi3`: like `llama`, with queries, keys and values in one matrix, and gate and up in another.

use super::{Family, RowOrder};

/// The family `phi3`.
#[derive(Debug)]
pub(super) struct Phi3;

impl Family for Phi3 {
    fn id(&self) -> &'static str {
        "phi3"
    }

    fn summary(&self) -> &'static str {
        "Phi 3 and 3.5 mini and medium"
    }

    fn gguf_architecture(&self) -> Option<&'static str> {
        Some("phi3")
    }

    fn hf_model_type(&self) -> &'static str {
        "phi3"
    }

    fn has_qkv_bias(&self) -> bool {
        false
    }

    fn has_qk_norm(&self) -> bool {
        false
    }

    fn has_fused_projections(&self) -> bool {
        true
    }

    fn gguf_row_order(&self) -> RowOrder {
        RowOrder::HalfSplit
    }
}
