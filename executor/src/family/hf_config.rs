//! [`DecoderConfig`] from a Hugging Face `config.json`.

use std::path::Path;

use serde::Deserialize;

use super::{DecoderConfig, FAMILIES, Family, ModelError, RopeScaling, SlidingWindow};

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
    sliding_window: Option<usize>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    partial_rotary_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
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
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    short_factor: Option<Vec<f32>>,
    long_factor: Option<Vec<f32>>,
    partial_rotary_factor: Option<f64>,
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
    let context = raw.max_position_embeddings.unwrap_or(2048);
    let scaling = RopeReader { family, raw: &raw, context }.scaling(rope)?;
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
        context: scaling.context,
        rope_theta: raw.rope_theta.or(rope.and_then(|rope| rope.rope_theta)).unwrap_or(10_000.0),
        rope_scaling: scaling.scaling,
        rms_eps: raw.rms_norm_eps,
        tied: raw.tie_word_embeddings.unwrap_or(false),
        qkv_bias: family.has_qkv_bias(),
        qk_norm: family.has_qk_norm(),
        fused: family.has_fused_projections(),
        sliding_window: sliding_window(family, &raw)?,
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
    let flags = [("attention_bias", raw.attention_bias), ("mlp_bias", raw.mlp_bias)];
    for (name, value) in flags {
        if value == Some(true) {
            return refuse(name, "true".to_owned(), "false");
        }
    }
    let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
    let partial = raw.partial_rotary_factor.or(rope.and_then(|rope| rope.partial_rotary_factor));
    if let Some(partial) = partial.filter(|partial| (partial - 1.0).abs() > f64::EPSILON) {
        return refuse("partial_rotary_factor", partial.to_string(), "1: whole heads are rotated");
    }
    if raw.quantization_config.is_some() {
        return refuse("quantization_config", "present".to_owned(), "absent: weights in f32, f16 or bf16");
    }
    Ok(())
}

/// Which layers see a window only. Releases say it in three ways: for all layers, from a layer on, or layer by layer.
fn sliding_window(family: &dyn Family, raw: &RawConfig) -> Result<Option<SlidingWindow>, ModelError> {
    let is_used = raw.use_sliding_window.unwrap_or(!family.window_needs_flag());
    let Some(tokens) = raw.sliding_window.filter(|_| is_used) else {
        return Ok(None);
    };
    let Some(types) = &raw.layer_types else {
        let first_layer = raw.max_window_layers.filter(|_| family.window_needs_flag()).unwrap_or(0);
        return Ok((first_layer < raw.num_hidden_layers).then_some(SlidingWindow { tokens, first_layer }));
    };
    let slides = |kind: &String| kind == "sliding_attention";
    let first_layer = types.iter().position(slides).unwrap_or(types.len());
    let is_known = types.iter().all(|kind| slides(kind) || kind == "full_attention");
    if !is_known || !types[first_layer..].iter().all(slides) || types.len() != raw.num_hidden_layers {
        return Err(ModelError::UnsupportedFeature {
            family: family.id(),
            feature: "layer_types",
            found: format!("{types:?}"),
            supported: "for each layer full_attention, and from some layer on sliding_attention",
        });
    }
    Ok((first_layer < types.len()).then_some(SlidingWindow { tokens, first_layer }))
}

/// A rope scaling, and the context it is good for.
struct ScaledRope {
    scaling: RopeScaling,
    context: usize,
}

struct RopeReader<'a> {
    family: &'static dyn Family,
    raw: &'a RawConfig,
    context: usize,
}

impl RopeReader<'_> {
    fn refuse(&self, feature: &'static str, found: String, supported: &'static str) -> ModelError {
        ModelError::UnsupportedFeature { family: self.family.id(), feature, found, supported }
    }

    fn need(&self, value: Option<f64>, name: &'static str) -> Result<f64, ModelError> {
        value.filter(|value| value.is_finite() && *value > 0.0).ok_or_else(|| {
            let found = value.map_or_else(|| "absent".to_owned(), |value| value.to_string());
            self.refuse(name, found, "a number above 0")
        })
    }

    fn scaling(&self, rope: Option<&RawRope>) -> Result<ScaledRope, ModelError> {
        let same_context = |scaling| Ok(ScaledRope { scaling, context: self.context });
        let Some(rope) = rope else { return same_context(RopeScaling::None) };
        match rope.rope_type.as_deref() {
            None | Some("default") => same_context(RopeScaling::None),
            Some("linear") => {
                same_context(RopeScaling::Linear { factor: self.need(rope.factor, "rope scaling factor")? })
            }
            Some("llama3") => same_context(RopeScaling::Llama3 {
                factor: self.need(rope.factor, "rope scaling factor")?,
                low_frequency_factor: self.need(rope.low_freq_factor, "rope scaling low_freq_factor")?,
                high_frequency_factor: self.need(rope.high_freq_factor, "rope scaling high_freq_factor")?,
                original_context: self.need(
                    rope.original_max_position_embeddings,
                    "rope scaling original_max_position_embeddings",
                )?,
            }),
            Some("yarn") => same_context(self.yarn(rope)?),
            Some("longrope" | "su") => self.longrope(rope),
            Some(other) => {
                Err(self.refuse("rope scaling", other.to_owned(), "default, linear, llama3, yarn, longrope"))
            }
        }
    }

    /// Defaults as in transformers, `modeling_rope_utils.py`.
    #[expect(clippy::cast_precision_loss, reason = "contexts are below 2^53")]
    fn yarn(&self, rope: &RawRope) -> Result<RopeScaling, ModelError> {
        if rope.truncate == Some(false) {
            return Err(self.refuse("rope scaling truncate", "false".to_owned(), "true"));
        }
        let factor = self.need(rope.factor, "rope scaling factor")?;
        let original = rope.original_max_position_embeddings.or(Some(self.context as f64));
        let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let attention_factor = match (rope.attention_factor, rope.mscale, rope.mscale_all_dim) {
            (Some(given), ..) => given,
            (None, Some(own), Some(all)) if own > 0.0 && all > 0.0 => scale(own) / scale(all),
            _ => scale(1.0),
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_context: self.need(original, "rope scaling original_max_position_embeddings")?,
            beta_fast: rope.beta_fast.unwrap_or(32.0),
            beta_slow: rope.beta_slow.unwrap_or(1.0),
            attention_factor,
        })
    }

    /// The factors of short contexts, for as long as they hold. Beyond the original context such a model changes every
    /// key it has made, which no cache of rotated keys can follow.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "contexts are whole numbers below 2^53"
    )]
    fn longrope(&self, rope: &RawRope) -> Result<ScaledRope, ModelError> {
        let given = self.raw.original_max_position_embeddings.or(rope.original_max_position_embeddings);
        let original = self.need(given, "original_max_position_embeddings")?;
        let Some(divisors) = rope.short_factor.clone().filter(|_| rope.long_factor.is_some()) else {
            let found = "a longrope without short_factor or long_factor".to_owned();
            return Err(self.refuse("rope scaling", found, "both lists"));
        };
        let factor = self.context as f64 / original;
        let attention_factor = rope
            .attention_factor
            .unwrap_or_else(|| if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() });
        let scaling = RopeScaling::PerFrequency { divisors, attention_factor };
        Ok(ScaledRope { scaling, context: self.context.min(original as usize) })
    }
}
