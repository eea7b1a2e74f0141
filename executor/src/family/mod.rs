//! Model families: what is the same in all of them is in [`DecoderConfig`], what differs is in one file per family.
//!
//! A new family is a file with a [`Family`] and a line in [`FAMILIES`].

mod config;
mod error;
mod gguf_config;
mod hf_config;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;
mod tiny;

pub use config::{DecoderConfig, RopeScaling, SlidingWindow};
pub use error::ModelError;
pub(crate) use gguf_config::from_gguf;
pub(crate) use hf_config::from_hf;
pub use tiny::TinySpec;

/// The order of the rows of the query and key matrices within a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// Element `i` rotates with element `i + head_dim / 2`.
    HalfSplit,
    /// Element `2 i` rotates with element `2 i + 1`.
    Interleaved,
}

/// A family of decoders with rotary positions, RMS norms and a gated feed-forward part.
pub trait Family: Sync {
    /// Name of the family, equal to its file.
    fn id(&self) -> &'static str;
    /// One line about it.
    fn summary(&self) -> &'static str;
    /// `general.architecture` in a GGUF file; nothing where such files bear another family's name.
    fn gguf_architecture(&self) -> Option<&'static str>;
    /// `model_type` in a Hugging Face `config.json`.
    fn hf_model_type(&self) -> &'static str;
    /// Queries, keys and values have a bias.
    fn has_qkv_bias(&self) -> bool;
    /// Queries and keys go through an RMS norm per head before they are rotated.
    fn has_qk_norm(&self) -> bool;
    /// A window in the configuration counts only beside `use_sliding_window: true`.
    fn window_needs_flag(&self) -> bool {
        false
    }
    /// One matrix holds queries, keys and values, another one gate and up.
    fn has_fused_projections(&self) -> bool {
        false
    }
    /// How GGUF files of this family order the rows of the query and key matrices.
    fn gguf_row_order(&self) -> RowOrder;
}

/// Every family, sorted by id.
pub const FAMILIES: &[&dyn Family] =
    &[&llama::Llama, &mistral::Mistral, &phi3::Phi3, &qwen2::Qwen2, &qwen3::Qwen3];

#[cfg(test)]
mod tests {
    use super::FAMILIES;

    #[test]
    fn families_are_sorted_and_unique() {
        assert!(FAMILIES.is_sorted_by(|a, b| a.id() < b.id()));
    }
}
