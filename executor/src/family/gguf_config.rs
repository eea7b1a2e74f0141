//! [`DecoderConfig`] from the metadata of a GGUF file.

use super::{DecoderConfig, FAMILIES, Family, ModelError, RopeScaling, SlidingWindow};
use crate::gguf::{GgufError, GgufFile};

/// The family and shape of a GGUF file.
pub(crate) fn from_gguf(file: &GgufFile) -> Result<(&'static dyn Family, DecoderConfig), ModelError> {
    let key = "general.architecture";
    let architecture = file.optional_text(key)?.ok_or_else(|| file.missing(key))?;
    let family =
        FAMILIES.iter().copied().find(|family| family.gguf_architecture() == Some(architecture)).ok_or_else(
            || ModelError::UnsupportedFamily {
                path: file.path().to_owned(),
                found: architecture.to_owned(),
                supported: FAMILIES.iter().filter_map(|family| family.gguf_architecture()).collect(),
            },
        )?;
    let keys = Keys { file, architecture };
    keys.refuse_experts(family)?;
    let hidden = keys.count("embedding_length")?;
    let q_heads = keys.count("attention.head_count")?;
    let head_dim = keys.optional_count("attention.key_length")?.unwrap_or(hidden / q_heads);
    for other in ["attention.value_length", "rope.dimension_count"] {
        if let Some(found) = keys.optional_count(other)?.filter(|found| *found != head_dim) {
            let feature = "the width of values or of the rotated part";
            let found = format!("{found} in heads of {head_dim}");
            return Err(ModelError::UnsupportedFeature {
                family: family.id(),
                feature,
                found,
                supported: "the width of the head",
            });
        }
    }
    let embedding = file.tensors().get("token_embd.weight").ok_or_else(|| ModelError::MissingTensor {
        path: file.path().to_owned(),
        tensor: "token_embd.weight".to_owned(),
    })?;
    if let Some(found) = keys.optional_count("vocab_size")?.filter(|found| *found != embedding.shape[0]) {
        return Err(ModelError::Contradiction {
            path: file.path().to_owned(),
            key: keys.name("vocab_size"),
            found: found.to_string(),
            others: format!("\"token_embd.weight\" has {} rows", embedding.shape[0]),
        });
    }
    let epsilon = keys.name("attention.layer_norm_rms_epsilon");
    let config = DecoderConfig {
        family: family.id(),
        name: file.optional_text("general.name")?.map(str::to_owned),
        layers: keys.count("block_count")?,
        hidden,
        q_heads,
        kv_heads: keys.optional_count("attention.head_count_kv")?.unwrap_or(q_heads),
        head_dim,
        ffn: keys.count("feed_forward_length")?,
        vocab: embedding.shape[0],
        context: keys.count("context_length")?,
        rope_theta: file.optional_number(&keys.name("rope.freq_base"))?.unwrap_or(10_000.0),
        rope_scaling: keys.rope_scaling(family)?,
        rms_eps: file.optional_number(&epsilon)?.ok_or_else(|| file.missing(&epsilon))?,
        tied: !file.tensors().contains_key("output.weight"),
        qkv_bias: family.has_qkv_bias(),
        qk_norm: family.has_qk_norm(),
        fused: family.has_fused_projections(),
        sliding_window: keys
            .optional_count("attention.sliding_window")?
            .filter(|tokens| *tokens > 0)
            .map(|tokens| SlidingWindow { tokens, first_layer: 0 }),
    };
    Ok((family, config.checked()?))
}

/// Keys of one architecture.
struct Keys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn count(&self, key: &str) -> Result<usize, GgufError> {
        self.file.count(&self.name(key))
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>, GgufError> {
        self.file.optional_count(&self.name(key))
    }

    fn refuse_experts(&self, family: &dyn Family) -> Result<(), ModelError> {
        if self.file.value(&self.name("expert_count")).is_none_or(|value| value.describe() == "0") {
            return Ok(());
        }
        Err(ModelError::UnsupportedFeature {
            family: family.id(),
            feature: "the feed-forward part",
            found: "a mixture of experts".to_owned(),
            supported: "dense",
        })
    }

    fn rope_scaling(&self, family: &dyn Family) -> Result<RopeScaling, ModelError> {
        if self.file.tensors().contains_key("rope_factors_short.weight") {
            return Err(ModelError::UnsupportedFeature {
                family: family.id(),
                feature: "rope scaling",
                found: "longrope (rope_factors_short.weight)".to_owned(),
                supported: "none, linear, yarn, rope_freqs.weight; longrope from a Hugging Face folder",
            });
        }
        if let Some(divisors) = self.file.read("rope_freqs.weight")? {
            return Ok(RopeScaling::PerFrequency { divisors: divisors.data, attention_factor: 1.0 });
        }
        let factor_key = self.name("rope.scaling.factor");
        match self.file.optional_text(&self.name("rope.scaling.type"))? {
            None | Some("none") => Ok(RopeScaling::None),
            Some("linear") => {
                let factor =
                    self.file.optional_number(&factor_key)?.ok_or_else(|| self.file.missing(&factor_key))?;
                Ok(RopeScaling::Linear { factor })
            }
            Some("yarn") => self.yarn(&factor_key),
            Some(other) => Err(ModelError::UnsupportedFeature {
                family: family.id(),
                feature: "rope scaling",
                found: other.to_owned(),
                supported: "none, linear, yarn, rope_freqs.weight",
            }),
        }
    }

    /// As llama.cpp reads it: the factor of cosines and sines is `attn_factor * (0.1 ln(factor) + 1)`.
    #[expect(clippy::cast_precision_loss, reason = "contexts are below 2^53")]
    fn yarn(&self, factor_key: &str) -> Result<RopeScaling, ModelError> {
        let number = |key: &str| self.file.optional_number(&self.name(key));
        let factor = self.file.optional_number(factor_key)?.ok_or_else(|| self.file.missing(factor_key))?;
        let extra = number("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let scale = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        Ok(RopeScaling::Yarn {
            factor,
            original_context: self.count("rope.scaling.original_context_length")? as f64,
            beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            attention_factor: extra * scale,
        })
    }
}
