//! [`DecoderConfig`] from a Hugging Face `config.json`.

use std::path::Path;

use serde::Deserialize;

use super::{DecoderConfig, FAMILIES, Family, ModelError, RopeScaling};

/// The keys that matter. The file has many more, and they differ from release to release, so unknown keys are not
/// refused; those that would change the arithmetic are named here and refused when they do.
#[derive(Debug, Deserialize)]
struct RawConfig {
    model_type: String,
    num_hidden_layers: usize,
    hidden_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: Option<usize>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
    rms_norm_eps: f64,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    quantization_config: Option<serde_json::Value>,
    _name_or_path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RawRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    rope_theta: Option<f64>,
}

/// The family and shape that a `config.json` describes.
pub(crate) fn from_hf(path: &Path) -> Result<(&'static dyn Family, DecoderConfig), ModelError> {
    let text = std::fs::read_to_string(path).map_err(ModelError::io("read", path))?;
    let raw: RawConfig =
        serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })?;
    let family =
        FAMILIES.iter().copied().find(|family| family.hf_model_type() == raw.model_type).ok_or_else(
            || ModelError::UnsupportedFamily {
                path: path.to_owned(),
                found: raw.model_type.clone(),
                supported: FAMILIES.iter().map(|family| family.hf_model_type()).collect(),
            },
        )?;
    refuse_unsupported(family, &raw)?;
    let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
    if raw.num_attention_heads == 0 {
        return Err(ModelError::shape("query heads", 0, "1 to 16777216"));
    }
    let config = DecoderConfig {
        family: family.id(),
        name: raw._name_or_path.clone().filter(|name| !name.is_empty()),
        layers: raw.num_hidden_layers,
        hidden: raw.hidden_size,
        q_heads: raw.num_attention_heads,
        kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
        head_dim: raw.head_dim.unwrap_or(raw.hidden_size / raw.num_attention_heads),
        ffn: raw.intermediate_size,
        vocab: raw.vocab_size,
        context: raw.max_position_embeddings.unwrap_or(2048),
        rope_theta: raw.rope_theta.or(rope.and_then(|rope| rope.rope_theta)).unwrap_or(10_000.0),
        rope_scaling: rope_scaling(family, rope)?,
        rms_eps: raw.rms_norm_eps,
        tied: raw.tie_word_embeddings.unwrap_or(false),
        qkv_bias: family.has_qkv_bias(),
        qk_norm: family.has_qk_norm(),
    };
    Ok((family, config.checked()?))
}

fn refuse_unsupported(family: &dyn Family, raw: &RawConfig) -> Result<(), ModelError> {
    let refuse = |feature, found: String, supported| {
        Err(ModelError::UnsupportedFeature { family: family.id(), feature, found, supported })
    };
    match raw.hidden_act.as_deref() {
        None | Some("silu" | "swish") => {}
        Some(other) => return refuse("the activation", other.to_owned(), "silu"),
    }
    let flags = [
        ("attention_bias", raw.attention_bias),
        ("mlp_bias", raw.mlp_bias),
        ("use_sliding_window", raw.use_sliding_window),
    ];
    for (name, value) in flags {
        if value == Some(true) {
            return refuse(name, "true".to_owned(), "false");
        }
    }
    if raw.quantization_config.is_some() {
        return refuse("quantization_config", "present".to_owned(), "absent: weights in f32, f16 or bf16");
    }
    Ok(())
}

fn rope_scaling(family: &dyn Family, rope: Option<&RawRope>) -> Result<RopeScaling, ModelError> {
    let Some(rope) = rope else { return Ok(RopeScaling::None) };
    let need = |value: Option<f64>, name: &'static str| {
        value.filter(|value| value.is_finite() && *value > 0.0).ok_or_else(|| {
            ModelError::UnsupportedFeature {
                family: family.id(),
                feature: name,
                found: format!("{value:?}"),
                supported: "a number above 0",
            }
        })
    };
    match rope.rope_type.as_deref() {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: need(rope.factor, "rope scaling factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: need(rope.factor, "rope scaling factor")?,
            low_frequency_factor: need(rope.low_freq_factor, "rope scaling low_freq_factor")?,
            high_frequency_factor: need(rope.high_freq_factor, "rope scaling high_freq_factor")?,
            original_context: need(
                rope.original_max_position_embeddings,
                "rope scaling original_max_position_embeddings",
            )?,
        }),
        Some(other) => Err(ModelError::UnsupportedFeature {
            family: family.id(),
            feature: "rope scaling",
            found: other.to_owned(),
            supported: "default, linear, llama3",
        }),
    }
}
