//! What `genai_config.json` of onnxruntime-genai leaves to the graph: norms, feed-forward width, rotation, window.

use std::path::Path;

use serde::Deserialize;

use super::{
    file::{OnnxFile, integer, number},
    find::{self, Found, Widths},
};
use crate::{
    family::{DecoderConfig, FAMILIES, ModelError, RopeScaling, SlidingWindow},
    graph::proto::Node,
};

#[derive(Debug, Deserialize)]
struct RawGenai {
    model: RawModel,
}

#[derive(Debug, Deserialize)]
struct RawModel {
    #[serde(rename = "type")]
    kind: String,
    context_length: usize,
    vocab_size: usize,
    decoder: RawDecoder,
}

#[derive(Debug, Deserialize)]
struct RawDecoder {
    head_size: usize,
    hidden_size: usize,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    num_key_value_heads: usize,
}

/// The configuration of a folder without `config.json`, and the weights.
pub(super) fn read(file: &OnnxFile, path: &Path) -> Result<(Found, DecoderConfig), ModelError> {
    let text = std::fs::read_to_string(path).map_err(ModelError::io("read", path))?;
    let raw: RawGenai =
        serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })?;
    let (model, decoder) = (&raw.model, &raw.model.decoder);
    let known = FAMILIES.iter().copied().find(|family| family.hf_model_type() == model.kind);
    let family = known.ok_or_else(|| ModelError::UnsupportedFamily {
        path: path.to_owned(),
        found: model.kind.clone(),
        supported: FAMILIES.iter().map(|family| family.hf_model_type()).collect(),
    })?;
    let counts = [
        decoder.head_size,
        decoder.num_attention_heads,
        decoder.num_hidden_layers,
        decoder.num_key_value_heads,
    ];
    if let Some(count) = counts.into_iter().find(|count| !(1..=1 << 16).contains(count)) {
        return Err(ModelError::shape("heads, head size or layers", count, "1 to 65536"));
    }
    let widths = Widths {
        layers: decoder.num_hidden_layers,
        queries: decoder.num_attention_heads * decoder.head_size,
        keys: decoder.num_key_value_heads * decoder.head_size,
        head_dim: decoder.head_size,
    };
    let found = find::find(file, widths)?;
    let rms_eps = found.rms_eps.ok_or_else(|| {
        file.wrong(
            "the norms",
            "made of several nodes",
            "SimplifiedLayerNormalization with its epsilon, or a config.json",
        )
    })?;
    let rotation = Rotation::read(file, decoder.head_size)?;
    let config = DecoderConfig {
        family: family.id(),
        name: None,
        layers: decoder.num_hidden_layers,
        hidden: decoder.hidden_size,
        q_heads: decoder.num_attention_heads,
        kv_heads: decoder.num_key_value_heads,
        head_dim: decoder.head_size,
        ffn: found.ffn,
        vocab: model.vocab_size,
        context: model.context_length.min(rotation.positions),
        rope_theta: rotation.theta,
        rope_scaling: rotation.scaling,
        rms_eps: f64::from(rms_eps),
        tied: false,
        qkv_bias: family.has_qkv_bias(),
        qk_norm: family.has_qk_norm(),
        fused: false,
        sliding_window: window(file)?,
    };
    Ok((found, config.checked()?))
}

fn attention(file: &OnnxFile) -> impl Iterator<Item = &Node> {
    file.graph.node.iter().filter(|node| node.op_type == "GroupQueryAttention")
}

/// The window of attention, the same in every layer.
fn window(file: &OnnxFile) -> Result<Option<SlidingWindow>, ModelError> {
    let width = |node: &Node| integer(node, "local_window_size").filter(|width| *width > 0);
    let widths: Vec<Option<i64>> = attention(file).map(width).collect();
    let first_layer = widths.iter().position(Option::is_some).unwrap_or(widths.len());
    match &widths[first_layer..] {
        [] => Ok(None),
        [Some(tokens), rest @ ..] if rest.iter().all(|other| *other == Some(*tokens)) => {
            let tokens = usize::try_from(*tokens).unwrap_or(usize::MAX);
            Ok(Some(SlidingWindow { tokens, first_layer }))
        }
        _ => Err(file.wrong("local_window_size", format!("{widths:?}"), "one width from some layer on")),
    }
}

/// Refuses attention that is computed in another way than the families here do.
pub(super) fn check_attention(file: &OnnxFile, config: &DecoderConfig) -> Result<(), ModelError> {
    #[expect(clippy::cast_precision_loss, reason = "heads are a few hundred wide")]
    let usual = 1.0 / (config.head_dim as f32).sqrt();
    for node in attention(file) {
        let refuse = |what: &str, found: String, accepted: &str| {
            Err(file.wrong(format!("{what} of {:?}", node.name), found, accepted))
        };
        if let Some(scale) =
            number(node, "scale").filter(|scale| *scale != 0.0 && (scale / usual - 1.0).abs() > 1e-3)
        {
            return refuse("scale", scale.to_string(), "one over the root of the head width");
        }
        if let Some(cap) = number(node, "softcap").filter(|cap| *cap != 0.0) {
            return refuse("softcap", cap.to_string(), "0: no cap");
        }
        if integer(node, "rotary_interleaved") == Some(1) {
            return refuse("rotary_interleaved", "1".to_owned(), "0: halves of a head rotate together");
        }
    }
    Ok(())
}

/// The rotation that cosine and sine tables of the graph hold.
struct Rotation {
    theta: f64,
    scaling: RopeScaling,
    /// Rows of the tables.
    positions: usize,
}

impl Rotation {
    fn read(file: &OnnxFile, head_dim: usize) -> Result<Self, ModelError> {
        let half = head_dim / 2;
        let places = |node: &Node| match node.op_type.as_str() {
            "GroupQueryAttention" if integer(node, "do_rotary") == Some(1) => Some((7, 8)),
            "RotaryEmbedding" => Some((2, 3)),
            _ => None,
        };
        let names = file.graph.node.iter().find_map(|node| {
            let (cos, sin) = places(node)?;
            Some((node.input.get(cos)?, node.input.get(sin)?))
        });
        let missing = || {
            file.wrong(
                "the graph",
                "without tables of cosines and sines",
                "GroupQueryAttention that rotates, or RotaryEmbedding",
            )
        };
        let (cos, sin) = names.ok_or_else(missing)?;
        let (cos_name, cos, sin) = (cos, file.read(cos)?, file.read(sin)?);
        let rows = match cos.shape.as_slice() {
            [rows, columns] if *columns == half && *rows >= 2 && sin.shape == cos.shape => *rows,
            found => {
                return Err(file.wrong(
                    format!("the shape of {cos_name:?}"),
                    format!("{found:?}"),
                    format!("[positions, {half}], 2 positions or more"),
                ));
            }
        };
        let at = |row: usize, column: usize| {
            let index = row * half + column;
            (f64::from(sin.data[index]), f64::from(cos.data[index]))
        };
        let frequencies: Vec<f64> = (0..half).map(|column| frequency(rows, &|row| at(row, column))).collect();
        let (sin1, cos1) = at(1, 0);
        let attention_factor = sin1.hypot(cos1);
        if let Some(theta) = base_of(&frequencies).filter(|_| (attention_factor - 1.0).abs() < 1e-6) {
            return Ok(Self { theta, scaling: RopeScaling::None, positions: rows });
        }
        let theta = 10_000.0_f64;
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "heads are a few hundred wide; divisors are f32"
        )]
        let divisor = |(index, frequency): (usize, &f64)| {
            (theta.powf(-(2.0 * index as f64) / head_dim as f64) / frequency) as f32
        };
        let divisors = frequencies.iter().enumerate().map(divisor).collect();
        Ok(Self { theta, scaling: RopeScaling::PerFrequency { divisors, attention_factor }, positions: rows })
    }
}

/// Radians per position of one column of the tables. The angle of row 1 is exact to the last bits of an `f32`; each doubling
/// of the row tells what is left of the error, until rounding of the angles themselves would.
fn frequency(rows: usize, at: &dyn Fn(usize) -> (f64, f64)) -> f64 {
    let (sin, cos) = at(1);
    let mut frequency = sin.atan2(cos);
    let mut row = 2_u32;
    while (row as usize) < rows && row <= 256 {
        let (sin, cos) = at(row as usize);
        let expected = frequency * f64::from(row);
        // The angle that is left between the table and the estimate.
        let left =
            (sin * expected.cos() - cos * expected.sin()).atan2(cos * expected.cos() + sin * expected.sin());
        frequency += left / f64::from(row);
        row *= 2;
    }
    frequency
}

/// The base whose powers the frequencies are, if they are: rounded to six digits.
fn base_of(frequencies: &[f64]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "heads are a few hundred wide")]
    let exponent = |index: usize| index as f64 / frequencies.len() as f64;
    let last = frequencies.len().checked_sub(1).filter(|last| *last > 0)?;
    let raw = frequencies[last].powf(-1.0 / exponent(last));
    let scale = 10_f64.powf(5.0 - raw.log10().floor());
    let base = (raw * scale).round() / scale;
    let fits =
        |(index, frequency): (usize, &f64)| (frequency * base.powf(exponent(index)) - 1.0).abs() < 2e-6;
    (base.is_finite() && base > 1.0 && frequencies.iter().enumerate().all(fits)).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables as exporters write them, in `f32`.
    fn table(frequency: f64) -> impl Fn(usize) -> (f64, f64) {
        move |row| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                reason = "as the tables are"
            )]
            let angle = f64::from(row as f32 * frequency as f32);
            #[expect(clippy::cast_possible_truncation, reason = "as the tables are")]
            let narrow = |value: f64| f64::from(value as f32);
            (narrow(angle.sin()), narrow(angle.cos()))
        }
    }

    #[test]
    fn frequencies_come_back_from_their_tables() {
        for frequency_in in [1.0, 0.5, 0.013, 1.1e-4, 2e-6] {
            let found = frequency(2048, &table(frequency_in));
            assert!((found / frequency_in - 1.0).abs() < 1e-6, "{found} for {frequency_in}");
        }
    }

    #[test]
    fn a_base_is_recognised_and_a_scaling_is_not_taken_for_one() {
        let of = |base: f64| (0..32).map(|i| base.powf(-f64::from(i) / 32.0)).collect::<Vec<_>>();
        assert_eq!(base_of(&of(10_000.0)), Some(10_000.0));
        assert_eq!(base_of(&of(1e6)), Some(1e6));
        let mut scaled = of(500_000.0);
        scaled[20..].iter_mut().for_each(|frequency| *frequency /= 8.0);
        assert_eq!(base_of(&scaled), None);
    }
}
