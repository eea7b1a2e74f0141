//! The parts of a decoder and what they are called in files.

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
        match self {
            Self::Gguf => format!("blk.{layer}.{}", gguf(part)),
            Self::HuggingFace => format!("model.layers.{layer}.{}", hugging_face(part)),
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
