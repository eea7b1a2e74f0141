//! The parts of a decoder, what they are called in files, and their shapes.

use crate::family::DecoderConfig;

/// A weight of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    AttentionNorm,
    Query,
    Key,
    Value,
    QueryBias,
    KeyBias,
    ValueBias,
    QueryNorm,
    KeyNorm,
    Output,
    FfnNorm,
    Gate,
    Up,
    Down,
    /// Queries, keys and values in one matrix.
    JoinedAttention,
    /// Gate and up in one matrix.
    JoinedFfn,
}

/// A weight outside the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outer {
    Embedding,
    FinalNorm,
    Head,
}

/// How a kind of file spells the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    Gguf,
    HuggingFace,
}

impl Spelling {
    pub(crate) fn outer(self, part: Outer) -> String {
        match (self, part) {
            (Self::Gguf, Outer::Embedding) => "token_embd.weight",
            (Self::Gguf, Outer::FinalNorm) => "output_norm.weight",
            (Self::Gguf, Outer::Head) => "output.weight",
            (Self::HuggingFace, Outer::Embedding) => "model.embed_tokens.weight",
            (Self::HuggingFace, Outer::FinalNorm) => "model.norm.weight",
            (Self::HuggingFace, Outer::Head) => "lm_head.weight",
        }
        .to_owned()
    }

    pub(crate) fn layer(self, part: Part, layer: usize) -> String {
        let name = match self {
            Self::Gguf => gguf(part),
            Self::HuggingFace => hugging_face(part),
        };
        format!("{}{layer}.{name}", self.before_layer())
    }

    /// The layer that a name speaks of.
    pub(crate) fn layer_of(self, name: &str) -> Option<usize> {
        name.strip_prefix(self.before_layer())?.split('.').next()?.parse().ok()
    }

    fn before_layer(self) -> &'static str {
        match self {
            Self::Gguf => "blk.",
            Self::HuggingFace => "model.layers.",
        }
    }
}

impl Outer {
    /// Its shape, outermost axis first.
    pub(crate) fn shape(self, config: &DecoderConfig) -> Vec<usize> {
        match self {
            Self::Embedding | Self::Head => vec![config.vocab, config.hidden],
            Self::FinalNorm => vec![config.hidden],
        }
    }
}

impl Part {
    /// The parts of a layer in a file.
    pub(crate) fn of(config: &DecoderConfig) -> Vec<Self> {
        let mut parts = vec![Self::AttentionNorm, Self::Output, Self::FfnNorm, Self::Down];
        if config.fused {
            parts.extend([Self::JoinedAttention, Self::JoinedFfn]);
        } else {
            parts.extend([Self::Query, Self::Key, Self::Value, Self::Gate, Self::Up]);
        }
        if config.qkv_bias {
            parts.extend([Self::QueryBias, Self::KeyBias, Self::ValueBias]);
        }
        if config.qk_norm {
            parts.extend([Self::QueryNorm, Self::KeyNorm]);
        }
        parts
    }

    /// Its shape, outermost axis first: matrices are `[out, in]`.
    pub(crate) fn shape(self, config: &DecoderConfig) -> Vec<usize> {
        let (hidden, ffn, q, kv) = (config.hidden, config.ffn, config.q_width(), config.kv_width());
        match self {
            Self::AttentionNorm | Self::FfnNorm => vec![hidden],
            Self::Query => vec![q, hidden],
            Self::Key | Self::Value => vec![kv, hidden],
            Self::QueryBias => vec![q],
            Self::KeyBias | Self::ValueBias => vec![kv],
            Self::QueryNorm | Self::KeyNorm => vec![config.head_dim],
            Self::Output => vec![hidden, q],
            Self::Gate | Self::Up => vec![ffn, hidden],
            Self::Down => vec![hidden, ffn],
            Self::JoinedAttention => vec![q + 2 * kv, hidden],
            Self::JoinedFfn => vec![2 * ffn, hidden],
        }
    }
}

fn gguf(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "attn_norm.weight",
        Part::Query => "attn_q.weight",
        Part::Key => "attn_k.weight",
        Part::Value => "attn_v.weight",
        Part::QueryBias => "attn_q.bias",
        Part::KeyBias => "attn_k.bias",
        Part::ValueBias => "attn_v.bias",
        Part::QueryNorm => "attn_q_norm.weight",
        Part::KeyNorm => "attn_k_norm.weight",
        Part::Output => "attn_output.weight",
        Part::FfnNorm => "ffn_norm.weight",
        Part::Gate => "ffn_gate.weight",
        Part::Up => "ffn_up.weight",
        Part::Down => "ffn_down.weight",
        Part::JoinedAttention => "attn_qkv.weight",
        Part::JoinedFfn => "ffn_up.weight",
    }
}

fn hugging_face(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "input_layernorm.weight",
        Part::Query => "self_attn.q_proj.weight",
        Part::Key => "self_attn.k_proj.weight",
        Part::Value => "self_attn.v_proj.weight",
        Part::QueryBias => "self_attn.q_proj.bias",
        Part::KeyBias => "self_attn.k_proj.bias",
        Part::ValueBias => "self_attn.v_proj.bias",
        Part::QueryNorm => "self_attn.q_norm.weight",
        Part::KeyNorm => "self_attn.k_norm.weight",
        Part::Output => "self_attn.o_proj.weight",
        Part::FfnNorm => "post_attention_layernorm.weight",
        Part::Gate => "mlp.gate_proj.weight",
        Part::Up => "mlp.up_proj.weight",
        Part::Down => "mlp.down_proj.weight",
        Part::JoinedAttention => "self_attn.qkv_proj.weight",
        Part::JoinedFfn => "mlp.gate_up_proj.weight",
    }
}
