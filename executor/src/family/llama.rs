//! `llama`: rotary positions, no biases, no norms on queries and keys. GGUF files store the rows of the query and key
//! matrices for interleaved rotation; taken as they are, the model half works, which is the worst kind of failure.

use super::{Family, RowOrder};

/// The family `llama`.
#[derive(Debug)]
pub(super) struct Llama;

impl Family for Llama {
    fn id(&self) -> &'static str {
        "llama"
    }

    fn summary(&self) -> &'static str {
        "Llama 2 and 3, SmolLM2 and everything else of that shape"
    }

    fn gguf_architecture(&self) -> Option<&'static str> {
        Some("llama")
    }

    fn hf_model_type(&self) -> &'static str {
        "llama"
    }

    fn has_qkv_bias(&self) -> bool {
        false
    }

    fn has_qk_norm(&self) -> bool {
        false
    }

    fn gguf_row_order(&self) -> RowOrder {
        RowOrder::Interleaved
    }
}
