//! `mistral`: like `llama`, with attention to a window of recent tokens in some releases. GGUF files of it say `llama`.

use super::{Family, RowOrder};

/// The family `mistral`.
#[derive(Debug)]
pub(super) struct Mistral;

impl Family for Mistral {
    fn id(&self) -> &'static str {
        "mistral"
    }

    fn summary(&self) -> &'static str {
        "Mistral 7B and Nemo, with or without a sliding window"
    }

    fn gguf_architecture(&self) -> Option<&'static str> {
        None
    }

    fn hf_model_type(&self) -> &'static str {
        "mistral"
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
